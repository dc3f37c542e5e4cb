"""accumulate: Things taken together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.gather import Gather, gathered
from mergepoint.streams.groups import group_marks
from mergepoint.streams.reading import CONTENT
from mergepoint.streams.thing import Thing
from mergepoint.streams.where import read_props


class Accumulate(Gather):
    """What makes a group whole."""


def _needs(params: Accumulate) -> list[str]:
    return [*(name for name in params.budget or {} if name != CONTENT), *read_props(params.until)]


@block(
    "accumulate",
    params=Accumulate,
    needs=_needs,
    adds=("group", "group_size", "group_last"),
    in_order=True,
    barrier=lambda params: params.takes_all,
)
async def accumulate(
    items: AsyncIterator[Thing], params: Accumulate, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Hold Things back until a group of them is whole, then let them out, marked as that group.

    A group is whole by count, time, budget or a condition, whichever comes first; without any of
    these, when the stream ends. Writes `group` (its id), `group_size` and `group_last`, by which
    vote, select, synthesize, dedupe and merge know the group. As the parameter `batch` of any
    other block the same rules give it the groups as streams of their own, and write nothing.
    """
    async with aclosing(gathered(items, params, ctx)) as batches:
        async for members in batches:
            marks = group_marks(ctx.next_id(), members)
            for member in members:
                yield member.plus(marks)
