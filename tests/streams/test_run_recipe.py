"""Recipes that run: lazy, recorded, resumed, replayed, within their limits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mergepoint.core.errors import RecipeError, ReplayMiss, StepError, TreeError
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe, stream_recipe
from mergepoint.streams.registry import PACKAGE, Registry, block
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.thing import Thing, fold
from mergepoint.streams.watchdog import places
from mergepoint.testing.scripted_model import ScriptedModel

REGISTRY = Registry(package="mergepoint.streams.blocks")


class Nothing(Params):
    """No params."""


@block("count", params=Nothing, adds=["score"], registry=REGISTRY)
async def count(
    items: AsyncIterator[Thing], params: Nothing, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Add one to the score."""
    async for thing in items:
        yield thing.plus(score=thing.props.get("score", 0) + 1)


@block("turn", params=Nothing, adds=["turns"], registry=REGISTRY)
async def turn(
    items: AsyncIterator[Thing], params: Nothing, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Add one to the turns, which are about no content."""
    async for thing in items:
        yield thing.plus(turns=thing.props.get("turns", 0) + 1)


@block("still", params=Nothing, registry=REGISTRY)
async def still(
    items: AsyncIterator[Thing], params: Nothing, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Let everything pass."""
    async for thing in items:
        yield thing


def samples(n: int, *, concurrency: int = 1) -> Recipe:
    """Return self-consistency: n samples of each item, and a vote in each group."""
    asks = Stage(
        "generate", params={"n": n, "prompt": "Say {{ content }}."}, concurrency=concurrency
    )
    return Recipe("samples", (asks, Stage("vote")))


def echo() -> ScriptedModel:
    """Return a model that repeats what it is asked."""
    return ScriptedModel(default=lambda messages: f"to {messages[-1].text}")


def run(recipe: Recipe, items: Any = None, **options: Any) -> Any:
    """Run a recipe with the blocks of this file, in memory unless told otherwise."""
    return run_recipe(recipe, items, **{"registry": REGISTRY, "runs": None, **options})


@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_recipe_gives_its_things(concurrency: int) -> None:
    """Each item's samples are a group, and what wins is told with its lineage."""
    model = echo()
    done = run(samples(3, concurrency=concurrency), ["a", "b"], model=model)
    assert [thing.content for thing in done.things] == ["to Say a.", "to Say b."]
    assert [thing.parents for thing in done.things] == [
        ("0.0", "0.1", "0.2"),
        ("1.0", "1.1", "1.2"),
    ]
    assert [thing.props["votes"] for thing in done.things] == [{"to Say a.": 3}, {"to Say b.": 3}]
    assert all(thing == fold(thing.history) for thing in done.things)
    assert len(model.calls) == 6


@pytest.mark.parametrize(("concurrency", "most"), [(1, 2), (4, 7)])
def test_what_is_not_wanted_is_not_made(concurrency: int, most: int) -> None:
    """Of ten samples two are wanted: two are paid one by one, a few more side by side."""
    model = echo()
    stage = Stage("generate", params={"n": 10}, concurrency=concurrency)
    done = run(Recipe("some", (stage,)), ["a"], model=model, wanted=2)
    assert len(done.things) == 2
    assert 2 <= len(model.calls) <= most


def test_the_run_is_a_thing_too() -> None:
    """The workflow tells strategy, calls, tokens and why it stopped."""
    done = run(samples(2), ["a"], model=echo())
    assert done.workflow.content == ["to Say a."]
    assert {name: done.workflow.props[name] for name in ("strategy", "calls", "stopped")} == {
        "strategy": "samples",
        "calls": 2,
        "stopped": "done",
    }
    assert done.workflow.props["kind"] == "workflow"


def test_every_call_is_on_record_at_its_own_path(tmp_path: Path) -> None:
    """Stage, Thing and number of the call are its path; the answer is in the Thing's history."""
    done = run(samples(2), ["a"], model=echo(), runs=tmp_path, run_id="r1")
    records = FileStore(tmp_path).read("r1")[1]
    assert [record.path for record in records] == [
        "samples/stage_1/generate/0.0/call_01",
        "samples/stage_1/generate/0.1/call_01",
        "samples/end",
    ]
    assert done.path_of_run == tmp_path / "r1"
    (entry,) = done.things[0].history[1:] or done.things[0].history
    assert entry.stage_id == "samples.stage_2.vote"


def test_a_run_that_failed_goes_on(tmp_path: Path) -> None:
    """Answers that are on record are not asked for again, and the end is the same."""
    failing = ScriptedModel(["to Say a.", "to Say a.", TimeoutError("slow")])
    with pytest.raises(TimeoutError):
        run(samples(3), ["a", "b"], model=failing, runs=tmp_path, run_id="r1")
    rest = echo()
    done = run(samples(3), model=rest, runs=tmp_path, resume="r1")
    whole = run(samples(3), ["a", "b"], model=echo())
    assert (len(rest.calls), done.things) == (4, whole.things)


def test_a_run_is_replayed_and_reused(tmp_path: Path) -> None:
    """A replay calls no model; a changed recipe pays what asks something else."""
    run(samples(3), ["a", "b"], model=echo(), runs=tmp_path, run_id="r1")
    idle = ScriptedModel([])
    again = run(samples(3, concurrency=8), ["a", "b"], model=idle, runs=tmp_path, replay="r1")
    assert [thing.content for thing in again.things] == ["to Say a.", "to Say b."]
    with pytest.raises(ReplayMiss):
        run(samples(4), ["a", "b"], model=idle, runs=tmp_path, replay="r1")
    paid = echo()
    run(samples(4), ["a", "b"], model=paid, runs=tmp_path, reuse="r1")
    assert len(paid.calls) == 2


def test_a_run_goes_on_with_its_knobs_and_seed(tmp_path: Path) -> None:
    """What a run was given is on record, so that it need not be given again."""
    recipe = Recipe("r", (Stage("generate", params={"n": "{{ n }}"}),), knobs={"n": 2})
    seeds: list[int] = []

    @block("seed", params=Nothing, registry=(own := Registry(package=PACKAGE)))
    async def seed(
        items: AsyncIterator[Thing], params: Nothing, ctx: BlockContext
    ) -> AsyncIterator[Thing]:
        """Take down the seed."""
        async for thing in items:
            seeds.append(ctx.seed)
            yield thing

    recipe = replace(recipe, stages=(*recipe.stages, Stage("seed")))
    about: dict[str, Any] = {"model": echo(), "runs": tmp_path, "registry": own}
    first = run(recipe, ["a"], knobs={"n": 3}, seed=7, run_id="r1", **about)
    again = run(recipe, resume="r1", **about)
    assert again.things == first.things
    assert seeds == [7] * 6
    with pytest.raises(TreeError, match="r/stage_1/generate: is another than"):
        run(recipe, resume="r1", knobs={"n": 4}, **about)


def test_another_recipe_does_not_go_on(tmp_path: Path) -> None:
    """The stages that differ are named."""
    run(samples(3), ["a"], model=echo(), runs=tmp_path, run_id="r1")
    with pytest.raises(TreeError, match="samples/stage_1/generate: is another than"):
        run(samples(4), model=echo(), runs=tmp_path, resume="r1")


def test_a_budget_ends_the_stream_and_what_is_finished_comes_out() -> None:
    """Of six samples four are granted; the vote is over those, and the workflow says why."""
    for concurrency in (1, 16):
        model = echo()
        done = run(samples(6, concurrency=concurrency), ["a"], model=model, budget={"calls": 4})
        assert len(model.calls) == 4
        assert [thing.props["votes"] for thing in done.things] == [{"to Say a.": 4}]
        assert done.workflow.props["stopped"] == "calls"


def test_rails_are_on_by_default() -> None:
    """A recipe has rails of its own that end it like a budget."""
    recipe = Recipe("railed", samples(9).stages, rails={"calls": 5})
    model = echo()
    done = run(recipe, ["a"], model=model)
    assert (len(model.calls), done.workflow.props["stopped"]) == (5, "calls")


def nested(**rails: Any) -> Recipe:
    """Return a recipe with 1,200 calls in a recipe inside of it."""
    inner = Recipe("inner", samples(1_200, concurrency=16).stages, rails=rails)
    return Recipe("outer", (Stage(inner),))


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("rails", "budget", "calls"),
    [
        ({}, None, 1_000),
        ({}, {"calls": 5_000}, 1_200),
        ({"calls": 1_050}, {"calls": 5_000}, 1_050),
    ],
)
def test_the_default_of_calls_is_the_runs(rails: Any, budget: Any, calls: int) -> None:
    """It gives way to a budget of calls, and holds in no recipe inside; rails that are set do."""
    done = run(nested(**rails), ["a"], model=echo(), budget=budget)
    assert done.usage.calls == calls
    assert done.workflow.props["stopped"] == ("done" if calls == 1_200 else "calls")


