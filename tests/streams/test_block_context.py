"""BlockContext: ids, random numbers, concurrency, calls of models, notes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.streams.blocks import each, mapping, typed

from mergepoint.aio.stream import from_iterable as each_of
from mergepoint.core.errors import RecipeError
from mergepoint.streams.block_context import BlockContext, NotesInMemory
from mergepoint.streams.model_calls import (
    ModelAnswer,
    ModelRequest,
    TreeRequest,
    TreeResult,
)
from mergepoint.streams.params import Params
from mergepoint.streams.stage_run import entered, run_stage
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import Replies, Source, run_block
from mergepoint.testing.simulated_time import SimulatedLoop
from mergepoint.tree.leaves import Step


@pytest.mark.parametrize("width", [0, -1, True, 1.5, None])
def test_a_stage_has_at_least_one_at_work(width: Any) -> None:
    """A concurrency of nothing is an error with the stage's name, and no run that hangs."""
    with pytest.raises(RecipeError, match=r"r\.vote: width must be an integer of at least 1"):
        BlockContext("r.vote", width=width)


def test_prefetch_is_nothing_or_more() -> None:
    """Fewer than no results waiting is an error."""
    with pytest.raises(RecipeError, match="prefetch must be an integer of at least 0, not -1"):
        BlockContext("s", prefetch=-1)


def test_random_numbers_depend_on_seed_stage_and_thing() -> None:
    """The same three give the same numbers, and each of them alone makes others."""
    a, b = entered("ab")
    first = BlockContext("s", seed=1).rng(a).random()
    assert BlockContext("s", seed=1).rng(a.plus(x=1)).random() == first
    others = [
        BlockContext("s", seed=2).rng(a).random(),
        BlockContext("t", seed=1).rng(a).random(),
        BlockContext("s", seed=1).rng(b).random(),
    ]
    assert len({first, *others}) == 4


def test_ids_of_joined_things_are_counted() -> None:
    """What a stage makes of several is numbered in the order in which it is made."""
    ctx, (a, b) = BlockContext("r.vote"), list(entered("ab"))
    assert [ctx.joined([a]).id, ctx.joined([a, b]).id, ctx.next_id()] == [
        "r.vote#0",
        "r.vote#1",
        "r.vote#2",
    ]


@pytest.mark.parametrize("width", [1, 3])
def test_so_many_are_at_work_at_once(width: int) -> None:
    """Never more functions run at once than the width allows, and that many do."""
    at_work, most = 0, 0

    async def work(thing: Thing, ctx: BlockContext) -> Thing:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        for _ in range(5):
            await asyncio.sleep(0)
        at_work -= 1
        return thing.plus(a=1)

    things = run_block(mapping(work), range(12), width=width)
    assert [thing.id for thing in things] == [str(number) for number in range(12)]
    assert most == width


def test_a_map_takes_whatever_comes() -> None:
    """A map works on items that are no Things, as samples to be made; errors name their Thing."""

    async def samples(items: AsyncIterator[Thing]) -> AsyncIterator[tuple[Thing, int]]:
        async for thing in items:
            for number in range(3):
                yield thing, number

    async def function(
        items: AsyncIterator[Thing], params: Params, ctx: BlockContext
    ) -> AsyncIterator[Thing]:
        """Make three children."""

        async def one(sample: tuple[Thing, int]) -> Thing:
            thing, number = sample
            if thing.content == "bad":
                raise OSError("gone")
            return ctx.child(thing, number)

        async with aclosing(ctx.map(samples(items), one)) as made:
            async for thing in made:
                yield thing

    found = run_block(typed(function), "ab", width=2)
    assert [thing.id for thing in found] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    source = Source("ab")
    assert len(run_block(typed(function), source, wanted=2)) == 2
    assert source.pulled == 1
    with pytest.raises(OSError, match="gone") as raised:
        run_block(typed(function), ["good", "bad"])
    assert [note.split(", ")[0] for note in raised.value.__notes__] == ["at stage (odd)", "item 1"]


