"""A stage and its exit: laziness, what is stamped, closing, and blocks that misbehave."""

from __future__ import annotations

import asyncio
import gc
import pickle
import warnings
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from tests.streams.blocks import careless, each, endless, mapping, typed

from mergepoint.aio.stream import from_iterable as each_of
from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.provenance import VocabularyWarning
from mergepoint.streams.registry import REGISTRY, BlockType
from mergepoint.streams.stage_run import MOST, RecentIds, entered, run_stage
from mergepoint.streams.thing import Entry, Thing
from mergepoint.testing.fakes import Replies, Source, run_block
from mergepoint.testing.simulated_time import Deadlock, SimulatedLoop


def test_the_exit_stamps_what_a_block_made() -> None:
    """What leaves has one more entry, with block, stage and times, and no loose end."""
    (thing,) = run_block(each(lambda thing, ctx: thing.plus(score=1)), ["a"], stage_id="r.odd")
    assert thing.history[-1] == Entry(id="0", added={"score": 1}, block="odd", stage_id="r.odd")
    assert thing.base is None is thing.made


def test_the_exit_writes_when_an_item_came_and_left() -> None:
    """The times of an entry are those at which the item was pulled and at which it left."""
    ticks = iter([10.0, 11.0, 12.0, 13.0])
    ctx = BlockContext("s", clock=lambda: next(ticks))
    things = asyncio.run(_all(each(lambda thing, ctx: thing.plus(a=1)), Source("ab"), ctx))
    spans = [(thing.history[-1].started, thing.history[-1].ended) for thing in things]
    assert spans == [(10.0, 11.0), (12.0, 13.0)]


def test_what_a_block_passes_on_leaves_as_it_came() -> None:
    """An item that a block did nothing with is the same object after the stage."""
    items = list(entered("abc"))
    passed = run_block(each(lambda thing, ctx: thing), items)
    assert all(after is before for after, before in zip(passed, items, strict=True))


def test_a_stage_pulls_what_is_wanted() -> None:
    """Two wanted of ten are two pulled, and the source is closed."""
    source = Source(range(10))
    assert len(run_block(each(lambda thing, ctx: thing.plus(a=1)), source, wanted=2)) == 2
    assert (source.pulled, source.closed) == (2, True)


def test_a_stage_that_nobody_asks_pulls_nothing() -> None:
    """Closed before it was asked, a stage has pulled nothing."""
    source = Source(range(10))
    assert run_block(each(lambda thing, ctx: thing), source, wanted=0) == []
    assert source.pulled == 0


async def _all(kind: BlockType[Params], source: Source, ctx: BlockContext) -> list[Thing]:
    async with aclosing(run_stage(kind, source, Params(), ctx)) as stage:
        return [thing async for thing in stage]


def test_the_exit_closes_what_a_block_forgot() -> None:
    """A block that ends early, or leaves a map open, has its map and its items closed."""

    async def same(thing: Thing, ctx: BlockContext) -> Thing:
        return thing

    for kind in (typed(careless), mapping(same)):
        for wanted in (1, None):
            source = Source(range(3))
            run_block(kind, source, wanted=wanted)
            assert source.closed


def test_a_block_that_ends_early_ends_its_items() -> None:
    """A stage that came to its end has closed its items, also where nobody closes the stage."""

    async def run() -> bool:
        source = Source(range(3))
        stage = run_stage(typed(careless), source, Params(), BlockContext("s"))
        assert len([thing async for thing in stage]) == 1
        return source.closed

    assert asyncio.run(run())


def test_a_block_has_cleaned_up_when_its_stage_is_closed() -> None:
    """What a block does at its end, and awaits, is done before the close of its stage returns."""
    done: list[str] = []

    async def tidy(
        items: AsyncIterator[Thing], params: Params, ctx: BlockContext
    ) -> AsyncIterator[Thing]:
        """Clean up at the end."""
        try:
            async for thing in items:
                yield thing
        finally:
            await asyncio.sleep(0)
            done.append("block")

    async def run() -> None:
        stage = run_stage(typed(tidy), Source(range(3)), Params(), BlockContext("s"))
        await anext(stage)
        await stage.aclose()
        assert done == ["block"]

    asyncio.run(run())


