"""Recipes on LangGraph: the same Things and calls, steps to show, to keep and to go on from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from pydantic import ValidationError
from tests.engine.engines import ENGINES, Engine
from tests.engine.inner import listening
from typing_extensions import TypedDict

from mergepoint import Block, Call
from mergepoint.core.errors import RecipeError, ReplayMiss, StepError, TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import LIBRARY
from mergepoint.streams.thing import Thing
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import simulate

QUESTIONS = [
    Thing("Is rain wet?", {"question": "Is rain wet?"}),
    Thing("Why is the sky blue?", {"question": "Why is the sky blue?"}),
]
GATHER = Stage("accumulate")
MORE = Stage("generate", params={"n": 2, "prompt": "Say {{ content }}."})
SHORT = Stage("apply", params={"prompt": "Shorten {{ content }}"})
INNER = Recipe("inner", (SHORT, GATHER, SHORT))
OUTER = Recipe("outer", (MORE, Stage(INNER), GATHER, Stage("vote")))


def echo() -> ScriptedModel:
    """Return a model that repeats what it is asked."""
    return ScriptedModel(default=lambda messages: f"to {messages[-1].text}")


def things_of(out: dict[str, Any]) -> tuple[Thing, ...]:
    """Return the Things that a graph gave."""
    return tuple(Thing.from_plain(one) for one in out["things"])


def thread(name: str = "t") -> Any:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": name}}


def records(folder: Path, run_id: str) -> list[tuple[str, str, Any]]:
    """Return path, answer and value of what is on record, in the order of paths.

    In which order Things left their stages, as the end tells it, is another on a graph.
    """
    return sorted(
        (one.path, one.response, _value(one)) for one in FileStore(folder).read(run_id)[1]
    )


def _value(record: CallRecord) -> str:
    if not record.path.endswith("/end"):
        return str(record.value)
    return str({**record.value, "lineage": sorted(map(str, record.value["lineage"]))})


@pytest.mark.first_case
@pytest.mark.parametrize("name", LIBRARY.names())
def test_a_recipe_of_the_library_gives_the_same_on_a_graph(name: str, tmp_path: Path) -> None:
    """Things with ids and histories, the reason to stop, and the journal are those of a run."""
    needed = dict.fromkeys(LIBRARY.find(name).needs, "a sceptic")
    items = [Thing(one.content, {**needed, **one.props}) for one in QUESTIONS]
    graph = compile_recipe(name, model="offline", journal=tmp_path)
    out = graph.invoke({"items": items}, {"configurable": {"mergepoint_run_id": "graph"}})
    done = run_recipe(name, items, model="offline", runs=tmp_path, run_id="plain")
    assert things_of(out) == done.things
    assert out["stopped"] == done.stopped
    assert records(tmp_path, "graph") == records(tmp_path, "plain")
    assert done.workflow is not None
    assert Thing.from_plain(out["workflow"]).content == done.workflow.content


def stages(depth: int = 2) -> st.SearchStrategy[tuple[Stage, ...]]:
    """Return stages that fit one after the other, with recipes of all kinds among them."""
    simple = [MORE, SHORT, GATHER, Stage("group_by", params={"by": "content"})]
    simple += [Stage("checkpoint", params={"name": "here"}), Stage("dedupe")]
    one = st.sampled_from(simple)
    if depth:
        kinds = st.sampled_from(["", "each", "recurrent", "where", "deadline"])
        one = one | st.builds(nested, stages(depth - 1), kinds)
    return st.lists(one, min_size=1, max_size=4).map(tuple)


def nested(inside: tuple[Stage, ...], kind: str) -> Stage:
    """Return a recipe in a recipe: in a row, by item, around and around, for some, or timed."""
    if kind == "recurrent":
        inside = (SHORT,)
    rails = {"max_iterations": 2, "deadline": 3600.0 if kind == "deadline" else None}
    about: dict[str, Any] = {kind: True} if kind in ("each", "recurrent") else {}
    some: Any = {"content": {"matches": "a"}} if kind == "where" else None
    return Stage(Recipe("nested", inside, rails=rails, **about), where=some)


def has_checkpoint(inside: tuple[Stage, ...]) -> bool:
    """Return whether there is a checkpoint in it, at any depth."""
    return any(
        has_checkpoint(stage.type.stages)
        if isinstance(stage.type, Recipe)
        else stage.type == "checkpoint"
        for stage in inside
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stages(), st.sampled_from([1, 4]), st.sampled_from([None, 7]))
def test_a_random_recipe_gives_the_same_on_a_graph(
    inside: tuple[Stage, ...], concurrency: int, calls: int | None
) -> None:
    """Whatever stands in whatever, on an event loop too, and with a budget that ends it."""
    recipe = Recipe("any", inside, concurrency=concurrency)
    bounded = concurrency == 1 and calls and not has_checkpoint(inside)  # it goes in other order
    limits: dict[str, Any] = {"budget": {"calls": calls}} if bounded else {}
    model, other = echo(), echo()
    graph = compile_recipe(recipe, model=model, **limits)
    out = asyncio.run(graph.ainvoke({"items": ["a", "b"]}))
    done = run_recipe(recipe, ["a", "b"], model=other, runs=None, **limits)
    assert things_of(out) == done.things
    assert (len(model.calls), out["stopped"]) == (len(other.calls), done.stopped)


def test_stages_and_recipes_inside_are_in_the_drawing() -> None:
    """Each stage is a node, a recipe inside is a box, and a segment ends before each barrier."""
    graph = compile_recipe(OUTER, model=echo())
    drawn = graph.get_graph(xray=True)
    way = {one.source: one.target for one in drawn.edges}
    names, at = [], "__start__"
    while at != "__end__":
        at = way[at]
        names.append(at.rpartition(":")[2])
    assert names == [
        "outer.stage_1.generate",
        "outer.stage_2.inner.stage_1.apply",
        "outer.stage_2.inner.drain_1",
        "outer.stage_2.inner.stage_2.accumulate",
        "outer.stage_2.inner.stage_3.apply",
        "outer.drain_2",
        "outer.stage_3.accumulate",
        "outer.stage_4.vote",
        "outer.drain_3",
        "__end__",
    ]
    text = drawn.draw_mermaid()
    assert "subgraph outer.stage_2.inner\n" in text


def test_one_recipe_in_many_places_is_drawn_many_times() -> None:
    """Boxes are named by their place, so that two of one recipe stand side by side."""
    twice = Recipe("twice", (Stage(INNER), Stage(INNER)))
    whole = Recipe("whole", (Stage(twice), Stage(twice)))
    text = compile_recipe(whole, model=echo()).get_graph(xray=True).draw_mermaid()
    assert text.count("subgraph") == 2 + 4


def test_things_go_out_as_they_leave() -> None:
    """Who streams has each Thing when it is finished, and not at the end."""
    model = echo()
    graph = compile_recipe(Recipe("two", (MORE, SHORT)), model=model)

    def taken() -> Iterator[tuple[str, int]]:
        for event in graph.stream({"items": ["a", "b"]}, stream_mode="custom"):
            yield event["thing"]["id"], len(model.calls)

    assert [name for name, _ in taken()] == ["0.0", "0.1", "1.0", "1.1"]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_thing_is_there_when_its_last_call_has_ended(seed: int) -> None:
    """Four stages of 20 ms give the first of sixteen after 80 ms of the engine's own time."""
    model = ScriptedModel(default=lambda messages: Answer("so", delay=0.02))
    stages = (Stage("apply", params={"prompt": "{{ content }}"}, concurrency=4),) * 4
    graph = compile_recipe(Recipe("four", stages), model=model)

    async def first() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        items = {"items": [str(number) for number in range(16)]}
        async for _ in graph.astream(items, stream_mode="custom"):
            return loop.time() - begun, len(model.calls)
        return 0.0, 0

    seconds, calls = simulate(first, seed=seed)
    assert seconds == pytest.approx(0.08, abs=1e-6)
    assert calls < 64


