"""replan: a model chooses stages, which are checked, run below it, and are found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from mergepoint.core.errors import RecipeError
from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.params import Params
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import Library
from mergepoint.streams.registry import Registry, block
from mergepoint.streams.thing import Thing, fold
from mergepoint.testing.scripted_model import ScriptedModel

REGISTRY = Registry(package="mergepoint.streams.blocks")


class Shout(Params):
    """How loud."""

    marks: int = 1


@block("shout", params=Shout, adds=["loud"], registry=REGISTRY)
async def shout(
    items: AsyncIterator[Thing], params: Shout, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Say it louder."""
    async for thing in items:
        yield thing.redrafted(f"{thing.content}{'!' * params.marks}").plus(loud=True)


def stage(type: str, **params: Any) -> dict[str, Any]:  # noqa: A002  (the word of recipes)
    """Return a proposed stage."""
    return {"type": type, "params": params}


class Proposing:
    """A model that proposes one thing after the other, and answers the rest with the prompt."""

    def __init__(self, *proposals: Any, broken: int = 0) -> None:
        self.proposals = list(proposals)
        self.asked: list[str] = []
        self.seen: list[str] = []
        self.broken = broken

    def __call__(self, messages: tuple[BaseMessage, ...]) -> Any:
        """Return the answer to a conversation."""
        text = str(messages[-1].text)
        self.seen.append(text)
        if len(self.seen) == self.broken:
            return TimeoutError("slow")
        if not text.startswith("Decide what to try next"):
            return f"<{text}>"
        self.asked.append(text)
        made = self.proposals.pop(0) if len(self.proposals) > 1 else self.proposals[0]
        return {"reason": "because", "stages": made}


TRY = Recipe("tries", (Stage("replan"),))


def run(says: Proposing, items: Any = ("a",), *, recipe: Recipe = TRY, **options: Any) -> Any:
    """Run a recipe in memory unless told otherwise."""
    given: dict[str, Any] = {"registry": REGISTRY, "runs": None, **options}
    return run_recipe(recipe, items, model=ScriptedModel(default=says), **given)


def test_what_is_proposed_runs_on_the_thing() -> None:
    """Its stages are below the replan, in the history; blocks and recipes of the library alike."""
    says = Proposing([stage("shout", marks=2), stage("apply", prompt="More {{ content }}")])
    (thing,) = run(says).things
    assert thing.content == "<More a!!>"
    assert thing == fold(thing.history)
    assert [entry.stage_id for entry in thing.history[1:]] == [
        "tries.stage_1.replan",
        "tries.stage_1.replan.0.proposal_1.stage_1.shout",
        "tries.stage_1.replan.0.proposal_1.stage_2.apply",
    ]
    assert thing.props["proposal"][0] == stage("shout", marks=2)
    assert "shout at tries.stage_1.replan.0.proposal_1.stage_1.shout" in str(thing.why("loud"))


def test_a_recipe_of_the_library_is_proposed_as_a_stage() -> None:
    """best_of_n by name, with a knob; its children leave in the place of the Thing."""
    says = Proposing([stage("self_consistency", n=2)])
    (thing,) = run(says).things
    assert thing.history[-1].stage_id.startswith(
        "tries.stage_1.replan.0.proposal_1.stage_1.self_consistency."
    )


def test_each_thing_has_a_proposal_of_its_own() -> None:
    """What one goes through is nothing to the others, at any concurrency."""
    loud, soft = [stage("shout")], [stage("apply", prompt="Soft {{ content }}")]
    wide = Recipe("tries", (Stage("replan"),), concurrency=4)

    class Two(Proposing):
        def __call__(self, messages: tuple[BaseMessage, ...]) -> Any:
            self.proposals = [loud if "Text:\na\n" in str(messages[-1].text) else soft]
            return super().__call__(messages)

    done = run(Two(loud), ["a", "b"], recipe=wide)
    assert [thing.content for thing in done.things] == ["a!", "<Soft b>"]
    assert done.things == run(Two(loud), ["a", "b"]).things