def test_nothing_is_left_running() -> None:
    """After a stage is closed in the middle of a concurrent map, no task of it is alive."""

    async def slow(thing: Thing, ctx: BlockContext) -> Thing:
        if thing.id != "0":
            await asyncio.Event().wait()
        return thing.plus(a=1)

    async def run() -> None:
        source = Source(range(9))
        stage = run_stage(mapping(slow), source, Params(), BlockContext("s", width=4))
        assert (await anext(stage)).id == "0"
        await stage.aclose()
        assert source.closed
        gc.collect()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_block_that_waits_for_ever_is_a_deadlock() -> None:
    """In a simulation a block that waits for what nobody will give is found at once."""

    async def run() -> None:
        await anext(run_stage(typed(endless), Source("a"), Params(), BlockContext("s")))

    with pytest.raises(Deadlock, match="endless"):
        SimulatedLoop().run(run)


def test_a_block_that_never_yields_can_be_cancelled() -> None:
    """A stage whose block waits for ever ends when its task is cancelled, and closes its items."""

    async def run() -> Source:
        source = Source(range(3))
        stage = run_stage(typed(endless), source, Params(), BlockContext("s"))

        async def first() -> Thing:
            return await anext(stage)

        task = asyncio.create_task(first())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stage.aclose()
        return source

    assert asyncio.run(run()).closed


@pytest.mark.parametrize("kind", [each, mapping])
def test_a_block_that_raises_is_located(kind: Any) -> None:
    """An error out of a block keeps its type, and says stage, block and item."""

    def make(thing: Thing, ctx: BlockContext) -> Any:
        if thing.id == "2":
            raise ZeroDivisionError("odd")
        return thing

    async def later(thing: Thing, ctx: BlockContext) -> Any:
        await asyncio.sleep(0)
        return make(thing, ctx)

    source = Source(range(5))
    with pytest.raises(ZeroDivisionError) as raised:
        run_block(kind(make if kind is each else later), source, stage_id="outer.odd")
    assert [note.split(", ")[0] for note in raised.value.__notes__] == [
        "at outer.odd (odd)",
        "item 2",
    ]
    error: Any = raised.value
    assert (error.pipeline_path, error.item) == ("outer.odd", "2")
    assert source.closed


def test_the_items_before_a_failing_one_leave() -> None:
    """What was finished before a block raised has been given."""
    kind = each(lambda thing, ctx: thing.plus(a=1 / (2 - thing.content)))
    assert [thing.id for thing in run_block(kind, range(5), wanted=2)] == ["0", "1"]
    with pytest.raises(ZeroDivisionError):
        run_block(kind, range(5), wanted=3)


def test_an_error_of_an_earlier_stage_keeps_its_place() -> None:
    """What came out of a stage before is not said to come out of the stages after it."""

    async def run() -> None:
        first = run_stage(
            each(lambda thing, ctx: 1 / 0, name="first"),
            Source("a"),
            Params(),
            BlockContext("r.first"),
        )
        second = run_stage(
            each(lambda thing, ctx: thing, name="second"), first, Params(), BlockContext("r.second")
        )
        async for _ in second:
            pass

    with pytest.raises(ZeroDivisionError) as raised:
        asyncio.run(run())
    assert [note.split(", ")[0] for note in raised.value.__notes__] == [
        "at r.first (first)",
        "item 0",
    ]


def test_an_error_of_the_source_is_given() -> None:
    """What the source of a stream raises comes through."""
    with pytest.raises(OSError, match="gone"):
        run_block(each(lambda thing, ctx: thing), Source("a", error=OSError("gone")))


