"""`run`, `arun`, `stream` and `astream`: one way to run anything, whatever names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

import mergepoint
from mergepoint.core.errors import GateOpen, RecipeError, StepError, TreeError
from mergepoint.engine.callbacks import Event
from mergepoint.engine.compiler import compile_graph as compile_tree
from mergepoint.engine.run_tree import Result
from mergepoint.running import (
    AnyOptions,
    RecipeGraphOptions,
    TreeGraphOptions,
    arun,
    astream,
    compile_graph,
    run,
    stream,
)
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import LIBRARY, recipe_to_yaml
from mergepoint.streams.thing import Thing
from mergepoint.targets import find_target
from mergepoint.testing.random_trees import WITH_TOOLS, seeded_case
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.tree_functions import TableModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.load import TargetError, graph_names, recipe_graphs
from mergepoint.tree.nodes import Block, Gate
from mergepoint.tree.prompts import Template
from mergepoint.tree.tree_yaml import to_yaml
from tests.streams.whole.blocks import REGISTRY
from tests.streams.whole.mixed import Judging, drawn
from tests.streams.whole.model import Log

TREE = Block(
    [Step(Template("Describe {{ topic }}."), capture_key="text"), Step("Shorter.")],
    name="describe",
    inputs=["topic"],
)
RECIPE = Recipe("twice", (Stage("generate", params={"n": 2, "prompt": "Say {{ content }}."}),))
Way = Callable[..., Any]
KEYWORD = Parameter.KEYWORD_ONLY


def run_async(*args: Any, **options: Any) -> Result[Thing]:
    """Run on an event loop."""
    return asyncio.run(arun(*args, **options))


def events_of(*args: Any, **options: Any) -> list[Event]:
    """Return all events of a run on an event loop."""

    async def main() -> list[Event]:
        return [event async for event in astream(*args, **options)]

    return asyncio.run(main())


def last(events: list[Event]) -> Result[Thing]:
    """Return the result at the end of a stream, which is there once."""
    assert [event.kind for event in events].count("result") == 1
    result: Result[Thing] = events[-1].value
    assert events[-1].text == result.text
    return result


def last_of_stream(*args: Any, **options: Any) -> Result[Thing]:
    """Return the last of a stream."""
    return last(list(stream(*args, **options)))


def last_of_astream(*args: Any, **options: Any) -> Result[Thing]:
    """Return the last of a stream on an event loop."""
    return last(events_of(*args, **options))


WAYS: dict[str, Way] = {
    "run": run,
    "arun": run_async,
    "stream": last_of_stream,
    "astream": last_of_astream,
}


def echo() -> ScriptedModel:
    """Return a model that repeats what it is asked."""
    return ScriptedModel(default=lambda messages: f"to {messages[-1].text}")


def end(result: Any) -> Any:
    """Return what a run came to, without its times."""
    return (
        [(type(one), one.content, one.id) for one in result.messages],
        dict(result.outputs),
        result.text,
        result.things,
        result.failed,
        result.usage,
        result.stopped,
        sorted((one.path, one.response, str(one.value)) for one in result.steps),
    )


def finished(way: Way, *args: Any, **options: Any) -> Any:
    """Return what a run came to."""
    return end(way(*args, **options))


def ended(work: Callable[[], Any]) -> Any:
    """Return what some work gives, or how it fails."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  (drawn trees fail in every way)
        return type(error), getattr(error, "pipeline_path", None)