class _Breaking:
    """A model's answers, of which one is an error."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.seen: list[str] = []
        self.broken = True

    def __call__(self, messages: tuple[BaseMessage, ...]) -> str | Exception:
        text = str(messages[-1].text)
        self.seen.append(text)
        return TimeoutError("slow") if self.broken and self.at in text else f"to {text}"


@pytest.mark.parametrize("journal", ["none", "files"])
def test_a_graph_that_failed_goes_on_by_its_thread(journal: str, tmp_path: Path) -> None:
    """Finished segments are not worked on again; with a journal no finished call is made again."""
    says = _Breaking("Last to Shorten to Say b.")
    recipe = Recipe(
        "parts", (MORE, SHORT, GATHER, Stage("apply", params={"prompt": "Last {{ content }}"}))
    )
    graph = compile_recipe(
        recipe,
        model=ScriptedModel(default=says),
        checkpointer=InMemorySaver(),
        journal=tmp_path if journal == "files" else None,
    )
    with pytest.raises(TimeoutError):
        graph.invoke({"items": ["a", "b"]}, thread())
    says.broken, before = False, len(says.seen)
    out = graph.invoke(None, thread())
    again = says.seen[before:]
    assert len(again) == (2 if journal == "files" else 4)
    assert all(text.startswith("Last") for text in again)
    assert things_of(out) == run_recipe(recipe, ["a", "b"], model=echo(), runs=None).things
    assert graph.invoke(None, thread())["things"] == out["things"]


def test_without_a_checkpointer_the_journal_goes_on(tmp_path: Path) -> None:
    """The run is found by its id, and what was answered is not asked again."""
    says = _Breaking("Say b.")
    recipe = Recipe("parts", (MORE, GATHER, SHORT))
    graph = compile_recipe(recipe, model=ScriptedModel(default=says), journal=tmp_path)
    config: Any = {"configurable": {"mergepoint_run_id": "r1"}}
    with pytest.raises(TimeoutError):
        graph.invoke({"items": ["a", "b"]}, config)
    says.broken = False
    out = graph.invoke({"items": ["a", "b"]}, config)
    assert (out["run_id"], len(says.seen)) == ("r1", 9)
    whole = run_recipe(recipe, model=ScriptedModel([]), runs=tmp_path, resume="r1")
    assert things_of(out) == whole.things


def test_each_run_of_a_thread_has_a_journal(tmp_path: Path) -> None:
    """Other items on the same thread are another run; the same ones find theirs."""
    model = echo()
    graph = compile_recipe(
        Recipe("one", (SHORT,)), model=model, journal=tmp_path, checkpointer=InMemorySaver()
    )
    ids = [graph.invoke({"items": [item]}, thread())["run_id"] for item in "aba"]
    assert (ids, len(model.calls)) == (["t", "t.2", "t"], 2)


def test_a_changed_recipe_is_refused_and_may_reuse(tmp_path: Path) -> None:
    """A journal of another recipe names the stages; a new run takes over what is the same."""
    run_recipe(Recipe("one", (MORE,)), ["a"], model=echo(), runs=tmp_path, run_id="r1")
    more = Recipe("one", (MORE, SHORT))
    config: Any = {"configurable": {"mergepoint_run_id": "r1"}}
    with pytest.raises(TreeError, match="one/stage_2/apply: is another than"):
        compile_recipe(more, model=echo(), journal=tmp_path).invoke({"items": ["a"]}, config)
    paid = echo()
    compile_recipe(more, model=paid, journal=tmp_path, reuse="r1").invoke({"items": ["a"]})
    assert len(paid.calls) == 2
    strict = compile_recipe(more, model=echo(), replay=tmp_path / "r1")
    with pytest.raises(ReplayMiss):
        strict.invoke({"items": ["a"]})


def test_the_plan_is_in_the_state_and_can_be_changed() -> None:
    """A thread's plan has a step a stage; one who changes params there changes what is asked."""
    saver = InMemorySaver()
    says = _Breaking("Shorten to Say b.")
    recipe = Recipe("parts", (MORE, GATHER, SHORT))
    graph = compile_recipe(recipe, model=ScriptedModel(default=says), checkpointer=saver)
    with pytest.raises(TimeoutError):
        graph.invoke({"items": ["a", "b"]}, thread())
    inside: Any = graph.get_state(thread(), subgraphs=True).tasks[0].state
    steps = inside.values["plan"]
    assert [step["stage_id"] for step in steps] == [
        "parts.stage_1.generate",
        "parts.stage_2.accumulate",
        "parts.stage_3.apply",
    ]
    told = {"stage_id": "parts.stage_3.apply", "params": {"prompt": "Stretch {{ content }}"}}
    graph.update_state(inside.config, {"plan": [told]})
    out = graph.invoke(None, thread())
    assert things_of(out)[0].content == "to Stretch to Say a."