def test_the_default_of_deadlock_is_the_runs() -> None:
    """A recipe inside ends nothing that the one around gives more time."""
    inner = Recipe("inner", (Stage("dedupe"),), rails={"deadline": 5.0})
    outer = plan(Recipe("outer", (Stage(inner),), rails={"deadlock": None}))
    assert [one.deadlock for _, one in places(outer)] == [None, None, None]
    assert plan(inner).rails.deadlock == 60.0


@pytest.mark.parametrize(
    ("outer", "inner", "holds"),
    [
        ({}, {}, 60.0),
        ({}, {"deadlock": 300.0}, 300.0),
        ({}, {"deadlock": 5.0}, 5.0),
        ({}, {"deadlock": None}, None),
        ({"deadlock": 10.0}, {}, 10.0),
        ({"deadlock": 10.0}, {"deadlock": 300.0}, 10.0),
        ({"deadlock": 10.0}, {"deadlock": 5.0}, 5.0),
        ({"deadlock": 10.0}, {"deadlock": None}, 10.0),
        ({"deadlock": None}, {"deadlock": 300.0}, 300.0),
        ({"deadlock": 60.0}, {"deadlock": 300.0}, 60.0),
    ],
)
def test_of_deadlocks_those_that_were_set_bound_what_is_inside(
    outer: Any, inner: Any, holds: float | None
) -> None:
    """One that was set bounds all; the default gives way to what a recipe says of itself."""
    innermost = Recipe("innermost", (Stage("dedupe"),), rails=inner)
    between = Recipe("between", (Stage(innermost),), rails={"deadline": 5.0})
    found = dict(places(plan(Recipe("outer", (Stage("dedupe"), Stage(between)), rails=outer))))
    assert found["outer.stage_2.between.stage_1.innermost.stage_1.dedupe"].deadlock == holds
    run_wide = outer.get("deadlock", 60.0)
    assert found["outer.stage_1.dedupe"].deadlock == run_wide