@pytest.mark.parametrize(
    "seed",
    [*range(20), *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(20, 40))],
)
def test_every_way_to_run_a_tree_gives_the_same(seed: int, tmp_path: Path) -> None:
    """Function, async function, streams, run_generation and the compiled graph agree."""
    case = seeded_case(seed, kinds=WITH_TOOLS)
    about: dict[str, Any] = {"model": TableModel(table=case.answers), "run_id": "r1"}
    about |= {"messages": case.messages, "inputs": case.inputs, "seed": 7}
    found = {name: ended(partial(finished, way, case.tree, **about)) for name, way in WAYS.items()}
    found["run_generation"] = ended(
        lambda: end(mergepoint.run_generation(case.tree, runs=tmp_path, **about))
    )
    for name, result in found.items():
        assert result == found["run"], name
    graph = mergepoint.compile_graph(case.tree, model=about["model"])
    given = {"messages": list(case.messages), "inputs": case.inputs}
    ids = {"mergepoint_run_id": "r1", "mergepoint_seed": 7}
    state = ended(lambda: graph.invoke(given, {"configurable": ids}))
    if isinstance(state, tuple):
        assert state == found["run"]
    else:
        assert (_said(state["messages"]), state["outputs"]) == found["run"][:2]


def _said(messages: list[BaseMessage]) -> list[tuple[type, Any, str | None]]:
    return [(type(one), one.content, one.id) for one in messages]