def test_a_graph_runs_where_an_event_loop_runs_already() -> None:
    """As in a notebook: `invoke` within a running loop gives what it gives outside."""
    graph = compile_recipe(OUTER, model=echo())

    async def inside() -> dict[str, Any]:
        out: dict[str, Any] = graph.invoke({"items": ["a"]})
        return out

    assert things_of(asyncio.run(inside())) == things_of(graph.invoke({"items": ["a"]}))


class _Host(TypedDict):
    items: list[Any]
    things: list[Any]


def test_a_recipe_is_a_node_of_a_host(tmp_path: Path) -> None:
    """Its calls are at the host's path, in the host's journal."""
    host: Any = StateGraph(_Host)
    host.add_node("ask", compile_recipe(Recipe("one", (SHORT,)), model=echo()))
    host.add_edge(START, "ask")
    host.add_edge("ask", END)
    recorder = Recorder()
    out = host.compile().invoke({"items": ["a"]}, {"callbacks": [recorder]})
    assert out["things"][0]["content"] == "to Shorten a"
    assert [one.key.full_path for one in recorder.journal.records] == [
        "ask/one/stage_1/apply/0/call_01"
    ]


def test_items_are_contents_or_things() -> None:
    """A Thing in plain form is told by its keys; a mapping is a content like any other."""
    graph = compile_recipe(Recipe("one", (GATHER,)))
    plain = Thing("b", {"n": 1}).to_plain()
    out = graph.invoke({"items": [{"a": 1}, plain, Thing("c", {"n": 2})]})
    assert [(one.content, one.props.get("n")) for one in things_of(out)] == [
        ({"a": 1}, None),
        ("b", 1),
        ("c", 2),
    ]