@pytest.mark.parametrize(
    ("proposal", "problem"),
    [
        ([stage("shot")], r"'shot' may not be proposed (did you mean 'shout'?)"),
        ([stage("shout", marks="many")], "shout: marks: input should be a valid integer"),
        ([stage("shout", loud=1)], "no such param"),
        ([stage("synthesize", strategy="top_k", by="score")], "needs the prop 'score'"),
        ([stage("retrieve", folder="/etc")], "'retrieve' may not be proposed"),
        ([stage("pipeline", tree="/etc/secret.yaml")], "'pipeline' may not be proposed"),
        ([stage("tool", function="os:system")], "'tool' may not be proposed"),
        ([stage("search", expand=[stage("tool", function="os:system")])], "inside of a stage"),
        ([stage("search", expand=[{"type": "shout", "model": "x"}])], "type and params alone"),
        ([stage("replan")], "'replan' may not be proposed"),
        ([stage("shout")] * 10_000, "10,000 stages; at most 8 are possible"),
        ([stage("self_consistency", n="lots")], "n: must have the type of"),
        ([{"params": {}}], "stages.0.type"),
    ],
)
def test_what_cannot_run_goes_back_to_the_model_once(proposal: Any, problem: str) -> None:
    """The fault is in the second prompt; a proposal that is mended runs."""
    says = Proposing(proposal, [stage("shout")])
    (thing,) = run(says).things
    assert thing.content == "a!"
    assert problem in says.asked[1]
    assert len(says.asked) == 2


def test_a_model_that_proposes_nonsense_twice_fails_its_thing() -> None:
    """The status says so with the reason, and the stream goes on."""
    done = run(Proposing([stage("shot")]), ["a", "b"])
    assert [thing.props["status"] for thing in done.things] == ["failed", "failed"]
    assert "may not be proposed" in done.things[0].props["reason"]


def test_a_model_that_proposes_nothing_is_done() -> None:
    """No stage means that nothing is left to try; a recurrent recipe ends by it."""
    looped = Recipe("tries", TRY.stages, recurrent=True)
    says = Proposing([stage("shout")], [stage("shout")], [])
    (thing,) = run(says, recipe=looped).things
    assert (thing.content, thing.props["stopped"], thing.props["iteration"]) == ("a!!", "done", 3)
    assert "shout: a new text, loud = true" in says.asked[1]
    stages = [entry.stage_id for entry in thing.history if entry.block == "shout"]
    assert stages == [
        "tries.stage_1.replan.0.proposal_1.stage_1.shout",
        "tries.stage_1.replan.0.proposal_2.stage_1.shout",
    ]


def test_proposals_in_proposals_end() -> None:
    """Where a recipe allows a replan to be proposed, depth, rounds and calls bound it."""
    allowed = Recipe(
        "tries", (Stage("replan", params={"allowed": ["replan", "shout"], "depth": 1}),)
    )
    (thing,) = run(Proposing([stage("replan")]), recipe=allowed).things
    assert "it would propose again, and proposals are 1 deep at most" in thing.props["reason"]
    nested = stage("replan", allowed=["retrieve"], depth=5, max_stages=100)
    deep = Stage("replan", params={"allowed": ["replan", "shout"], "depth": 3})
    says = Proposing([nested])
    (thing,) = run(says, recipe=Recipe("tries", (deep,))).things
    assert (thing.props["status"], len(says.asked)) == ("failed", 4)
    assert thing.props["proposal"][0]["params"] == {
        "allowed": ["replan", "shout"],
        "depth": 3,
        "max_stages": 8,
    }
    endless = Recipe("tries", TRY.stages, recurrent=True, rails={"calls": 5, "patience": None})
    done = run(Proposing([stage("shout")]), recipe=endless)
    assert (done.usage.calls, done.workflow.props["stopped"]) == (5, "calls")


def test_a_recipe_that_holds_the_replan_is_not_proposed(tmp_path: Path) -> None:
    """By name it would come to hold itself without end."""
    text = "name: tries\nstages: [{type: replan, params: {allowed: [tries, shout]}}]\n"
    (tmp_path / "tries.yaml").write_text(text, encoding="utf-8")
    library = Library([tmp_path])
    says = Proposing([stage("tries")], [stage("shout")])
    (thing,) = run(says, recipe=library.find("tries"), library=library).things
    assert thing.content == "a!"
    assert "it would propose again" in says.asked[1]