def test_things_go_round_until_they_are_done() -> None:
    """A recurrent recipe sends them back, and says in which round and why they left."""
    inner = Recipe("loop", (Stage("count"),), recurrent=True, until={"score": {"at_least": 3}})
    done = run(Recipe("outer", (Stage(inner), Stage("count"))), ["a", Thing("b", {"score": 1})])
    assert [dict(thing.props) for thing in done.things] == [
        {"score": 4, "iteration": 3, "stopped": "until"},
        {"score": 4, "iteration": 2, "stopped": "until"},
    ]
    stages = [entry.stage_id for entry in done.things[1].history[1:]]
    assert stages == ["outer.stage_1.loop.stage_1.count"] * 2 + [
        "outer.stage_1.loop",
        "outer.stage_2.count",
    ]


@pytest.mark.parametrize(
    ("stage", "rails", "reason", "rounds"),
    [
        ("count", {"max_iterations": 4}, "max_iterations", 4),
        ("still", {}, "fixed point", 2),
        ("still", {"patience": 3}, "fixed point", 4),
    ],
)
def test_rails_end_rounds(stage: str, rails: Any, reason: str, rounds: int) -> None:
    """Rounds end at their number, or where a Thing stays as it is."""
    recipe = Recipe("loop", (Stage(stage),), recurrent=True, rails=rails)
    (thing,) = run(recipe, ["a"]).things
    assert (thing.props["stopped"], thing.props["iteration"]) == (reason, rounds)


