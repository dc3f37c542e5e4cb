"""Limits of what is proposed: rails and budgets hold for it as for what is planned before."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.streams.test_replan import REGISTRY as SHOUTING
from tests.streams.test_replan import Proposing, run, stage

from mergepoint import BudgetExceeded, BudgetLedger, Price, TreeError
from mergepoint.journal.call_records import CallKey
from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.params import Params
from mergepoint.streams.plan_proposals import Planner, ProposedCalls, budgets_of
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun, run_recipe
from mergepoint.streams.recipe_yaml import Library
from mergepoint.streams.registry import PACKAGE, Registry, block
from mergepoint.streams.resolved_recipe import PlannedRecipe, plan
from mergepoint.streams.thing import Thing, stamp
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import SimulatedLoop

REGISTRY = Registry(package=PACKAGE)
ASKS = "stages:\n  - {type: generate, params: {n: 5, prompt: 'Say {{ content }}'}}\n"
CENT = {"scripted:scripted": Price(0, 0, per_call=0.01)}


class Hangs(Params):
    """Nothing."""


@block("hangs", params=Hangs, registry=REGISTRY)
async def hangs(
    items: AsyncIterator[Thing], params: Hangs, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Wait for ever at the first item."""
    async for thing in items:
        await asyncio.Event().wait()
        yield thing


def library(folder: Path, **texts: str) -> Library:
    """Return a library of recipes by name; each text is what follows the name."""
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(f"name: {name}\n{text}", encoding="utf-8")
    return Library([folder])


def tight(rails: str, *, concurrency: int = 1) -> str:
    """Return a recipe that would make five calls, but for its rails."""
    return f"concurrency: {concurrency}\nrails: {rails}\n{ASKS}"


def tries(concurrency: int = 1, **params: Any) -> Recipe:
    """Return a recipe that does what is proposed."""
    return Recipe("tries", (Stage("replan", params=params),), concurrency=concurrency)


def calls_below(says: Proposing) -> int:
    """Return how many calls the proposed stages made."""
    return len(says.seen) - len(says.asked)


@pytest.mark.parametrize("concurrency", [1, 16])
def test_rails_of_calls_hold_for_each_proposal(concurrency: int, tmp_path: Path) -> None:
    """Each Thing's proposal makes its own two calls and no more, and what is finished comes out."""
    known = library(tmp_path, tight=tight("{calls: 2}", concurrency=concurrency))
    says = Proposing([stage("tight")])
    done = run(says, list("abc"), recipe=tries(concurrency), library=known)
    assert calls_below(says) == 6
    assert Counter(thing.id[0] for thing in done.things) == {"0": 2, "1": 2, "2": 2}
    assert done.workflow.props["stopped"] == "calls"


def test_a_second_proposal_for_a_thing_has_its_own_rails(tmp_path: Path) -> None:
    """What an earlier round used up is nothing to the next."""
    known = library(tmp_path, tight=tight("{calls: 1}").replace("n: 5", "n: 1"))
    looped = Recipe("tries", (Stage("replan"),), recurrent=True)
    says = Proposing([stage("tight")], [stage("tight")], [])
    (thing,) = run(says, recipe=looped, library=known).things
    assert (calls_below(says), thing.props["iteration"]) == (2, 3)


@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize(
    ("outer", "inner", "made"), [("{}", "{calls: 2}", 3), ("{calls: 2}", "{calls: 4}", 2)]
)
def test_recipes_inside_of_what_is_proposed_have_their_own(
    concurrency: int, outer: str, inner: str, made: int, tmp_path: Path
) -> None:
    """A recipe in a proposed recipe is held to its rails, and to those around it."""
    stages = "stages:\n  - {type: apply, params: {prompt: 'Do {{ content }}'}}\n  - type: tight\n"
    known = library(
        tmp_path,
        tight=tight(inner, concurrency=concurrency),
        around=f"concurrency: {concurrency}\nrails: {outer}\n{stages}",
    )
    says = Proposing([stage("around")])
    done = run(says, recipe=tries(concurrency), library=known)
    planned = Proposing([])
    as_planned = run(planned, recipe=Recipe("r", (Stage("around"),)), library=known)
    assert calls_below(says) == len(planned.seen) == made
    assert done.workflow.props["stopped"] == as_planned.workflow.props["stopped"] == "calls"
    contents = [thing.content for thing in done.things]
    assert contents == [thing.content for thing in as_planned.things]


