"""accumulate: group Things by count, time, budget, or condition."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, read_props
from mergepoint.streams.grouping import Gather, gathered
from mergepoint.streams.provenance import group_marks
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Accumulate(Gather):
    """When a group is complete."""


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
    """Collect Things until a group of them is complete, then emit them, marked as that group.

    A group is complete at a count, time, budget, or condition, whichever comes first, or at the end
    of the stream. Writes `group` (its id), `group_size`, and `group_last`, from which vote, select,
    synthesize, dedupe, and merge know the group. The parameter `batch` of any other block applies
    the same rules: the block then receives each group as a stream of its own, and no props are
    written.
    """
    async with aclosing(gathered(items, params, ctx)) as batches:
        async for members in batches:
            marks = group_marks(ctx.next_id(), members)
            for member in members:
                yield member.plus(marks)