def test_a_call_is_named_by_thing_stage_number_and_sample() -> None:
    """Calls for a Thing are numbered, each sample by itself, whatever the order of others."""
    replies = Replies(lambda ask: "ok")

    async def ask(thing: Thing, ctx: BlockContext) -> Thing:
        await asyncio.gather(*(ctx.ask(thing, "?", sample=sample) for sample in range(2)))
        await ctx.ask(thing, "again", sample=1, system="Be brief.")
        return thing

    run_block(mapping(ask), "ab", client=replies, width=2, stage_id="r.s")
    keys = {(one.thing_id, one.stage_id, one.number, one.sample) for one in replies.asks}
    assert keys == {
        (name, "r.s", number, sample)
        for name in "01"
        for number, sample in ((0, 0), (0, 1), (1, 1))
    }
    assert {one.system for one in replies.asks} == {None, "Be brief."}


def test_calls_are_in_order_however_they_came() -> None:
    """The entry lists calls by number and sample, though a later one was answered first."""

    async def slow_at_first(ask: ModelRequest, /) -> ModelAnswer:
        await asyncio.sleep(9 - ask.sample)
        return ModelAnswer(text="", call=f"{ask.number}.{ask.sample}", model=f"m{ask.sample}")

    async def ask(thing: Thing, ctx: BlockContext) -> Thing:
        await asyncio.gather(*(ctx.ask(thing, "?", sample=sample) for sample in range(3)))
        await ctx.ask(thing, "?", sample=1)
        return thing

    async def run() -> Thing:
        ctx = BlockContext("s", client=slow_at_first)
        async with run_stage(mapping(ask), Source("a"), Params(), ctx) as stage:
            return await anext(stage)

    entry = SimulatedLoop().run(run).history[-1]
    assert (entry.calls, entry.model) == (("0.0", "0.1", "0.2", "1.1"), "m0, m1, m2")


def test_calls_are_counted_on_in_later_rounds() -> None:
    """A Thing that comes to the stage again gets new numbers, read from its history."""
    replies = Replies(lambda ask: "ok")

    async def ask(thing: Thing, ctx: BlockContext) -> Thing:
        await ctx.ask(thing, "?")
        return thing.plus(a=1)

    kind, ctx = mapping(ask), BlockContext("s", client=replies)

    async def rounds() -> Thing:
        thing = next(entered("a"))
        for _ in range(3):
            stage = run_stage(kind, Source([thing]), Params(), ctx)
            (thing,) = [one async for one in stage]
        return thing

    thing = asyncio.run(rounds())
    assert [one.number for one in replies.asks] == [0, 1, 2]
    assert [entry.calls for entry in thing.history[1:]] == [
        (f"0@s/{number}.0",) for number in range(3)
    ]


def test_every_call_of_several_trees_is_in_the_history() -> None:
    """A block that runs two trees and asks twice for one Thing loses none of their calls."""

    async def runner(talk: TreeRequest, /) -> TreeResult:
        calls = tuple(f"{talk.number}/{name}" for name in "abc")
        return TreeResult(text="", outputs={}, calls=calls, models=("m",))

    async def work(thing: Thing, ctx: BlockContext) -> Thing:
        tree = Step("Go on.")
        await asyncio.gather(*(ctx.talk(thing, tree, message=None, inputs={}) for _ in range(2)))
        await ctx.ask(thing, "?")
        await ctx.ask(thing, "?", sample=1)
        return thing

    async def run() -> Thing:
        ctx = BlockContext("s", client=Replies(lambda ask: "ok"), tree_runner=runner)
        async with run_stage(mapping(work), Source("a"), Params(), ctx) as stage:
            return await anext(stage)

    calls = asyncio.run(run()).history[-1].calls
    assert calls == ("0/a", "0/b", "0/c", "0@s/0.1", "1/a", "1/b", "1/c", "0@s/2.0")


def test_calls_are_counted_stage_by_stage() -> None:
    """What was asked at another stage does not count here."""
    replies = Replies(lambda ask: "ok")
    things = run_block(mapping(_answered), "a", client=replies, stage_id="one")
    run_block(mapping(_answered), things, client=replies, stage_id="two")
    assert [(one.stage_id, one.number) for one in replies.asks] == [("one", 0), ("two", 0)]


def test_maps_that_are_over_are_forgotten() -> None:
    """A block may make a map for each of its items, and the context holds the open one alone."""
    most = 0

    async def nested(
        items: AsyncIterator[Thing], params: Params, ctx: BlockContext
    ) -> AsyncIterator[Thing]:
        """Make three children of each in a map of their own."""
        nonlocal most
        async for thing in items:

            async def one(child: Thing) -> Thing:
                return child

            async for child in ctx.map(each_of([ctx.child(thing, n) for n in range(3)]), one):
                most = max(most, len(ctx.maps))
                yield child

    assert len(run_block(typed(nested), range(9))) == 27
    assert most == 1