def test_proposals_in_proposals_have_their_own(tmp_path: Path) -> None:
    """A replan that was proposed may propose a recipe with rails, and they hold."""
    known = library(tmp_path, tight=tight("{calls: 2}"))
    says = Proposing([stage("replan")], [stage("tight")])
    run(says, recipe=tries(allowed=["replan", "tight"], depth=2), library=known)
    assert (len(says.asked), calls_below(says)) == (2, 2)


def test_budgets_of_stages_hold_inside_of_what_is_proposed(tmp_path: Path) -> None:
    """A stage's budget in a proposed recipe's file is one as well."""
    text = ASKS.replace("type: generate", "type: generate, budget: {calls: 3}")
    says = Proposing([stage("some")])
    run(says, recipe=tries(), library=library(tmp_path, some=text))
    assert calls_below(says) == 3


@pytest.mark.parametrize("concurrency", [1, 16])
def test_rails_of_tokens_and_usd_hold_for_what_is_proposed(
    concurrency: int, tmp_path: Path
) -> None:
    """Two calls fit into two cents, and none into a token."""
    known = library(
        tmp_path,
        cents=tight("{usd: 0.02}", concurrency=concurrency),
        words=tight("{tokens: 1}", concurrency=concurrency),
    )
    for name, made, why in (("cents", 2, "usd"), ("words", 0, "tokens")):
        says = Proposing([stage(name)])
        done = run(says, recipe=tries(concurrency), library=known, prices=CENT)
        assert (calls_below(says), done.workflow.props["stopped"]) == (made, why)


@pytest.mark.parametrize("broken", [3, 4])
def test_a_resumed_run_counts_what_is_on_record_of_a_proposal(broken: int, tmp_path: Path) -> None:
    """Calls that were made before count, those of a proposal as those of a planned recipe."""
    known = library(tmp_path, tight=tight("{calls: 3}"))
    options: dict[str, Any] = {"library": known, "runs": tmp_path / "runs"}
    answered: list[int] = []
    for recipe, offset in ((tries(), 0), (Recipe("r", (Stage("tight"),)), 1)):
        with pytest.raises(TimeoutError):
            run(
                Proposing([stage("tight")], broken=broken - offset),
                recipe=recipe,
                run_id=recipe.name,
                **options,
            )
        rest = Proposing([])
        done = run(rest, None, recipe=recipe, resume=recipe.name, **options)
        assert (len(rest.seen), done.workflow.props["stopped"]) == (4 - broken, "calls")
        records = FileStore(tmp_path / "runs").read(recipe.name)[1]
        below = [one for one in records if "generate" in one.path]
        answered.append(sum(one.answered for one in below))
        assert len(below) == 3
    assert answered == [2, 2]


def test_on_a_graph_rails_of_what_is_proposed_hold(tmp_path: Path) -> None:
    """A compiled recipe holds them as well."""
    known = library(tmp_path, tight=tight("{calls: 2}"))
    says = Proposing([stage("tight")])
    model = ScriptedModel(default=says)
    graph = compile_recipe(tries(), model=model, registry=SHOUTING, library=known)
    out = asyncio.run(graph.ainvoke({"items": ["a", "b"]}))
    assert (calls_below(says), out["stopped"], len(out["things"])) == (4, "calls", 4)


