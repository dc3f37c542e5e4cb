"""Conversation trees as blocks: each Thing has a conversation of its own, on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from mergepoint import Block, Call, Gate, Loop, Policy, Step, Template
from mergepoint.core.errors import RecipeError
from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import load_recipe, recipe_from_yaml
from mergepoint.streams.thing import Thing, fold
from mergepoint.targets import find_target
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.simulated_time import FakeClock

TREE = Block(
    [
        Step("Draft it.", name="draft", capture_key="first"),
        Step(Template("Revise {{ first }}"), name="revise"),
    ],
    name="essay",
)
TEXT = """
name: essay
nodes:
  - {name: draft, prompt: Draft it., capture_key: first}
  - {name: revise, prompt: {template: "Revise {{ first }}"}}
"""


class Says:
    """A model's answers: what it is asked, with how much it saw before."""

    def __init__(self, *, broken: int = 0) -> None:
        self.broken = broken
        self.seen: list[str] = []

    def __call__(self, messages: tuple[BaseMessage, ...]) -> str | Exception:
        """Return the answer to a conversation."""
        self.seen.append(str(messages[-1].text))
        if len(self.seen) == self.broken:
            return TimeoutError("slow")
        return f"{len(messages)}<{messages[-1].text}>"


def recipe(tree: Any = TREE, **params: Any) -> Recipe:
    """Return a recipe of one tree."""
    return Recipe("talks", (Stage("pipeline", params={"tree": tree, **params}, concurrency=2),))


def run(made: Recipe, items: Any = None, *, says: Says | None = None, **options: Any) -> Any:
    """Run a recipe in memory unless told otherwise."""
    model = ScriptedModel(default=says or Says())
    return run_recipe(made, items, **{"model": model, "runs": None, **options})


@pytest.mark.parametrize("tree", [TREE, TEXT])
def test_each_thing_has_a_conversation(tree: Any) -> None:
    """The content is its first message, the last response the new content, captures are props."""
    done = run(recipe(tree), ["a", Thing("b", {"x": 1})])
    first, second = done.things
    assert first.content == "4<Revise 2<Draft it.>>"
    assert (first.props["first"], second.props["x"]) == ("2<Draft it.>", 1)
    assert first == fold(first.history)
    (entry,) = first.history[1:]
    assert entry.calls == (
        "talks/stage_1/pipeline/0/run_01/essay/draft",
        "talks/stage_1/pipeline/0/run_01/essay/revise",
    )
    assert (entry.model, entry.stage_id) == ("scripted:scripted", "talks.stage_1.pipeline")
    assert done.usage.calls == 4


def test_a_tree_stands_in_yaml_as_text_as_it_is_or_in_a_file(tmp_path: Path) -> None:
    """All three give the same Things."""
    file = tmp_path / "essay.yaml"
    file.write_text(TEXT, encoding="utf-8")
    indented = TEXT.strip().replace("\n", "\n        ")
    head = "name: talks\nstages:\n  - type: pipeline\n    params:\n      tree:"
    told = [
        f"{head} |\n        {indented}\n",
        f"{head}\n        {indented}\n",
        f"{head} {file}\n",
    ]
    plain = run(recipe(), ["a"]).things
    assert all(run(recipe_from_yaml(text), ["a"]).things == plain for text in told)


def test_a_graph_that_comes_along_is_named() -> None:
    """Its one input takes the content, and its captures are props, as of any tree."""
    graph = find_target("flat_chat").tree
    named, given = (run(recipe(tree), ["cats"]).things for tree in ("flat_chat", graph))
    assert named == given
    assert "cats" in named[0].content


def test_a_tree_lies_beside_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`{{ here }}` finds it from wherever one stands; faults name the recipe's file and line."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "essay.yaml").write_text(TEXT, encoding="utf-8")
    file = tmp_path / "there" / "talks.yaml"
    text = 'name: talks\nstages:\n  - type: pipeline\n    params: {tree: "{{ here }}/essay.yaml"}\n'
    file.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(load_recipe(file), ["a"]).things == run(recipe(), ["a"]).things
    for wrong, problem in (
        ("{{ here }}/esay.yaml", "there/esay.yaml"),
        ("falt_chat", "did you mean 'flat_chat'"),
    ):
        file.write_text(text.replace("{{ here }}/essay.yaml", wrong), encoding="utf-8")
        with pytest.raises(RecipeError, match=rf"talks\.yaml:4: talks.stage_1.*{problem}"):
            run(load_recipe(file), ["a"])
    (tmp_path / "there" / "essay.yaml").write_text("nodes:\n- {promt: x}\n", encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"(?s)talks\.yaml:4: .*essay\.yaml:2: .*promt"):
        run(load_recipe(file), ["a"])


def test_inputs_are_given_the_content_or_props() -> None:
    """One input alone takes the content, and no message goes in; else they are named."""
    step = Step(Template("About {{ topic }}"), name="write")
    alone = Block([step], name="essay", inputs=("topic",))
    assert run(recipe(alone), ["cats"]).things[0].content == "1<About cats>"
    named = recipe(alone, inputs={"topic": "theme"})
    made = Recipe("talks", named.stages, needs=("theme",))
    (thing,) = run(made, [Thing("cats", {"theme": "dogs"})]).things
    assert thing.content == "2<About dogs>"
    with pytest.raises(RecipeError, match="needs the prop 'theme', which no earlier stage adds"):
        run(named, ["cats"])


