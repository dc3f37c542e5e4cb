"""reduce: combine the Things of a group, a few at a time, level by level."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import Field

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import BlockContext, IsolatedItem, origin_among
from mergepoint.streams.conditions import CONTENT, failed
from mergepoint.streams.grouping import Grouped, groups
from mergepoint.streams.prompting import failing, listed
from mergepoint.streams.provenance import group_of, regrouped
from mergepoint.streams.recipe import Stage
from mergepoint.streams.recipe_yaml import StageForm
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Reduce(Grouped):
    """The stages that combine neighbors."""

    stages: list[StageForm] = Field(
        min_length=1, description="stages that combine the contents of neighbors into one Thing"
    )
    last: list[StageForm] | None = Field(
        default=None, min_length=1, description="stages for the last level; default: `stages`"
    )
    size: int = Field(
        default=2, ge=2, description="number of neighbors that are combined at a time"
    )

    def inside(self) -> Mapping[str, tuple[Stage, ...]]:
        """Return the nested stages by name."""
        ways = {"stages": tuple(stage.made() for stage in self.stages)}
        return (
            ways
            if self.last is None
            else {**ways, "last": tuple(stage.made() for stage in self.last)}
        )


@block(
    "reduce",
    params=Reduce,
    adds=["task"],
    rewrites=True,
    in_order=True,
    inside=lambda params: params.inside(),
    inside_has=["task"],
    reaches_out=True,
)
async def reduce(
    items: AsyncIterator[Thing], params: Reduce, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Combine each group into one Thing: neighbors become one, level by level.

    Neighbors pass `stages` as one Thing: its content is the numbered list of theirs, and `task` is
    the content that they were all made from. The stages must return one Thing. A Thing without a
    neighbor continues to the next level. Failed Things are skipped; if none is left, the result has
    the status `failed`, with the `reason`. Aggregation in Graph of Thoughts: Besta et al. 2023,
    https://arxiv.org/abs/2308.09687
    """
    async with aclosing(groups(items, params.per)) as found:
        async for group in found:
            # Ids inside depend on the group only, not on other groups in progress.
            own = ctx.within(IsolatedItem(ctx.next_id()))
            left = [member for member in group.members if not failed(member)]
            while len(left) > 1:
                left = await _level(left, params, own)
            if left:
                yield regrouped(left[0], group_of(group.members, whole=True))
            else:
                reason = f"all {len(group.members)} members of the group failed"
                yield failing(ctx.joined(group.members, whole=True), reason)


async def _level(things: Sequence[Thing], params: Reduce, ctx: BlockContext) -> list[Thing]:
    """Return the Things after combining neighbors once."""
    sets = [things[at : at + params.size] for at in range(0, len(things), params.size)]
    slots = [_slot(several, ctx) if len(several) > 1 else several[0] for several in sets]
    made: dict[str, list[Thing]] = {
        slot.id: [] for slot, several in zip(slots, sets, strict=True) if len(several) > 1
    }
    way = "last" if len(sets) == 1 and params.last is not None else "stages"
    entering = [slot for slot in slots if slot.id in made]
    async with aclosing(ctx.inside(way, entering)) as results:
        async for result in results:
            made[origin_among(made, result)].append(result)
    return [one for slot in slots for one in _one(slot, made.get(slot.id, [slot]))]


def _slot(things: Sequence[Thing], ctx: BlockContext) -> Thing:
    """Return the Thing that stands for several neighbors and passes the stages."""
    joined = ctx.joined(things)
    text: Any = listed(things)["listed"]
    return joined.plus(task=joined.content).redrafted(text).taken_from(things, CONTENT)


def _one(slot: Thing, made: Sequence[Thing]) -> Sequence[Thing]:
    """Return the result for some neighbors, or nothing if it failed.

    Raise BlockError for several results.
    """
    able = [one for one in made if not failed(one)]
    if len(able) > 1:
        raise BlockError(
            f"its stages return {len(able)} Things for {slot.id}; end them with a block that "
            "combines several, such as synthesize",
            item=slot.id,
        )
    return able