def test_a_graph_is_checked_when_it_is_compiled() -> None:
    """Faults of the recipe are told before anything runs."""
    with pytest.raises(RecipeError, match="no block or recipe is named 'aply'"):
        compile_recipe(Recipe("one", (Stage("aply"),)))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_compiled_recipe_is_a_call_too(engine: Engine) -> None:
    """As any graph in a Call, its calls are at paths below; the result is what the graph gives."""
    graph = compile_recipe(Recipe("one", (SHORT,)), model=echo())
    recorder = listening()
    call = Call(graph, name="ask", args={"items": ["a"]}, capture_key="said")
    end = engine(Block([call], name="root"), echo(), recorder=recorder)
    assert end.outputs["said"]["things"][0]["content"] == "to Shorten a"
    assert [one.path for one in recorder.journal.records] == [
        "root/ask/one/stage_1/apply/0/call_01",
        "root/ask",
    ]


def test_a_graph_with_a_journal_in_a_call_writes_into_no_other(tmp_path: Path) -> None:
    """Its calls and its end are in its own journal, and the run around has the Call alone."""
    graph = compile_recipe(INNER, model=echo(), journal=tmp_path)
    call = Call(graph, name="ask", args={"items": ["a"]})
    recorder = Recorder()
    ENGINES[0](Block([call], name="root"), echo(), recorder=recorder)
    assert [one.path for one in recorder.journal.records] == ["root/ask"]
    (run,) = FileStore(tmp_path).runs()
    assert [one.path for one in FileStore(tmp_path).read(run)[1]][-1] == "inner/end"


def test_a_recipe_is_a_tool_of_its_items() -> None:
    """A model reads the content of what comes out, sync and async; the result goes along."""
    answers = Recipe("say_it", (Stage("generate"),), about="Answers questions.")
    model = ScriptedModel(default=lambda messages: f"[{messages[-1].text}]")
    tool = compile_recipe(answers, model=model).as_tool()
    assert (tool.name, tool.description, list(tool.args)) == (
        "say_it",
        "Answers questions.",
        ["items"],
    )
    assert tool.args["items"]["type"] == "array"
    assert tool.invoke({"items": ["a"]}) == "[a]"
    assert asyncio.run(tool.ainvoke({"items": ["a", "b"]})) == '["[a]", "[b]"]'
    call = {"type": "tool_call", "id": "c1", "name": "say_it", "args": {"items": ["a"]}}
    message = tool.invoke(call)
    assert (message.content, message.artifact["things"][0]["content"]) == ("[a]", "[a]")
    with pytest.raises(ValidationError):
        tool.invoke({"item": ["a"]})


def test_a_recipe_that_fails_as_a_tool_says_why() -> None:
    """What failed is left out; where nothing else is, it is an error."""
    model = ScriptedModel(default=lambda messages: " " if "bad" in messages[-1].text else "good")
    tool = compile_recipe(Recipe("say", (Stage("generate"),)), model=model).as_tool()
    assert tool.invoke({"items": ["bad", "a"]}) == "good"
    with pytest.raises(StepError, match="the recipe 'say' failed: no answer that fits in 2"):
        tool.invoke({"items": ["bad"]})