def test_one_of_many_is_finished_before_the_next_begins() -> None:
    """Where stages take Things one by one, rounds of unwanted ones are never begun."""
    model = echo()
    loop = Recipe(
        "loop",
        (Stage("apply", params={"prompt": "More {{ content }}"}), Stage("turn")),
        recurrent=True,
        until={"turns": 2},
    )
    done = run(loop, ["a", "b", "c"], model=model, wanted=1)
    assert (done.things[0].content, len(model.calls)) == ("to More to More a", 2)


def test_many_stages_do_not_exhaust_the_stack() -> None:
    """900 stages in a row run like one."""
    (thing,) = run(Recipe("deep", (Stage("count"),) * 900), ["a"]).things
    assert thing.props["score"] == 900


def test_things_come_as_a_stream() -> None:
    """Each Thing is there when it is finished, and a stop downstream leaves no task behind."""
    model = echo()

    async def first() -> tuple[str, int]:
        options: Any = {"model": model, "runs": None, "registry": REGISTRY}
        async with aclosing(stream_recipe(samples(2), each(), **options)) as stream:
            thing = await anext(stream)
        return str(thing.content), len(asyncio.all_tasks())

    async def each() -> AsyncIterator[str]:
        for text in "abc":
            yield text

    assert asyncio.run(first()) == ("to Say a.", 1)
    assert len(model.calls) == 2


def test_what_cannot_run_is_told(tmp_path: Path) -> None:
    """Missing items, a resume without runs, sources that exclude each other, unknown recipes."""
    with pytest.raises(StepError, match="give the run its items"):
        run(samples(1))
    with pytest.raises(StepError, match="exclude each other"):
        run(samples(1), resume="a", reuse="b")
    with pytest.raises(JournalError, match=r"journal\.jsonl"):
        run(samples(1), resume="a")
    with pytest.raises(RecipeError, match="has no model"):
        run(samples(1), ["a"])
    with pytest.raises(JournalError, match="there is no run 'r1'"):
        run(samples(1), model=echo(), runs=tmp_path, resume="r1")


async def _break(stream: AsyncGenerator[Thing, None]) -> None:
    async for _ in stream:
        break


async def _ask_once(stream: AsyncGenerator[Thing, None]) -> None:
    await anext(stream)


async def _fail(stream: AsyncGenerator[Thing, None]) -> None:
    async for _ in stream:
        raise ZeroDivisionError


async def _cancelled(stream: AsyncGenerator[Thing, None]) -> None:
    came = asyncio.Event()

    async def read() -> None:
        async for _ in stream:
            came.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await came.wait()
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.first_case
@pytest.mark.parametrize("leave", [_break, _ask_once, _fail, _cancelled])
@pytest.mark.parametrize("goes_on", [False, True])
def test_leaving_a_stream_early_is_silent_and_clean(
    leave: Callable[[AsyncGenerator[Thing, None]], Awaitable[None]],
    tmp_path: Path,
    *,
    goes_on: bool,
) -> None:
    """Nothing is told, nothing is left running, and the run can be resumed at once."""
    told: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        stream = stream_recipe(
            samples(6, concurrency=3), ["a", "b"], model=echo(), runs=tmp_path, run_id="left"
        )
        with contextlib.suppress(ZeroDivisionError):
            await leave(stream)
        if goes_on:
            del stream
            while len(asyncio.all_tasks()) > 1:
                gc.collect()
                await asyncio.sleep(0.01)

    asyncio.run(main())
    gc.collect()
    assert told == []
    done = run_recipe(samples(6, concurrency=3), model=echo(), runs=tmp_path, resume="left")
    assert len(done.things) == 2


def test_resuming_a_run_that_is_over_writes_nothing(tmp_path: Path) -> None:
    """The end is on record once, however often a finished run is resumed."""
    run(samples(3), ["item"], model=echo(), runs=tmp_path, run_id="r1")
    before = FileStore(tmp_path).read("r1")[1]
    run(samples(3), model=echo(), runs=tmp_path, resume="r1")
    assert FileStore(tmp_path).read("r1")[1] == before
