"""checkpoint: a durable, named point."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from pydantic import Field

from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.thing import Thing


class Checkpoint(Params):
    """The name of the point."""

    name: str = Field(min_length=1, description="what a run is resumed or forked from by")


@block("checkpoint", params=Checkpoint, adds=("checkpoint",), barrier=True)
async def checkpoint(
    items: AsyncIterator[Thing], params: Checkpoint, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Write each Thing down as it is, under the name of the point, and let it pass.

    The note is the Thing as JSON data with its whole history, under `<name>/<id>/<entries>`, so
    that a run can go on, or another begin, with the Things of this point. Writes `checkpoint`, the
    name; earlier points stay in the history.
    """
    async for thing in items:
        await ctx.once(f"{params.name}/{thing.id}/{len(thing.history)}", partial(_plain, thing))
        yield thing.plus(checkpoint=params.name)


async def _plain(thing: Thing) -> dict[str, Any]:
    return thing.to_plain()