STRANGE: list[tuple[Any, str]] = [
    (lambda thing, ctx: "text", "yielded 'text', which isn't a Thing"),
    (lambda thing, ctx: None, "yielded None, which isn't a Thing"),
    (
        lambda thing, ctx: Thing("new"),
        "yielded a Thing that wasn't made from any of the stage's items",
    ),
    (
        lambda thing, ctx: next(entered(["x", "y"])).plus(a=1),
        "yielded 0, which wasn't made from any",
    ),
    (
        lambda thing, ctx: Thing(
            "t", {}, (*thing.history, Entry(id="0", drafts=("t",), block="b"))
        ),
        "yielded 0, which wasn't made from any of the stage's items",
    ),
    (lambda thing, ctx: [thing, thing], "two Things with the id 0 leave"),
    (lambda thing, ctx: [ctx.child(thing, 1), ctx.child(thing, 1)], "two Things with the id 0.1"),
    (lambda thing, ctx: [thing, ctx.child(thing, 0)], "0 leaves together with its own child"),
    (lambda thing, ctx: [ctx.child(thing, 0), thing], "0 leaves together with its own child"),
    (
        lambda thing, ctx: [ctx.child(ctx.child(thing, 0), 0), ctx.child(thing, 0)],
        "0.0 leaves together with its own child",
    ),
]


@pytest.mark.parametrize(("make", "problem"), STRANGE)
def test_what_breaks_the_contract_is_refused(make: Any, problem: str) -> None:
    """What is no Thing, comes from nowhere, or has the id of another does not leave."""
    with pytest.raises(BlockError, match=rf"^outer\.odd \(odd\), item 0: {problem}") as raised:
        run_block(each(make), ["text"], stage_id="outer.odd")
    error = raised.value
    assert (error.stage_id, error.block, error.item) == ("outer.odd", "odd", "0")


@pytest.mark.parametrize(
    "make",
    [
        lambda thing, ctx: Thing(thing.content, {}, thing.history),
        lambda thing, ctx: replace(thing, props={}),
        lambda thing, ctx: replace(thing, history=thing.history[:1], props={"b": 1}),
    ],
)
def test_a_block_cannot_remove_a_prop(make: Any) -> None:
    """A Thing without a prop that it had cannot be made, and the error says where it was tried."""
    with pytest.raises(ValueError, match="differ from the history of 0") as raised:
        run_block(each(make), [Thing("text", {"a": 1})], stage_id="outer.odd")
    assert [note.split(", ")[0] for note in raised.value.__notes__] == [
        "at outer.odd (odd)",
        "item 0",
    ]


def test_a_worker_may_give_back_a_copy() -> None:
    """A Thing that was changed in another process, and read from its bytes, leaves like any."""

    async def far_away(thing: Thing, ctx: BlockContext) -> Thing:
        sent = pickle.dumps(thing)
        del thing
        back: Thing = pickle.loads(sent)  # noqa: S301  (our own bytes)
        return pickle.loads(pickle.dumps(back.plus(a=1)))  # type: ignore[no-any-return]  # noqa: S301

    async def run() -> list[Thing]:
        items, ctx = each_of(entered(range(9))), BlockContext("s", width=3)
        async with run_stage(mapping(far_away), items, Params(), ctx) as stage:
            return [thing async for thing in stage]

    assert [thing.why("a").values for thing in asyncio.run(run())] == [(1,)] * 9


def test_a_block_that_is_no_generator_is_refused() -> None:
    """A function that gives a list, and no async iterator, is told what a block is."""

    def listing(items: Any, params: Any, ctx: Any) -> Any:
        """Return a list."""
        return []

    with pytest.raises(
        BlockError, match=r"^stage \(odd\): returned \[\] instead of an async iterator"
    ):
        run_block(typed(listing), ["a"])


def test_items_that_no_stage_let_out_are_refused() -> None:
    """A stage takes Things that are in a stream, and says how others get there."""

    async def items() -> AsyncIterator[Thing]:
        yield Thing("fresh")

    async def run() -> None:
        async with aclosing(
            run_stage(each(lambda thing, ctx: thing), items(), Params(), BlockContext("s"))
        ) as stage:
            await anext(stage)

    with pytest.raises(BlockError, match="which isn't a Thing from a stream; use entered"):
        asyncio.run(run())


def test_an_error_survives_a_process() -> None:
    """A BlockError that is sent from a worker says the same there."""
    error = BlockError("odd", stage_id="s", block="b", item="0")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "s (b), item 0: odd"  # noqa: S301


