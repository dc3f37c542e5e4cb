"""select: keep the best Things, or those above a threshold."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing

from pydantic import Field, model_validator

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.blocks.vote import Ranking, ranked, strength
from mergepoint.streams.conditions import failed
from mergepoint.streams.grouping import Grouped, groups
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Select(Grouped, Ranking):
    """The Things to keep."""

    top_k: int | None = Field(
        default=None, ge=1, description="number of best Things to keep per group, best first"
    )
    threshold: float | None = Field(
        default=None, description="keep Things whose number is at least this (with lowest: at most)"
    )
    take: int | None = Field(
        default=None, ge=1, description="end the stream after this number of Things"
    )

    @model_validator(mode="after")
    def _some(self) -> Select:
        if self.top_k is None and self.threshold is None and self.take is None:
            raise ValueError("set at least one of top_k, threshold, take")
        return self

    @property
    def is_ranked(self) -> bool:
        """Return whether the number is used."""
        return self.top_k is not None or self.threshold is not None


@block(
    "select",
    params=Select,
    needs=lambda params: (params.by,) if params.is_ranked else (),
    adds=lambda params: () if params.top_k is None else ("rank",),
    in_order=True,
)
async def select(
    items: AsyncIterator[Thing], params: Select, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Keep the best Things of each group, those above a threshold, or a fixed number.

    Ties keep lineage order; failed Things are dropped. A threshold decides immediately, without
    waiting for the group. After `take` Things, nothing more is pulled. Reads the number `by`; with
    `top_k`, writes `rank`, 1 for the best.
    """
    taken = 0
    async with aclosing(_chosen(items, params)) as chosen:
        async for thing in chosen:
            yield thing
            taken += 1
            if taken == params.take:
                return


async def _chosen(items: AsyncIterator[Thing], params: Select) -> AsyncGenerator[Thing, None]:
    if params.top_k is None:
        async for thing in items:
            if not failed(thing) and _is_good(thing, params):
                yield thing
        return
    async with aclosing(groups(items, params.per)) as found:
        async for group in found:
            for rank, thing in enumerate(_best(group.members, params), start=1):
                yield thing.plus(rank=rank)


def _best(members: Iterable[Thing], params: Select) -> list[Thing]:
    good = [thing for thing in ranked(members, params) if _is_good(thing, params)]
    return good[: params.top_k]


def _is_good(thing: Thing, params: Select) -> bool:
    if params.threshold is None:
        return True
    limit = -params.threshold if params.lowest else params.threshold
    return strength(thing, params) >= limit
