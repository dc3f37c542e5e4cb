"""Rails of time: deadlines and deadlocks end what they should, and what is finished comes out."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mergepoint import Step
from mergepoint.aio.stream import from_iterable
from mergepoint.models.pricing import Price
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params, TimeLimitStop
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun
from mergepoint.streams.registry import PACKAGE, Registry, block
from mergepoint.streams.thing import Thing
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import SimulatedLoop

REGISTRY = Registry(package=PACKAGE)
SEEDS = range(4)


class At(Params):
    """At which item."""

    at: int = 0
    deaf: int = 0


@block("hangs", params=At, registry=REGISTRY)
async def hangs(items: AsyncIterator[Thing], params: At, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Let items pass, and wait for ever at one of them."""
    deaf, number = params.deaf, 0
    async for thing in items:
        while number == params.at:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not deaf:
                    raise
                deaf -= 1
        number += 1
        yield thing


@block("waits", params=At, registry=REGISTRY)
async def waits(items: AsyncIterator[Thing], params: At, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Work on each item for some seconds, without a call."""

    async def one(thing: Thing) -> Thing:
        await asyncio.sleep(params.at)
        return thing.plus(score=1)

    async for thing in ctx.map(items, one):
        yield thing


@block("turns", params=At, registry=REGISTRY)
async def turns(items: AsyncIterator[Thing], params: At, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Change every item, and let the clock of a simulation go on by turning."""
    async for thing in items:
        await asyncio.sleep(params.at)
        yield thing.plus(score=thing.props.get("score", 0) + 1)


@block("once", params=At, registry=REGISTRY)
async def once(items: AsyncIterator[Thing], params: At, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Do something slow that is noted."""
    async for thing in items:

        async def slow() -> int:
            await asyncio.sleep(params.at)
            return 1

        yield thing.plus(score=await ctx.once(thing.id, slow))


def slow(seconds: float, *, never: str = "") -> ScriptedModel:
    """Return a model that takes its time, and for one prompt does not answer at all."""

    def answer(messages: Any) -> Answer:
        text = str(messages[-1].text)
        return Answer(f"to {text}", delay=10**9 if never and never in text else seconds)

    return ScriptedModel(default=answer)


def ran(
    recipe: Recipe, items: Any, *, seed: int = 0, **options: Any
) -> tuple[list[Any], RecipeRun, float]:
    """Run on a simulated loop; give the contents, the run and the simulated seconds it took."""
    known: Any = {"registry": REGISTRY, "runs": None, **options}
    run = RecipeRun.of(recipe, items, known)

    async def main() -> tuple[list[Any], float]:
        things = [thing.content async for thing in run.stream()]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return things, asyncio.get_running_loop().time()

    contents, seconds = SimulatedLoop(seed=seed).run(main)
    return contents, run, seconds


def stopped(run: RecipeRun) -> list[tuple[str, str]]:
    """Return which rails ended which stages."""
    assert run.executor is not None
    return [(stop.rail, stop.stage_id) for stop in run.executor.stops.all]


def problem(run: RecipeRun) -> str:
    """Return what the first rail said."""
    assert run.executor is not None
    return run.executor.stops.all[0].problem


def asks(**options: Any) -> Stage:
    """Return a stage that asks the model once for each item."""
    return Stage("apply", params={"prompt": "{{ content }}"}, **options)


async def then_nothing(*items: str) -> AsyncIterator[str]:
    """Yield items, and then neither another nor an end."""
    for item in items:
        yield item
    await asyncio.Event().wait()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_deadline_lets_calls_land_and_begins_none(concurrency: int, seed: int) -> None:
    """Of ten items at 4 s each, those whose call had begun after 10 s come out, and no more."""
    recipe = Recipe("r", (asks(concurrency=concurrency),), rails={"deadline": 10.0})
    model = slow(4.0)
    contents, run, seconds = ran(recipe, list("abcdefghij"), seed=seed, model=model)
    made = 3 * concurrency
    assert contents == [f"to {letter}" for letter in "abcdefghij"[:made]]
    assert (len(model.calls), seconds) == (made, 12.0)
    assert run.workflow([]).props["stopped"] == "deadline"
    assert "deadline of 10 s since the first item has passed" in problem(run)


def misunderstood(times: int) -> ScriptedModel:
    """Return a model whose first answers to `b` cannot be used; others take 3 s."""
    left = [times]

    def answer(messages: Any) -> Answer:
        text = str(messages[-1].text)
        if text.startswith("b") and left[0]:
            left[0] -= 1
            return Answer({"score": 700, "feedback": "none"}, delay=2.0)
        return Answer({"score": 70, "feedback": "none"}, delay=3.0)

    return ScriptedModel(default=answer)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("rails", "why"), [({"calls": 4}, "calls"), ({"deadline": 1.0}, "deadline")]
)
def test_what_had_begun_behind_a_refused_call_comes_out(rails: Any, why: str, seed: int) -> None:
    """Of four at once one has to ask again and may not; those beside it land, and come out."""
    stage = Stage("critique", params={"prompt": "{{ content }}"}, concurrency=4)
    model = misunderstood(1)
    contents, run, _ = ran(
        Recipe("r", (stage,), rails=rails), list("abcdef"), seed=seed, model=model
    )
    assert (contents, len(model.calls)) == (["a", "c", "d"], 4)
    assert stopped(run) == [(why, "r.stage_1.critique")][: len(stopped(run))]
    assert run.workflow([]).props["stopped"] == why


def test_what_is_finished_at_a_deadline_is_voted_on() -> None:
    """A stage behind that waits for all of them goes on with those that there are."""
    recipe = Recipe(
        "r", (Stage("generate", params={"n": 9}), Stage("vote")), rails={"deadline": 5.0}
    )
    contents, run, _ = ran(recipe, ["a"], model=slow(2.0))
    assert contents == ["to a"]
    assert stopped(run) == [("deadline", "r.stage_1.generate")]


def test_work_that_ends_in_time_is_not_stopped() -> None:
    """A last call that lands after the deadline ends a run in which nothing was left out."""
    recipe = Recipe("r", (asks(),), rails={"deadline": 3.0})
    contents, run, _ = ran(recipe, ["a", "b"], model=slow(2.0))
    assert (contents, stopped(run)) == (["to a", "to b"], [])
    assert run.workflow([]).props["stopped"] == "done"


def test_the_time_begins_with_the_first_item() -> None:
    """Waiting for the first item does not count."""

    async def late() -> AsyncIterator[str]:
        await asyncio.sleep(50)
        yield "a"

    recipe = Recipe("r", (asks(),), rails={"deadline": 3.0})
    contents, run, _ = ran(recipe, late(), model=slow(2.0))
    assert (contents, stopped(run)) == (["to a"], [])


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_deadline_does_not_wait_for_items(concurrency: int) -> None:
    """Items that do not come are not waited for any longer, deadlock or not."""
    recipe = Recipe(
        "r", (asks(concurrency=concurrency),), rails={"deadline": 5.0, "deadlock": None}
    )
    contents, run, seconds = ran(recipe, then_nothing("a", "b"), model=slow(1.0))
    assert (contents, seconds) == (["to a", "to b"], 5.0)
    assert stopped(run) == [("deadline", "r")]


def test_a_deadline_does_not_wait_for_a_block() -> None:
    """A block that waits for something else than a call has a second to come to an end."""
    recipe = Recipe(
        "r", (Stage("waits", params={"at": 100}),), rails={"deadline": 5.0, "deadlock": None}
    )
    contents, run, seconds = ran(recipe, ["a"])
    assert (contents, stopped(run)) == ([], [("deadline", "r.stage_1.waits")])
    assert 6 <= seconds <= 7


def test_a_call_in_flight_has_a_grace_limit() -> None:
    """A model that never answers holds a run up for the grace limit after the deadline."""
    recipe = Recipe("r", (asks(concurrency=2),), rails={"deadline": 5.0})
    contents, run, seconds = ran(recipe, ["a", "b", "c"], model=slow(1.0, never="b"))
    assert contents == ["to a"]
    assert stopped(run) == [("deadline", "r.stage_1.apply")]
    assert 35 <= seconds <= 40


def test_the_deadline_of_a_recipe_inside_ends_that_alone() -> None:
    """What is around goes on with what came out of it."""
    inner = Recipe("inner", (asks(),), rails={"deadline": 3.0})
    contents, run, _ = ran(
        Recipe("outer", (asks(), Stage(inner), asks())), list("abcd"), model=slow(2.0)
    )
    assert contents == ["to to to a"]
    assert [rail for rail, _ in stopped(run)] == ["deadline"]


def test_a_deadline_ends_rounds() -> None:
    """Things that go round leave with that reason, also where no stage ever asks a model."""
    recipe = Recipe(
        "r",
        (Stage("turns", params={"at": 2}),),
        recurrent=True,
        rails={"deadline": 7.0, "max_iterations": 100},
    )
    run = RecipeRun.of(recipe, ["a"], RecipeOptions(runs=None, registry=REGISTRY))

    async def main() -> list[Thing]:
        return [thing async for thing in run.stream()]

    (thing,) = SimulatedLoop().run(main)
    assert (thing.props["stopped"], thing.props["iteration"]) == ("deadline", 4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_source_that_never_yields_is_named(concurrency: int, seed: int) -> None:
    """Items that stop coming are a deadlock, and it is told who waits for them."""
    recipe = Recipe("r", (asks(concurrency=concurrency), Stage("vote")), rails={"deadlock": 8.0})
    contents, run, seconds = ran(recipe, then_nothing("a", "b"), seed=seed, model=slow(1.0))
    assert contents == ["to a"]
    assert stopped(run) == [("deadlock", "r")]
    assert problem(run).startswith(
        "the consumer of r waits for r.stage_2.vote, which waits for r.stage_1.apply, which waits "
        "for the items of r, without progress: for "
    )
    assert 9 <= seconds <= 13


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_that_never_yields_is_named(seed: int) -> None:
    """The stage that waits for nobody is ended; those behind it go on with what it gave."""
    recipe = Recipe(
        "r", (asks(), Stage("hangs", params={"at": 2}), Stage("vote")), rails={"deadlock": 4.0}
    )
    contents, run, _ = ran(recipe, list("abcd"), seed=seed, model=slow(1.0))
    assert contents == ["to a"]
    assert stopped(run) == [("deadlock", "r.stage_2.hangs")]
    assert "r.stage_3.vote, which waits for r.stage_2.hangs, without progress" in problem(run)


@pytest.mark.parametrize("options", [{}, {"each": True, "concurrency": 2}, {"recurrent": True}])
def test_a_deadlock_in_a_recipe_inside_is_named_by_its_place(options: Any) -> None:
    """The chain goes through the recipes that the stage is in."""
    inner = Recipe("inner", (Stage("hangs", params={"at": 0}),), **options)
    recipe = Recipe("outer", (asks(), Stage(inner), asks()), rails={"deadlock": 4.0})
    contents, run, _ = ran(recipe, ["a"], model=slow(1.0))
    assert contents == []
    assert problem(run).startswith(
        "the consumer of outer waits for outer.stage_3.apply, which waits for outer.stage_2.inner, "
        "which waits for outer.stage_2.inner.stage_1.hangs, without progress"
    )


def test_a_long_row_of_stages_names_the_one_that_waits_for_nobody() -> None:
    """Tasks between the stages of a long recipe do not hide who waits for whom."""
    stages = [Stage("turns", params={"at": 0})] * 40
    stages[20] = Stage("hangs")
    _, run, _ = ran(Recipe("r", tuple(stages), rails={"deadlock": 4.0}), ["a"])
    assert stopped(run) == [("deadlock", "r.stage_21.hangs")]


def test_work_that_is_slow_is_no_deadlock() -> None:
    """Calls, trees and what is noted may take longer than the time in which something moves."""
    talks = Stage("pipeline", params={"tree": Step("Go on.", name="go")})
    recipe = Recipe("r", (asks(), Stage("once", params={"at": 50}), talks), rails={"deadlock": 2.0})
    contents, run, _ = ran(recipe, ["a"], model=slow(50.0))
    assert (contents, stopped(run)) == (["to Go on."], [])


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_reader_that_is_slow_is_no_deadlock(concurrency: int) -> None:
    """While nobody asks for a Thing nothing has to move, whatever is waited for meanwhile."""

    async def slowly() -> AsyncIterator[str]:
        for item in "abc":
            yield item
            await asyncio.sleep(3)

    recipe = Recipe("r", (asks(concurrency=concurrency),), rails={"deadlock": 5.0})
    options = RecipeOptions(runs=None, registry=REGISTRY, model=slow(1.0))
    run = RecipeRun.of(recipe, slowly(), options)

    async def main() -> int:
        count = 0
        async for _ in run.stream():
            count += 1
            await asyncio.sleep(100)
        return count

    assert SimulatedLoop().run(main) == 3
    assert stopped(run) == []


def test_a_block_that_is_deaf_is_told_again() -> None:
    """One that swallows its cancellation and goes on waiting is ended the next time."""
    recipe = Recipe("r", (Stage("hangs", params={"deaf": 2}),), rails={"deadlock": 4.0})
    contents, run, seconds = ran(recipe, ["a"])
    assert (contents, stopped(run)) == ([], [("deadlock", "r.stage_1.hangs")])
    assert 6 <= seconds <= 10


def test_without_a_limit_nothing_is_watched() -> None:
    """With `deadlock: null` a stage may wait for as long as it likes."""
    recipe = Recipe("r", (Stage("waits", params={"at": 10_000}),), rails={"deadlock": None})
    contents, run, seconds = ran(recipe, ["a"])
    assert (contents, stopped(run), seconds) == (["a"], [], 10_000.0)


@pytest.mark.parametrize("moment", [4.0, 5.0])
def test_a_cancellation_of_the_reader_stays_one(moment: float) -> None:
    """A reader that is cancelled at the very moment of a deadlock is cancelled."""
    recipe = Recipe("r", (Stage("hangs"),), rails={"deadlock": 4.0})
    options = RecipeOptions(runs=None, registry=REGISTRY)

    async def main() -> bool:
        async def read() -> None:
            async for _ in RecipeRun.of(recipe, ["a"], options).stream():
                pass

        task = asyncio.ensure_future(read())
        asyncio.get_running_loop().call_at(moment, task.cancel)
        await asyncio.wait([task])
        return task.cancelled()

    assert all(SimulatedLoop(seed=seed).run(main) for seed in range(20))


def test_what_a_deadline_ended_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    """The time counts anew, what is on record takes none of it, and so a run gets further."""
    recipe = Recipe("r", (asks(),), rails={"deadline": 5.0})
    options: dict[str, Any] = {"runs": tmp_path}
    first, _, _ = ran(recipe, list("abcdef"), model=slow(2.0), run_id="r1", **options)
    second, _, _ = ran(recipe, None, model=slow(2.0), resume="r1", **options)
    third, run, _ = ran(recipe, None, model=slow(2.0), resume="r1", **options)
    assert (len(first), len(second), len(third)) == (3, 6, 6)
    assert stopped(run) == []


def test_why_it_stopped_survives_a_process() -> None:
    """The error of a rail of time says the same in another process."""
    error = TimeLimitStop("deadline", "late")
    back = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)
    assert (back.rail, str(back)) == ("deadline", "late")


def test_a_million_links_are_not_kept() -> None:
    """What is known of who waits is gone with the streams that waited."""
    inner = Recipe("inner", (Stage("turns", params={"at": 0}),), each=True)
    run = RecipeRun.of(
        Recipe("r", (Stage(inner),)),
        from_iterable(range(300)),
        RecipeOptions(runs=None, registry=REGISTRY),
    )

    async def main() -> int:
        most = 0
        async for _ in run.stream():
            assert run.executor is not None
            most = max(most, len(run.executor.watchdog.channels))
        assert run.executor is not None
        assert not run.executor.watchdog.channels
        return most

    assert SimulatedLoop().run(main) <= 5


def improving(rounds: int, **rails: Any) -> Recipe:
    """Return a loop of two calls a round, with limits."""
    stages = (asks(), Stage("apply", params={"prompt": "so {{ content }}"}))
    return Recipe("r", stages, recurrent=True, rails={"max_iterations": rounds, **rails})


@pytest.mark.parametrize(
    ("limit", "rounds"),
    [
        ({"calls": 1}, 0),
        ({"calls": 2}, 1),
        ({"calls": 3}, 1),
        ({"calls": 5}, 2),
        ({"usd": 0.01}, 0),
        ({"usd": 0.03}, 1),
        ({"usd": 0.05}, 2),
        ({"tokens": 0}, 0),
        ({"deadline": 4.5}, 2),
    ],
)
def test_a_limit_lets_the_last_finished_round_out(limit: Any, rounds: int) -> None:
    """A Thing whose round was cut short leaves as the round before left it, an input never."""
    cent = {"scripted:scripted": Price(0, 0, per_call=0.01)}
    wanted = RecipeOptions(runs=None, model=slow(1.0), prices=cent, registry=REGISTRY)
    run = RecipeRun.of(improving(10, **limit), ["a"], wanted)

    async def main() -> list[Thing]:
        return [thing async for thing in run.stream()]

    things = SimulatedLoop().run(main)
    (kind,) = limit
    told = [(one.props["iteration"], one.props["stopped"]) for one in things]
    assert told == ([(rounds, kind)] if rounds else [])
    assert all(one.content == "to so to " * rounds + "a" for one in things)
    assert run.workflow(things).props["stopped"] == kind


def test_a_limit_of_tokens_lets_the_last_finished_round_out() -> None:
    """How many rounds fit depends on estimates; what comes out is a whole number of them."""
    run = RecipeRun.of(
        improving(10, tokens=2_000),
        ["a"],
        RecipeOptions(
            runs=None,
            model=ScriptedModel(default=Answer("so", usage=(300, 100))),
            registry=REGISTRY,
        ),
    )

    async def main() -> list[Thing]:
        return [thing async for thing in run.stream()]

    (thing,) = SimulatedLoop().run(main)
    rounds = thing.props["iteration"]
    assert isinstance(rounds, int)
    assert 1 <= rounds <= 2
    assert thing.props["stopped"] == "tokens"
    assert len([entry for entry in thing.history if entry.calls]) == 2 * rounds


@pytest.mark.parametrize(("more", "ids"), [([], ["0"]), ([Stage("accumulate")], ["0", "1", "2"])])
def test_a_limit_lets_every_thing_of_a_cohort_out_once(more: Any, ids: list[str]) -> None:
    """Of three Things those that the cut round did not reach leave beside the one that it did."""
    stages = (*improving(10).stages, *more)
    recipe = Recipe("r", stages, recurrent=True, rails={"max_iterations": 10})
    wanted = RecipeOptions(runs=None, model=slow(1.0), budget={"calls": 9}, registry=REGISTRY)
    run = RecipeRun.of(recipe, ["a", "b", "c"], wanted)

    async def main() -> list[Thing]:
        return [thing async for thing in run.stream()]

    assert [thing.id for thing in SimulatedLoop().run(main)] == ids


def test_a_draft_outlives_a_limit_in_the_first_round_of_revisions() -> None:
    """What an earlier stage wrote comes out of a loop in which no round could be paid."""
    inner = Recipe("inner", improving(3).stages, recurrent=True)
    recipe = Recipe("outer", (asks(), Stage(inner)))
    wanted = RecipeOptions(runs=None, model=slow(1.0), budget={"calls": 2}, registry=REGISTRY)
    run = RecipeRun.of(recipe, ["a"], wanted)

    async def main() -> list[Thing]:
        return [thing async for thing in run.stream()]

    (thing,) = SimulatedLoop().run(main)
    assert (thing.content, thing.props["iteration"], thing.props["stopped"]) == ("to a", 0, "calls")
