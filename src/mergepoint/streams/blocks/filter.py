"""filter: pass Things that match a condition."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import Where, holds, read_props
from mergepoint.streams.params import Params
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Filter(Params):
    """The condition, and whether matches pass or are dropped."""

    where: Where
    drop: bool = Field(default=False, description="drop the matching Things instead of the others")


@block("filter", params=Filter, needs=lambda params: read_props(params.where))
async def filter_(
    items: AsyncIterator[Thing], params: Filter, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Pass only the Things that match a condition on their props.

    They leave unchanged. Reads the props in the condition; writes nothing.
    """
    async for thing in items:
        if holds(params.where, thing) is not params.drop:
            yield thing