def test_captures_are_named() -> None:
    """Props have the names that are wanted, and only what is wanted is kept."""
    (thing,) = run(recipe(props={"first": "draft"}), ["a"]).things
    assert dict(thing.props) == {"draft": "2<Draft it.>"}
    (bare,) = run(recipe(props={}), ["a"]).things
    assert dict(bare.props) == {}


@pytest.mark.parametrize(
    ("tree", "params", "problem"),
    [
        (TREE, {"inputs": {"topik": "x"}}, "the tree has no input 'topik'"),
        (TREE, {"props": {"frist": "x"}}, r"no capture 'frist' \(did you mean 'first'\?\)"),
        (Step("Say.", capture_key="content"), {}, "'content' is a field of every Thing"),
        (Gate(Step("Say.")), {}, "a gate can't be answered in a stream"),
        ("nodes: [{prompt: }]", {}, "tree: "),
        ("no_module:tree", {}, "tree: 'no_module:tree': a recipe can't load Python code"),
        (
            "essay.py:tree",
            {},
            "a recipe can't load Python code; in YAML, a tree is the name of a bundled graph",
        ),
        ("essay.py", {}, "a recipe can't load Python code"),
        ("flat_chatt", {}, r"no graph is named 'flat_chatt' \(did you mean 'flat_chat'\?\)"),
        ("plan_approve", {}, "a gate can't be answered in a stream"),
        ("nowhere.yaml", {}, "nowhere.yaml"),
        (7, {}, "a tree is a node, or the name"),
    ],
)
def test_what_is_wrong_with_a_tree_is_told_before_it_runs(
    tree: Any, params: Any, problem: str
) -> None:
    """Names, gates, files and faults of the tree, with the stage."""
    with pytest.raises(RecipeError, match=problem) as caught:
        run(recipe(tree, **params), ["a"])
    assert "talks.stage_1.pipeline" in str(caught.value)


def test_a_run_goes_on_inside_of_a_tree(tmp_path: Path) -> None:
    """A step that was answered is not asked again, of whichever Thing."""
    with pytest.raises(TimeoutError):
        run(recipe(), ["a", "b"], says=Says(broken=4), runs=tmp_path, run_id="r1")
    known = sum(one.answered for one in FileStore(tmp_path).read("r1")[1])
    rest = Says()
    done = run(recipe(), says=rest, runs=tmp_path, resume="r1")
    assert (known, len(rest.seen)) == (3, 1)
    assert done.things == run(recipe(), ["a", "b"]).things
    again = run(recipe(), ["a", "b"], says=Says(broken=1), runs=tmp_path, replay="r1")
    assert again.things == done.things


def test_budgets_stand_beside_each_other() -> None:
    """A tree's own ends the conversation of one Thing; the recipe's ends the stage."""
    tight = Block(TREE.nodes, name="essay", budget={"calls": 1})
    done = run(recipe(tight), ["a", "b"])
    assert [thing.props["status"] for thing in done.things] == ["failed", "failed"]
    assert "essay" in done.things[0].props["reason"]
    railed = Recipe("talks", recipe().stages, rails={"calls": 3})
    ended = run(railed, ["a", "b"])
    assert ([thing.id for thing in ended.things], ended.workflow.props["stopped"]) == (
        ["0"],
        "calls",
    )


def test_what_its_budget_leaves_out_is_left_out_in_a_stream() -> None:
    """A block that goes on without what does not fit keeps what it has."""
    keeps = Block(TREE.nodes, name="essay", budget={"calls": 1, "on_exhausted": "keep"})
    (thing,) = run(recipe(keeps), ["a"]).things
    assert thing.content == "2<Draft it.>"


def test_the_policy_of_the_stage_is_for_steps_that_have_none() -> None:
    """A step of the tree that has a policy keeps it; in loops and blocks, too."""
    inside = [Step("One."), Step("Two.", policy=Policy(retry=2))]
    tree = Block([Loop(inside, until=lambda ctx: True, max_iterations=2)], name="essay")
    patient = Recipe("talks", (Stage("pipeline", params={"tree": tree}, policy={"retry": 3}),))
    down = [ConnectionError("down")] * 2
    with FakeClock():
        done = run_recipe(patient, ["a"], model=ScriptedModel([*down, "x", "y"]), runs=None)
        with pytest.raises(ConnectionError):
            run_recipe(patient, ["a"], model=ScriptedModel(["x", *down]), runs=None)
    assert done.things[0].content == "y"


def test_one_thing_that_fails_stops_no_other() -> None:
    """A loop that never ends, and a blank answer, are the failure of their Thing."""
    inside: list[Any] = [Step("More."), Call(never, capture_key="over")]
    faulty = Loop(inside, until="over", max_iterations=2, name="essay")
    (thing,) = run(recipe(faulty), ["a"]).things
    assert (thing.props["status"], "2 iterations" in thing.props["reason"]) == ("failed", True)
    blank = run_recipe(recipe(), ["a"], model=ScriptedModel(default=" "), runs=None)
    assert blank.things[0].props["status"] == "failed"
    assert "blank" in blank.things[0].props["reason"]


def never(ctx: Any) -> bool:
    """Return nothing that a loop waits for."""
    return False


def test_a_tree_goes_round_with_its_thing() -> None:
    """In a recurrent recipe each round is a conversation of its own, on record as another."""
    stages = (Stage("pipeline", params={"tree": Step("Again.")}),)
    looped = Recipe("loop", stages, recurrent=True, rails={"max_iterations": 2})
    (thing,) = run(looped, ["a"]).things
    calls = [call for entry in thing.history for call in entry.calls]
    assert calls == [
        "loop/stage_1/pipeline/0/run_01/step_01",
        "loop/stage_1/pipeline/0/run_02/step_01",
    ]