def test_calls_for_a_child_are_its_own() -> None:
    """Each sample has the call that was made for it, and all have the one they share."""
    replies = Replies(lambda ask: "ok")

    async def split(items: AsyncIterator[Thing], params: Params, ctx: BlockContext) -> Any:
        """Ask once for all, and once for each of two."""
        async for thing in items:
            await ctx.ask(thing, "plan")
            for number in range(2):
                child = ctx.child(thing, number)
                answer = await ctx.ask(child, "do")
                yield child.redrafted(answer.text)

    things = run_block(typed(split), "a", client=replies)
    assert [thing.history[-1].calls for thing in things] == [
        ("0@stage/0.0", "0.0@stage/0.0"),
        ("0@stage/0.0", "0.1@stage/0.0"),
    ]


def test_calls_for_a_joined_thing_are_its_own() -> None:
    """What a model was asked about several is in the history of what they became."""

    async def combine(items: AsyncIterator[Thing], params: Params, ctx: BlockContext) -> Any:
        """Make one of all."""
        joined = ctx.joined([thing async for thing in items])
        yield await _answered(joined, ctx)

    (thing,) = run_block(typed(combine), "ab", client=Replies(lambda ask: "both"))
    assert (thing.content, thing.history[-1].calls) == ("both", ("stage#0@stage/0.0",))


async def _answered(thing: Thing, ctx: BlockContext) -> Thing:
    return thing.redrafted((await ctx.ask(thing, "?")).text)


def test_calls_are_forgotten_with_their_things() -> None:
    """What was asked for a Thing is not kept when it is gone."""

    async def run() -> int:
        ctx = BlockContext("s", client=Replies(lambda ask: "ok"))
        stage = run_stage(mapping(_answered), Source(range(50)), Params(), ctx)
        async with aclosing(stage):
            async for _ in stage:
                pass
        del stage
        gc.collect()
        return len(ctx.items)

    assert asyncio.run(run()) <= 1


def test_a_stage_without_a_model_says_so() -> None:
    """Asking where there is no model is an error that names the stage."""
    with pytest.raises(RecipeError, match=r"^stage: this stage has no model"):
        run_block(mapping(_answered), "a")


def test_a_model_that_fails_is_located() -> None:
    """An error of a model comes out with stage, block and item."""
    with pytest.raises(OSError, match="down") as raised:
        run_block(mapping(_answered), "a", client=Replies(lambda ask: OSError("down")))
    assert [note.split(", ")[0] for note in raised.value.__notes__] == ["at stage (odd)", "item 0"]


def test_what_is_noted_is_not_made_again() -> None:
    """A value under a key is made once, and a later run with the same notes finds it."""
    notes, made = NotesInMemory(), []

    async def look(thing: Thing, ctx: BlockContext) -> Thing:
        async def make() -> Any:
            made.append(thing.id)
            return {"found": thing.id}

        return thing.plus(await ctx.once(f"look {thing.id}", make))

    first = run_block(mapping(look), "ab", notes=notes)
    assert run_block(mapping(look), "ab", notes=notes) == first
    assert made == ["0", "1"]
    assert notes.kept["stage", "look 1"] == {"found": "1"}


def test_a_note_is_written_once() -> None:
    """A second value under one key would make the record ambiguous."""
    notes = NotesInMemory()
    notes.write("s", "k", 1)
    with pytest.raises(ValueError, match="s: the note 'k' was already"):
        notes.write("s", "k", 2)


def test_replies_are_canned_by_prompt_too() -> None:
    """The shipped fake answers from a mapping of prompts to texts."""
    replies = Replies({"?": "42"})
    (thing,) = run_block(mapping(_answered), "a", client=replies)
    assert thing.content == "42"
    assert replies.asks == [
        ModelRequest(thing_id="0", stage_id="stage", number=0, sample=0, prompt="?")
    ]


def test_children_are_made_by_the_context() -> None:
    """The child of a Thing is numbered below it and leaves in its place."""
    made = run_block(each(lambda thing, ctx: [ctx.child(thing, n) for n in range(2)]), "ab")
    assert [thing.id for thing in made] == ["0.0", "0.1", "1.0", "1.1"]