def test_a_budget_of_the_stage_holds_for_what_it_proposes() -> None:
    """Calls below the replan are calls of it."""
    says = Proposing([stage("generate", n=50, prompt="Say {{ content }}")])
    tight = Recipe("tries", (Stage("replan", budget={"calls": 4}),))
    done = run(says, recipe=tight)
    assert (done.usage.calls, done.workflow.props["stopped"]) == (4, "calls")


@pytest.mark.parametrize("broken", [2, 3])
def test_a_run_goes_on_with_what_was_proposed(broken: int, tmp_path: Path) -> None:
    """The proposal is on record, so a resumed run goes through the same stages and asks no more."""
    proposal = [
        stage("apply", prompt="One {{ content }}"),
        stage("apply", prompt="Two {{ content }}"),
    ]
    with pytest.raises(TimeoutError):
        run(Proposing(proposal, broken=broken), runs=tmp_path, run_id="r1")
    rest = Proposing([stage("shout")])
    done = run(rest, None, runs=tmp_path, resume="r1")
    assert done.things == run(Proposing(proposal)).things
    assert (len(rest.asked), len(rest.seen)) == (0, 4 - broken)
    paths = [one.path for one in FileStore(tmp_path).read("r1")[1] if one.answered]
    assert paths[-2:] == [
        "tries/stage_1/replan/0/proposal_1/stage_2/apply/0/call_01",
        "tries/end",
    ]


def test_on_a_graph_it_is_the_same() -> None:
    """A compiled recipe follows what is proposed, too."""
    says = Proposing([stage("shout"), stage("apply", prompt="More {{ content }}")])
    graph = compile_recipe(TRY, model=ScriptedModel(default=says), registry=REGISTRY)
    out = asyncio.run(graph.ainvoke({"items": ["a"]}))
    done = run(Proposing([stage("shout"), stage("apply", prompt="More {{ content }}")]))
    assert tuple(Thing.from_plain(one) for one in out["things"]) == done.things


def test_what_is_allowed_has_to_be_there() -> None:
    """A misspelt name in the recipe is an error of the recipe."""
    wrong = Recipe("tries", (Stage("replan", params={"allowed": ["shot"]}),))
    with pytest.raises(RecipeError, match=r"'shot' \(did you mean 'shout'\?\)"):
        run(Proposing([]), recipe=wrong)


def test_a_proposed_model_is_the_one_that_is_asked() -> None:
    """It answers the calls of its stage and no others, and is on record."""
    says = Proposing(
        [
            {**stage("apply", prompt="A {{ content }}"), "model": "offline"},
            stage("apply", prompt="B {{ content }}"),
        ]
    )
    (thing,) = run(says).things
    assert [entry.model for entry in thing.history[2:]] == [
        "mergepoint:offline",
        "scripted:scripted",
    ]
    assert thing.props["proposal"][0]["model"] == "offline"
    assert not any(prompt.startswith("A ") for prompt in says.seen)


@pytest.mark.parametrize(
    ("params", "stages", "problem"),
    [
        ({"models": ["a:b"]}, {"model": "c:d"}, "the model 'c:d' may not be proposed; may be: a:b"),
        ({"models": []}, {"model": "c:d"}, "may not be proposed; may be: none"),
        ({}, {"model": "nobody:x"}, "nobody"),
        ({}, {"budget": {"calls": 1}}, "Extra inputs are not permitted"),
    ],
)
def test_a_model_that_cannot_be_asked_goes_back(
    params: dict[str, Any], stages: dict[str, Any], problem: str
) -> None:
    """The model that proposes hears why, and nothing that it says is passed over."""
    says = Proposing([{**stage("apply", prompt="A {{ content }}"), **stages}], [stage("shout")])
    recipe = Recipe("tries", (Stage("replan", params=params),))
    (thing,) = run(says, recipe=recipe).things
    assert thing.content == "a!"
    assert problem in says.asked[1]


def test_a_function_may_not_be_proposed() -> None:
    """A critique is proposed without a scorer, since that names code."""
    says = Proposing([stage("critique", scorer="os:system")], [stage("shout")])
    (thing,) = run(says).things
    assert thing.content == "a!"
    assert "scorer names files or code, and may not be proposed" in says.asked[1]
