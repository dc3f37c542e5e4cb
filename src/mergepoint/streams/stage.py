"""Stage: one block at work on a stream of Things."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from mergepoint.streams.arrivals import Arrivals, close
from mergepoint.streams.block_error import BlockError
from mergepoint.streams.block_type import BlockType
from mergepoint.streams.context import BlockContext
from mergepoint.streams.flow.stream import Stream
from mergepoint.streams.gather import Gather, gathered
from mergepoint.streams.leaving import Leaving
from mergepoint.streams.params import P
from mergepoint.streams.thing import Thing, stamp

INPUT: Final = "input"


def entered(items: Iterable[Any], *, start: int = 0) -> Iterator[Thing]:
    """Give items their places in a stream: the ids `0`, `1` and on, and a first entry.

    They are counted from `start` on.
    What is no Thing becomes the content of one. Raises ValueError for a Thing with a history.
    """
    for number, item in enumerate(items, start):
        thing = item if isinstance(item, Thing) else Thing(item)
        if thing.history:
            raise ValueError(f"item {number} is {thing.id} of another stream; give Thing(content)")
        yield stamp(None, thing, block=INPUT, stage_id=INPUT, name=str(number))


def run_stage(
    kind: BlockType[P],
    items: AsyncIterator[Thing],
    params: P,
    ctx: BlockContext,
    *,
    batch: Gather | None = None,
) -> Stream[Thing]:
    """Give what a block makes of a stream, checked and stamped. Lazy.

    With `batch` the block gets one batch after the other, each as a stream that ends. When the
    stage ends, fails or is closed, the block, its maps and `items` are closed, whatever the block
    left open.

    Raises what the block raises, and BlockError where it broke its contract; both say stage,
    block and item.
    """
    leaving = Leaving(kind, ctx)
    arrivals = Arrivals(items, leaving.arrived)
    if batch is None:
        made = _made(kind, arrivals, params, ctx)
    else:
        made = _made_of_batches(kind, gathered(arrivals, batch, ctx), params, ctx)
    return Stream(_stamped(made, arrivals, leaving), arrivals.aclose)


async def _stamped(
    made: AsyncGenerator[Any, None], arrivals: Arrivals, leaving: Leaving
) -> AsyncGenerator[Thing, None]:
    with leaving.located():
        async with aclosing(arrivals), aclosing(made):
            async for thing in made:
                yield leaving.stamped(thing)


async def _made_of_batches(
    kind: BlockType[P], batches: AsyncIterator[Sequence[Thing]], params: P, ctx: BlockContext
) -> AsyncGenerator[Any, None]:
    try:
        async for members in batches:
            async with (
                aclosing(_stream(members)) as batch,
                aclosing(_made(kind, batch, params, ctx)) as made,
            ):
                async for thing in made:
                    yield thing
    finally:
        await close(batches)


async def _made(
    kind: BlockType[P], items: AsyncIterator[Thing], params: P, ctx: BlockContext
) -> AsyncGenerator[Any, None]:
    """Give what the block yields; at the end close it, and then the maps that it left open."""
    made = kind.function(items, params, ctx)
    if not hasattr(made, "__anext__"):
        raise BlockError(f"gave {made!r} and no async iterator; a block is an async generator")
    try:
        async for thing in made:
            yield thing
    finally:
        await close(made)
        for results in list(ctx.maps.values()):
            await results.aclose()
        ctx.maps.clear()


async def _stream(members: Sequence[Thing]) -> AsyncGenerator[Thing, None]:
    for member in members:
        yield member