def proposal(known: Library, *stages: dict[str, Any]) -> PlannedRecipe:
    """Return stages as they are planned where they are proposed for the first item."""
    (replanning,) = plan(tries()).blocks()
    thing = Thing("a")
    for at, added in (("input", {}), (replanning.stage_id, {"proposal": list(stages)})):
        made = thing.plus(added)
        before = thing if thing.history else None
        thing = stamp(before, made, block=at.rpartition(".")[2], stage_id=at, name="0")
    planned = Planner(SHOUTING, known).planned(replanning, thing)
    assert planned is not None
    return planned


def test_defaults_bound_no_proposal(tmp_path: Path) -> None:
    """The defaults of calls and deadlock are the run's; a proposal has none of its own."""
    planned = proposal(library(tmp_path), stage("generate"))
    assert (planned.rails.calls, planned.rails.deadlock, budgets_of(planned)) == (None, None, {})


def test_in_a_call_rails_of_what_is_proposed_hold(tmp_path: Path) -> None:
    """The paths of a recipe in a tree are below that of its Call, and so are its limits."""
    planned = proposal(library(tmp_path, tight=tight("{calls: 2}")), stage("tight"))
    ledger = BudgetLedger()
    ProposedCalls(ledger, "root/poll").hold(planned)
    at = "root/poll/tries/stage_1/replan/0/proposal_1/stage_1/tight"
    for number in range(3):
        key = CallKey("r", "", f"{at}/stage_1/generate/0/call_{number + 1:02}")
        if number < 2:
            ledger.reserve(key, "m:m", [], {})
            continue
        with pytest.raises(BudgetExceeded) as told:
            ledger.reserve(key, "m:m", [], {})
        assert told.value.path == at


UNPRICED = "is in USD, and no price of 'scripted:scripted' is known"


def test_usd_without_a_price_is_no_proposal(tmp_path: Path) -> None:
    """The reason goes back to the model, before anything of the proposal runs."""
    known = library(tmp_path, cents=tight("{usd: 0.02}"))
    says = Proposing([stage("cents")], [stage("shout")])
    (thing,) = run(says, recipe=tries(), library=known).things
    assert (thing.content, calls_below(says)) == ("a!", 0)
    at = "tries/stage_1/replan/proposal_1/stage_1/cents"
    assert f"{at}/stage_1/generate: the budget of {at} {UNPRICED}" in says.asked[1]
    (thing,) = run(Proposing([stage("cents")]), recipe=tries(), library=known).things
    assert (thing.props["status"], UNPRICED in thing.props["reason"]) == ("failed", True)


def test_what_asks_nobody_needs_no_price(tmp_path: Path) -> None:
    """A proposed recipe in USD whose stages ask no model, or one that is free, is a good one."""
    free = "  - {type: apply, model: offline, params: {prompt: '{{ content }}'}}\n"
    known = library(tmp_path, cents=f"rails: {{usd: 0.02}}\nstages:\n  - type: dedupe\n{free}")
    says = Proposing([stage("cents")])
    (thing,) = run(says, recipe=tries(), library=known).things
    assert (len(says.asked), thing.history[-1].block) == (1, "apply")


def test_a_model_that_there_is_not_is_no_proposal(tmp_path: Path) -> None:
    """A recipe that names one is refused where it is proposed, and ends no run."""
    text = ASKS.replace("type: generate", "type: generate, model: nobody")
    says = Proposing([stage("odd")], [stage("shout")])
    (thing,) = run(says, recipe=tries(), library=library(tmp_path, odd=text)).things
    assert thing.content == "a!"
    assert "model 'nobody' names no provider" in says.asked[1]