def test_a_thing_may_come_back_in_a_later_round() -> None:
    """An item that comes to the same stage again may leave it again."""
    recent, (thing,) = RecentIds(), entered("a")
    for _ in range(3):
        recent.came(thing.id)
        assert recent.problem(thing) == ""
    assert (
        recent.problem(thing)
        == "two Things with the id 0 leave the stage; use a new number for each child"
    )


def test_a_stage_forgets_ids_that_are_long_gone() -> None:
    """What a stage remembers of ids is bounded, so memory stays flat."""
    recent, things = RecentIds(), list(entered(range(MOST + 1)))
    assert [recent.problem(thing) for thing in things] == [""] * len(things)
    assert recent.problem(things[0]) == ""
    assert recent.problem(things[2])


def test_a_word_that_is_nearly_known_is_warned_of_once() -> None:
    """A misspelt prop gives one warning a stage, with stage and block, and stays as it is."""
    with pytest.warns(VocabularyWarning, match=r"^s \(odd\): prop 'scroe'.*'score'") as warned:
        things = run_block(each(lambda thing, ctx: thing.plus(scroe=1)), "abc", stage_id="s")
    assert len(warned) == 1
    assert [thing.props for thing in things] == [{"scroe": 1}] * 3


def test_each_value_of_status_is_looked_at() -> None:
    """A status that is nearly known is warned of also after a right one."""
    with pytest.warns(VocabularyWarning, match="'doen'.*'done'"):
        run_block(
            each(lambda thing, ctx: thing.plus(status=thing.content)), ["done", "doen", "mine"]
        )


def test_a_batch_is_a_stream_of_its_own() -> None:
    """With a batch a block sees so many items and an end, again and again."""
    made = run_block("synthesize", "abcde", {"strategy": "concat"}, batch={"count": 2})
    assert [thing.content for thing in made] == ["a\n\nb", "c\n\nd", "e"]
    assert [thing.id for thing in made] == ["stage#0", "stage#1", "stage#2"]
    assert [thing.parents for thing in made] == [("0", "1"), ("2", "3"), ("4",)]


def test_batches_are_lazy_and_closed() -> None:
    """What is wanted of the first batch pulls the first batch alone, and closes the items."""
    source = Source(range(9))
    run_block("vote", source, batch={"count": 3}, wanted=1)
    assert (source.pulled, source.closed) == (3, True)


def test_a_million_items_are_not_remembered() -> None:
    """What a stage knows of its items goes with them."""

    async def run() -> int:
        ctx = BlockContext("s")

        async def items() -> AsyncIterator[Thing]:
            for thing in entered(range(5000)):
                yield thing

        kind = REGISTRY.find("filter")
        params = kind.given({"where": {"content": -1}})
        async with aclosing(run_stage(kind, items(), params, ctx)) as stage:
            assert [thing async for thing in stage] == []
        return len(ctx.items)

    assert asyncio.run(run()) <= 1


def test_a_model_is_named_in_the_entry() -> None:
    """The calls that were made for a Thing, and their models, are in its entry."""

    async def ask(thing: Thing, ctx: BlockContext) -> Thing:
        answer = await ctx.ask(thing, f"Rate {thing.content}")
        return thing.plus(score=len(answer.text))

    things = run_block(mapping(ask), "ab", client=Replies(lambda ask: "ok"), width=2)
    assert [thing.history[-1].calls for thing in things] == [
        ("0@stage/0.0",),
        ("1@stage/0.0",),
    ]
    assert things[0].history[-1].model == "testing:replies"


def test_an_answer_is_in_the_history_though_nothing_was_made_of_it() -> None:
    """A Thing for which a model was asked has an entry also where the block let it be."""

    async def ask(thing: Thing, ctx: BlockContext) -> Thing:
        await ctx.ask(thing, "?")
        return thing

    (thing,) = run_block(mapping(ask), "a", client=Replies(lambda ask: "no"))
    assert thing.history[-1].calls == ("0@stage/0.0",)


def test_no_warning_is_given_without_reason() -> None:
    """Blocks with their own words and those of the vocabulary run without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_block(each(lambda thing, ctx: thing.plus(score=1, mood="good", status="done")), "ab")
