"""checkpoint: a durable, named point."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from pydantic import Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Checkpoint(Params):
    """The name of the point."""

    name: str = Field(min_length=1, description="the name of the point in the journal")


@block("checkpoint", params=Checkpoint, adds=("checkpoint",), barrier=True)
async def checkpoint(
    items: AsyncIterator[Thing], params: Checkpoint, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Store each Thing unchanged in the journal, under the name of the point.

    The note is the Thing as JSON data with its whole history, under `<name>/<id>/<entries>`;
    `Thing.from_plain` reads it. In a compiled recipe, it ends a segment. A run can't start from it,
    but a resumed run, or another run with `reuse`, reaches this point without paying for a call
    again. Writes `checkpoint`, the name; earlier points stay in the history.
    """
    async for thing in items:
        # The number of entries is part of the key: a Thing passes once per round.
        await ctx.once(f"{params.name}/{thing.id}/{len(thing.history)}", partial(_plain, thing))
        yield thing.plus(checkpoint=params.name)


async def _plain(thing: Thing) -> dict[str, Any]:
    return thing.to_plain()
