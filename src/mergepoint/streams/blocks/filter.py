"""filter: Things that pass."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import Field

from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.thing import Thing
from mergepoint.streams.where import Where, holds, read_props


class Filter(Params):
    """What has to hold, or with `drop` must not."""

    where: Where
    drop: bool = Field(default=False, description="let pass those for which it does not hold")


@block("filter", params=Filter, needs=lambda params: read_props(params.where))
async def filter_(
    items: AsyncIterator[Thing], params: Filter, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Let those Things pass for which a condition on their props holds.

    They leave as they came. Reads the props that the condition names; writes nothing.
    """
    async for thing in items:
        if holds(params.where, thing) is not params.drop:
            yield thing
