"""Gather: how Things are taken together: by count, time, budget, a condition, or all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from pydantic import Field

from mergepoint.streams.context import BlockContext
from mergepoint.streams.notes import MISSING
from mergepoint.streams.params import Params
from mergepoint.streams.reading import failed, number
from mergepoint.streams.thing import Thing
from mergepoint.streams.where import Where, holds


class Gather(Params):
    """When a batch is whole: whichever of these comes first; with none of them, at the end."""

    count: int | None = Field(default=None, ge=1, description="so many Things")
    seconds: float | None = Field(
        default=None, gt=0, description="so long after its first Thing came (depends on time)"
    )
    budget: dict[str, float] | None = Field(
        default=None,
        min_length=1,
        description="sums of props that no batch goes over; a Thing above one is a batch alone",
    )
    until: Where | None = Field(
        default=None, description="a Thing for which this holds is the last"
    )

    @property
    def takes_all(self) -> bool:
        """Say whether there is one batch, of everything."""
        return not (self.count or self.seconds or self.budget or self.until)


async def gathered(
    items: AsyncIterator[Thing], gather: Gather, ctx: BlockContext
) -> AsyncGenerator[tuple[Thing, ...], None]:
    """Give batches of Things in the order in which they come; none is empty.

    Only a budget needs to see a Thing more than is in the batch. What a time limit decides is
    noted, so that a resumed run has the same batches.
    """
    async with aclosing(_Ahead(items)) as ahead:
        first = await ahead.next()
        while first is not None:
            batch = _Batch(gather, first)
            noted = _Noted(gather, first, ctx)
            following = None
            while not (batch.is_whole() if noted.size is None else noted.ends(batch)):
                following = await ahead.next(noted.deadline)
                if following is None or not batch.takes(following):
                    break
                batch.add(following)
                following = None
            noted.write(len(batch.members))
            yield tuple(batch.members)
            if following is None:
                following = await ahead.next()
            first = following


class _Batch:
    """The members so far, and the sums of their props."""

    def __init__(self, gather: Gather, first: Thing) -> None:
        self._gather = gather
        self._sums = dict.fromkeys(gather.budget or {}, 0.0)
        self.members: list[Thing] = []
        self.add(first)

    def add(self, thing: Thing) -> None:
        self.members.append(thing)
        for name in self._sums:
            self._sums[name] += _amount(thing, name)

    def takes(self, thing: Thing) -> bool:
        """Say whether no sum would go over its limit with one more."""
        limits = self._gather.budget or {}
        return all(self._sums[name] + _amount(thing, name) <= limits[name] for name in limits)

    def is_whole(self) -> bool:
        gather = self._gather
        limits = gather.budget or {}
        return (
            len(self.members) == gather.count
            or any(self._sums[name] >= limit for name, limit in limits.items())
            or (gather.until is not None and holds(gather.until, self.members[-1]))
        )


def _amount(thing: Thing, name: str) -> float:
    return 0.0 if failed(thing) and name not in thing.props else number(thing, name)


class _Noted:
    """What is on record of a batch that a time limit may end."""

    def __init__(self, gather: Gather, first: Thing, ctx: BlockContext) -> None:
        self._timed = gather.seconds is not None
        self._key = f"batch of {first.id} after {len(first.history)}"
        self._ctx = ctx
        found: Any = ctx.notes.find(ctx.stage_id, self._key) if self._timed else MISSING
        self.size: int | None = None if found is MISSING else found
        seconds = gather.seconds if self.size is None else None
        self.deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds

    def ends(self, batch: _Batch) -> bool:
        return len(batch.members) == self.size

    def write(self, size: int) -> None:
        if self._timed and self.size is None:
            self._ctx.notes.write(self._ctx.stage_id, self._key, size)


class _Ahead:
    """Items of which the next one may be waited for until a deadline, and longer later on."""

    def __init__(self, items: AsyncIterator[Thing]) -> None:
        self._items = items
        self._coming: asyncio.Task[Thing | None] | None = None

    async def next(self, deadline: float | None = None) -> Thing | None:
        """Give the next item; None at the end, and where the deadline comes first."""
        if deadline is None and self._coming is None:
            return await anext(self._items, None)
        if self._coming is None:
            self._coming = asyncio.create_task(_next(self._items))
        left = None if deadline is None else deadline - asyncio.get_running_loop().time()
        await asyncio.wait({self._coming}, timeout=left)
        if not self._coming.done():
            return None
        coming, self._coming = self._coming, None
        return coming.result()

    async def aclose(self) -> None:
        """End what is waited for; the items are their owner's to close."""
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.gather(self._coming, return_exceptions=True)


async def _next(items: AsyncIterator[Any]) -> Thing | None:
    return await anext(items, None)