def test_usd_without_a_price_is_refused_when_a_recipe_is_planned(tmp_path: Path) -> None:
    """Every stage that asks is told, in one error, and nothing is written or called."""
    stages = (Stage("generate"), Stage("dedupe"), Stage("critique"))
    recipe = Recipe("r", stages, rails={"usd": 0.5})
    says = Proposing([])
    with pytest.raises(TreeError) as told:
        run(says, recipe=recipe, runs=tmp_path / "runs")
    assert [fault.path for fault in told.value.faults] == [
        "r/stage_1/generate",
        "r/stage_3/critique",
    ]
    assert all(UNPRICED in fault.problem for fault in told.value.faults)
    assert (says.seen, (tmp_path / "runs").exists()) == ([], False)
    with pytest.raises(TreeError, match="no price of"):
        compile_recipe(recipe, model=ScriptedModel(default=says))
    with pytest.raises(TreeError, match="no price of"):
        run(says, recipe=Recipe("r", stages), budget={"usd": 1})
    assert run_recipe(recipe, ["a"], model="offline", runs=None).things


def slow(says: Proposing, seconds: float) -> ScriptedModel:
    """Return a model that takes its time."""
    return ScriptedModel(default=lambda messages: Answer(says(messages), delay=seconds))


def ran(says: Proposing, recipe: Recipe, known: Library) -> tuple[list[Thing], RecipeRun, float]:
    """Run on a simulated loop at two seconds a call; give Things, the run, and its seconds."""
    wanted = RecipeOptions(registry=REGISTRY, library=known, runs=None, model=slow(says, 2.0))
    running = RecipeRun.of(recipe, ["a"], wanted)

    async def main() -> tuple[list[Thing], float]:
        things = [thing async for thing in running.stream()]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return things, asyncio.get_running_loop().time()

    things, seconds = SimulatedLoop().run(main)
    return things, running, seconds


def test_a_deadline_in_what_is_proposed_lets_no_call_begin(tmp_path: Path) -> None:
    """Of five calls that take turns with a stage behind, at 2 s each, two begin within 5 s."""
    known = library(tmp_path, late=tight("{deadline: 5.0}"))
    recipe = Recipe("tries", (Stage("replan"), Stage("apply", params={"prompt": "{{ content }}"})))
    says = Proposing([stage("late")])
    things, running, seconds = ran(says, recipe, known)
    assert (len(things), calls_below(says), seconds) == (2, 4, 10.0)
    assert running.executor is not None
    (stop,) = running.executor.stops.all
    assert (stop.rail, stop.stage_id) == (
        "deadline",
        "tries.stage_1.replan.0.proposal_1.stage_1.late.stage_1.generate",
    )


def test_calls_of_a_proposal_in_flight_count(tmp_path: Path) -> None:
    """Five that would begin at once are two, which are in flight beside each other."""
    known = library(tmp_path, tight=tight("{calls: 2}", concurrency=16))
    says = Proposing([stage("tight")])
    things, _, seconds = ran(says, tries(16), known)
    assert (len(things), calls_below(says), seconds) == (2, 2, 4.0)


def test_a_deadlock_in_what_is_proposed_is_found_in_its_time(tmp_path: Path) -> None:
    """Rails of a proposed recipe say how long nothing may move in it."""
    known = library(tmp_path, still="rails: {deadlock: 4.0}\nstages: [{type: hangs}]\n")
    says = Proposing([stage("still")])
    things, running, seconds = ran(says, tries(), known)
    assert running.executor is not None
    (stop,) = running.executor.stops.all
    assert (stop.rail, things, 6.0 <= seconds <= 8.0) == ("deadlock", [], True)
    assert stop.stage_id.endswith("proposal_1.stage_1.still.stage_1.hangs")


def test_what_was_proposed_is_forgotten(tmp_path: Path) -> None:
    """Nothing is kept of proposals that are over, over any number of Things."""
    known = library(tmp_path, late=tight("{deadline: 50.0}"))
    says = Proposing(
        [
            stage(
                "late",
            ),
            stage("dedupe"),
        ]
    )
    _, running, _ = ran(says, tries(), known)
    assert running.executor is not None
    watchdog = running.executor.watchdog
    at = "tries.stage_1.replan.0.proposal_1.stage_1.late"
    assert watchdog.place(at) == watchdog.place("tries.stage_1.replan")
    assert watchdog.over([at]) is None