@pytest.mark.parametrize("seed", range(12))
def test_every_way_to_run_a_recipe_gives_the_same(seed: int, tmp_path: Path) -> None:
    """Function, async function, streams, run_recipe and the compiled recipe agree."""
    recipe, items = drawn(seed, 1)
    about: dict[str, Any] = {"registry": REGISTRY, "run_id": "r1"}

    def asked() -> dict[str, Any]:
        return {**about, "model": Judging(log=Log())}

    found = {name: end(way(recipe, items, **asked())) for name, way in WAYS.items()}
    found["run_recipe"] = end(run_recipe(recipe, items, runs=None, **asked()))
    found["journaled"] = end(run(recipe, items, runs=tmp_path, **asked()))
    for name, result in found.items():
        assert result == found["run"], name
    graph = compile_graph(recipe, registry=REGISTRY, model=Judging(log=Log()))
    out = graph.invoke({"items": items}, {"configurable": {"mergepoint_run_id": "r1"}})
    things = tuple(Thing.from_plain(one) for one in out["things"])
    assert (things, out["stopped"]) == (found["run"][3], found["run"][6])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_run_is_written_resumed_and_replayed(way: Way, tmp_path: Path) -> None:
    """With `runs` a journal is written, from which either kind goes on and is replayed."""
    for target, given in ((TREE, {"topic": "rain"}), (RECIPE, ["rain"])):
        done = way(target, given, model=echo(), runs=tmp_path / "runs")
        assert done.path_of_run == tmp_path / "runs" / done.run_id
        assert (done.path_of_run / "transcript.json").exists()
        idle = ScriptedModel()
        for again in (
            way(target, model=idle, runs=tmp_path / "runs", resume=done.run_id),
            way(target, model=idle, resume=done.path_of_run),
            way(target, given, model=idle, replay=done.path_of_run),
            way(target, given, model=idle, runs=tmp_path / "other", reuse=done.path_of_run),
        ):
            assert (again.text, again.usage.calls) == (
                done.text,
                done.usage.calls * (again.run_id == done.run_id),
            )
        assert idle.calls == []


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_run_in_memory_writes_nothing(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `runs` no file is made, and the result has its transcript all the same."""
    monkeypatch.chdir(tmp_path)
    for target, given in ((TREE, {"topic": "rain"}), (RECIPE, "rain")):
        done = way(target, given, model=echo())
        assert done.path_of_run is None
        assert done.transcript.text == done.text
        assert len(done.steps) == done.usage.calls == 2
    assert list(tmp_path.iterdir()) == []


def test_the_input_of_a_tree_may_be_said_in_several_ways() -> None:
    """A mapping is its inputs, a text a user message, a list the conversation."""
    tree = Block([Step("Go on.")])
    for given in ("Hi.", HumanMessage("Hi."), ["Hi."], [("user", "Hi.")]):
        done = run(tree, given, model=echo())
        assert [one.text for one in done.messages] == ["Hi.", "Go on.", "to Go on."]
        assert isinstance(done.messages[-1], AIMessage)
    assert run(TREE, {"topic": "rain"}, model=echo()).outputs == {"text": "to Describe rain."}
    assert run(TREE, "Hi.", inputs={"topic": "rain"}, model=echo()).messages[0].text == "Hi."


async def _aiter() -> Any:
    for content in ("a", "b"):
        yield content


def test_a_step_alone_takes_the_keys_that_it_reads() -> None:
    """It can't declare inputs; what is missing or unknown is told before a call."""
    step = Step(Template("{{ a }} and {{ b }}", defaults={"b": "b"}))
    for way in (run, run_async):
        model = ScriptedModel(default="x")
        done = way(step, inputs={"a": "me"}, model=model)
        assert [message.text for message in done.messages] == ["me and b", "x"]
    graph = compile_graph(step, model=ScriptedModel(default="x"))
    assert graph.invoke({"inputs": {"a": 1, "b": 2}})["messages"][0].text == "1 and 2"
    for inputs, problem in (({}, "input 'a' is missing"), ({"a": 1, "c": 2}, "input 'c' is not")):
        with pytest.raises(TreeError, match=problem):
            run(step, inputs=inputs, model="offline")


def test_the_input_of_a_recipe_may_be_said_in_several_ways() -> None:
    """A text, a mapping or a Thing is one item; what can be iterated is several."""

    def contents(given: Any) -> list[Any]:
        about: Any = {"model": echo(), "knobs": {}}
        return [thing.content for thing in run(RECIPE, given, **about).things]

    twice = ["to Say a.", "to Say a.", "to Say b.", "to Say b."]
    assert contents("a") == contents(Thing("a")) == twice[:2]
    assert contents(["a", "b"]) == contents(iter("ab")) == contents(_aiter()) == twice
    assert len(contents({"any": "data"})) == 2


@pytest.mark.parametrize(
    ("target", "given", "options", "error", "told"),
    [
        (TREE, 7, {}, StepError, "the input of a tree"),
        (TREE, {"topic": "a"}, {"inputs": {"topic": "b"}}, StepError, "given twice"),
        (TREE, "Hi.", {"messages": ["Hi."]}, StepError, "given twice"),
        (RECIPE, "a", {"items": ["b"]}, StepError, "given twice"),
        (RECIPE, None, {}, StepError, "items"),
        (TREE, {"topic": "a"}, {"knobs": {}}, StepError, "an option of a tree"),
        (RECIPE, "a", {"inputs": {}}, StepError, "an option of a recipe"),
        (TREE, {"topic": "a"}, {"modle": "offline"}, TypeError, "did you mean 'model'"),
        (TREE, {}, {"model": "offline"}, TreeError, "topic"),
        (TREE, {"topic": "a"}, {"resume": "r", "reuse": "s"}, StepError, "exclude"),
        (object(), None, {}, TargetError, "a tree, a recipe, a path or a name"),
    ],
)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_does_not_fit_is_told(
    way: Way, target: Any, given: Any, options: dict[str, Any], error: type[Exception], told: str
) -> None:
    """Inputs and options that don't fit the target are named."""
    with pytest.raises(error, match=f"(?i){told}"):
        way(target, given, **options)


def test_tokens_and_things_come_as_they_are_made() -> None:
    """Calls at every depth, Things at each stage and at the end, each with its path."""
    for events in (
        list(stream(RECIPE, ["a"], model=echo())),
        events_of(RECIPE, ["a"], model=echo()),
    ):
        kinds = [event.kind for event in events]
        assert {*kinds} == {"start", "token", "end", "stage", "thing", "result"}
        assert kinds.index("token") < kinds.index("end") < kinds.index("thing")
        things = [event.value for event in events if event.kind == "thing"]
        assert tuple(things) == last(events).things
        assert {event.path for event in events if event.kind == "stage"} == {
            "twice/stage_1/generate"
        }
        assert {event.path for event in events if event.kind in ("thing", "result")} == {"twice"}
        text = "".join(event.text for event in events if event.kind == "token")
        assert text.count("to Say a.") == 2


def test_a_recipe_goes_on_as_its_events_are_taken() -> None:
    """Who leaves a stream early causes no calls for the items that he has not asked for."""
    one = Recipe("one", (Stage("generate", params={"prompt": "Say {{ content }}."}),))
    model = echo()
    events = stream(one, [str(number) for number in range(50)], model=model)
    assert next(event for event in events if event.kind == "thing").value.content == "to Say 0."
    closing(events)
    assert len(model.calls) < 5

    async def main() -> None:
        events = astream(one, [str(number) for number in range(50)], model=model)
        async for event in events:
            if event.kind == "thing":
                break
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert len(model.calls) < 10


def closing(events: Iterator[Event]) -> None:
    """Close a generator."""
    events.close()  # type: ignore[attr-defined]


def test_a_recipe_ends_with_so_many_things() -> None:
    """`wanted` bounds the Things of every way to run a recipe."""
    for way in WAYS.values():
        assert len(way(RECIPE, ["a", "b"], model=echo(), wanted=3).things) == 3


def collect(found: Iterator[Event], events: list[Event]) -> None:
    """Add events to a list as they come."""
    for event in found:
        events.append(event)  # noqa: PERF402  (`extend` would lose those before an error)


def broken() -> ScriptedModel:
    """Return a model that fails at the second call."""
    return ScriptedModel(["first", ValueError("broken")])


def test_a_stream_tells_of_a_failure_and_raises_it(tmp_path: Path) -> None:
    """The events before an error come first, and what is written can be resumed."""
    tree = Block([Step("One.", name="one"), Step("Two.", name="two")], name="both")
    events: list[Event] = []
    with pytest.raises(ValueError, match="broken"):
        collect(stream(tree, model=broken(), runs=tmp_path, run_id="r"), events)
    assert [event.path for event in events if event.kind == "error"] == ["both/two"]
    done = run(tree, model=ScriptedModel(["second"]), runs=tmp_path, resume="r")
    assert done.text == "second"


def test_a_gate_is_answered_or_open(tmp_path: Path) -> None:
    """Decisions go to `answerer`; without them the run raises, and is resumed with them."""
    tree = Block([Gate(Step("Say a.", name="a"), name="gate")], name="gated")
    with pytest.raises(GateOpen):
        run(tree, model=echo(), runs=tmp_path, run_id="r")
    done = run(tree, runs=tmp_path, resume="r", model=echo(), answerer={"gated/gate": "approve"})
    assert done.text == "to Say a."


def test_a_name_stands_for_what_comes_along() -> None:
    """Every bundled graph and recipe is found by its name, and runs."""
    for name in graph_names():
        assert find_target(name).tree is not None
    for name in (*LIBRARY.names(), *recipe_graphs(), "research"):
        assert find_target(name).recipe is not None
    assert run("flat_chat", {"topic": "rivers"}, model="offline").text
    assert len(run("best_of_n", "Name a river.", model="offline").things) == 1


def test_a_path_stands_for_what_is_in_it(tmp_path: Path) -> None:
    """YAML files of either kind, Python objects and folders are targets."""
    (tmp_path / "tree.yaml").write_text(to_yaml(TREE), encoding="utf-8")
    (tmp_path / "twice.yaml").write_text(recipe_to_yaml(RECIPE), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(recipe_to_yaml(RECIPE), encoding="utf-8")
    (tmp_path / "targets_of_test.py").write_text(
        "from mergepoint import Recipe, Stage, Step\n"
        "tree = Step('Say a.', name='a')\n"
        "twice = Recipe('twice', (Stage('generate'),))\n"
        "def made(): return tree\n"
        "number = 7\n",
        encoding="utf-8",
    )
    assert find_target(tmp_path / "tree.yaml").tree == TREE
    assert find_target(str(tmp_path / "tree.yaml")).recipe is None
    for place in (tmp_path / "twice.yaml", tmp_path, str(tmp_path)):
        assert find_target(place).recipe == RECIPE
    module = str(tmp_path / "targets_of_test.py")
    assert (
        find_target(module).tree == find_target(f"{module}:made").tree == Step("Say a.", name="a")
    )
    assert find_target(f"{module}:twice").recipe is not None
    for wrong, told in (("number", "not a tree"), ("mad", "made"), ("nothing", "tree, twice")):
        with pytest.raises(TargetError, match=told):
            find_target(f"{module}:{wrong}")


def test_recipes_beside_a_file_are_found(tmp_path: Path) -> None:
    """A recipe in a file may name another in the same folder."""
    inner = Recipe("inner", RECIPE.stages)
    (tmp_path / "inner.yaml").write_text(recipe_to_yaml(inner), encoding="utf-8")
    (tmp_path / "outer.yaml").write_text(
        recipe_to_yaml(Recipe("outer", (Stage("inner"),))), encoding="utf-8"
    )
    done = run(tmp_path / "outer.yaml", "a", model=echo())
    assert [thing.content for thing in done.things] == ["to Say a."] * 2


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    """An unknown name, a missing file and a broken one say what is wrong."""
    with pytest.raises(TargetError, match="did you mean 'flat_chat'"):
        find_target("flat_chatt")
    with pytest.raises(TargetError, match="did you mean 'best_of_n'"):
        find_target("best_of_m")
    with pytest.raises(TargetError, match="no file"):
        find_target(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [", encoding="utf-8")
    with pytest.raises(TreeError, match=r"broken\.yaml"):
        find_target(broken)
    broken.write_text("name: x\nstages: [{type: generat}]\nabut: y\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"(?s)generat.*abut"):
        find_target(broken)


def test_every_option_is_described() -> None:
    """The docstring of `run` has each option, and no other."""
    told = str(run.__doc__).partition("Keyword Args:\n")[2].partition("\n\n")[0]
    names = [line.strip().partition(":")[0] for line in told.splitlines() if line[8] != " "]
    assert sorted(names) == sorted(AnyOptions.__annotations__)


def test_any_target_is_compiled(tmp_path: Path) -> None:
    """Trees, recipes, files and names give the graph of what they stand for."""
    (tmp_path / "twice.yaml").write_text(recipe_to_yaml(RECIPE), encoding="utf-8")
    given: Any
    for target, given in (
        ("flat_chat", {"inputs": {"topic": "rivers"}}),
        ("best_of_n", {"items": ["Name a river."]}),
        (tmp_path / "twice.yaml", {"items": ["a"]}),
        (RECIPE, {"items": ["a"]}),
        (TREE, {"inputs": {"topic": "rain"}}),
    ):
        graph = compile_graph(target, model="offline")
        found = graph.invoke(given)
        ran = run(target, *given.values(), model="offline")
        if "things" in found:
            assert tuple(Thing.from_plain(one) for one in found["things"]) == ran.things
        else:
            assert found["messages"][-1].text == ran.text
    with pytest.raises(StepError, match="'form' isn't an option of a recipe"):
        compile_graph("best_of_n", form="fused")
    with pytest.raises(StepError, match="'knobs' isn't an option of a tree"):
        compile_graph("flat_chat", knobs={})
    with pytest.raises(TypeError, match="did you mean 'checkpointer'"):
        compile_graph(TREE, checkpoint=None)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("compiled", "options"),
    [(compile_tree, TreeGraphOptions), (compile_recipe, RecipeGraphOptions)],
)
def test_the_options_of_graphs_are_those_that_are_declared(compiled: Way, options: Any) -> None:
    """`compile_graph` takes what the compilers of trees and of recipes take."""
    known = [one.name for one in signature(compiled).parameters.values() if one.kind is KEYWORD]
    assert sorted(known) == sorted(options.__annotations__)


def test_leaving_a_stream_needs_no_closing(capfd: pytest.CaptureFixture[str]) -> None:
    """Who leaves a stream on an event loop early hears of no generator that is still open."""

    async def first(target: Any, given: Any) -> Event:
        async for event in astream(target, given, model=echo()):
            if event.kind == "end":
                return event
        raise AssertionError("nothing ended")

    assert asyncio.run(first(RECIPE, ["a", "b"])).path.startswith("twice/")
    assert asyncio.run(first(TREE, {"topic": "rain"})).path.startswith("describe/")
    assert capfd.readouterr().err == ""
