"""Groups and batches of Things, and decisions on whole groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import MISSING, BlockContext
from mergepoint.streams.conditions import Where, failed, holds, number
from mergepoint.streams.params import Params
from mergepoint.streams.provenance import lineage_order
from mergepoint.streams.thing import Thing

MOST: Final = 4096


class RecentNames:
    """A bounded set of the latest names."""

    def __init__(self) -> None:
        self._names: dict[str | None, None] = {}

    def add(self, name: str | None) -> None:
        """Record a group that has ended."""
        self._names[name] = None
        if len(self._names) > MOST:
            del self._names[next(iter(self._names))]

    def refuse(self, name: str | None, thing: Thing) -> None:
        """Raise BlockError if a Thing belongs to a group that has already ended."""
        if name in self._names:
            which = f"group {name}" if name else "the group of Things without a group"
            problem = f"{which} continues after it ended; add group_by before this stage"
            raise BlockError(problem, item=thing.id)


class Grouped(Params):
    """Params of blocks that decide among several Things."""

    per: Literal["group", "all"] = Field(
        default="group", description="decide in each group, or over the whole stream"
    )


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a group in lineage order; the name is None for a whole stream."""

    name: str | None
    members: tuple[Thing, ...]


NOWHERE: Final = object()

Enough = Callable[[Sequence[Thing]], bool]


async def groups(
    items: AsyncIterator[Thing], per: Literal["group", "all"], *, enough: Enough | None = None
) -> AsyncGenerator[Group, None]:
    """Yield the groups of a stream, each as soon as it is complete.

    A group is complete at its declared size, at the start of the next group, or at the end of the
    stream. `enough`, a function of the members so far, may complete it earlier: the remaining
    members are then skipped. If the group is the whole stream, nothing more is pulled.

    Raise BlockError if a group continues after it ended, since it would count twice.
    """
    ended = RecentNames()
    passing: object = NOWHERE
    name: str | None = None
    members: list[Thing] = []
    async for thing in items:
        # None names the whole stream, so NOWHERE marks "not skipping any group".
        here = thing.props.get("group") if per == "group" else None
        if members and here != name:
            yield _ended(ended, name, members)
            members = []
        if here == passing:
            continue
        if not members:
            ended.refuse(here, thing)
        name, passing = here, NOWHERE
        members.append(thing)
        is_enough = enough is not None and enough(members)
        if is_enough or (here is not None and thing.props.get("group_last") == thing.id):
            yield _ended(ended, name, members)
            members = []
            if is_enough and here is None:
                return
            passing = here if is_enough else NOWHERE
    if members:
        yield _ended(ended, name, members)


def _ended(ended: RecentNames, name: str | None, members: list[Thing]) -> Group:
    ended.add(name)
    # Members arrive in completion order; decisions must not depend on it.
    return Group(name, tuple(sorted(members, key=lambda one: lineage_order(one.id))))


class Gather(Params):
    """When a batch is complete: at the first limit reached, or at the end of the stream."""

    count: int | None = Field(default=None, ge=1, description="maximum number of Things")
    seconds: float | None = Field(
        default=None, gt=0, description="maximum time since its first Thing (depends on time)"
    )
    budget: dict[str, float] | None = Field(
        default=None,
        min_length=1,
        description="maximum sums of props; a Thing above a limit is a batch of its own",
    )
    until: Where | None = Field(
        default=None, description="the last Thing of a batch is one for which this holds"
    )

    @property
    def takes_all(self) -> bool:
        """Return whether all Things form one batch."""
        return not (self.count or self.seconds or self.budget or self.until)


async def gathered(
    items: AsyncIterator[Thing], gather: Gather, ctx: BlockContext
) -> AsyncGenerator[tuple[Thing, ...], None]:
    """Yield batches of Things in arrival order; none is empty.

    Only a budget looks at one Thing beyond the batch. Where a time limit ends a batch, its size is
    noted, so that a resumed run forms the same batches.
    """
    async with aclosing(_Ahead(items)) as ahead:
        first = await ahead.next()
        while first is not None:
            batch = _Batch(gather, first)
            noted = _Noted(gather, first, ctx)
            following = None
            # On resume the noted size decides; the clock would cut the stream elsewhere.
            while not (batch.is_whole() if noted.size is None else noted.ends(batch)):
                following = await ahead.next(noted.deadline)
                if following is None or not batch.takes(following):
                    break
                batch.add(following)
                following = None
            # Before the batch leaves: a resumed run must repeat the calls for exactly these Things.
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
        """Return whether adding a Thing keeps every sum within its limit."""
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
    """The noted size of a batch that a time limit may end."""

    def __init__(self, gather: Gather, first: Thing, ctx: BlockContext) -> None:
        self._timed = gather.seconds is not None
        # The history's length tells the rounds of a recurrent recipe apart.
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
    """Reader whose wait for the next item can time out without losing the item."""

    def __init__(self, items: AsyncIterator[Thing]) -> None:
        self._items = items
        self._coming: asyncio.Task[Thing | None] | None = None

    async def next(self, deadline: float | None = None) -> Thing | None:
        """Return the next item, or None at the end of the stream or at the deadline."""
        if deadline is None and self._coming is None:
            return await anext(self._items, None)
        if self._coming is None:
            # asyncio.wait doesn't cancel on timeout, so the pending task can be awaited again by
            # the next call. Cancelling it would lose an item that was already pulled.
            self._coming = asyncio.create_task(_next(self._items))
        left = None if deadline is None else deadline - asyncio.get_running_loop().time()
        await asyncio.wait({self._coming}, timeout=left)
        if not self._coming.done():
            return None
        coming, self._coming = self._coming, None
        return coming.result()

    async def aclose(self) -> None:
        """Cancel a pending wait; the owner of the items closes them."""
        if self._coming is not None:
            self._coming.cancel()
            # Awaited: a generator in which a task still runs can't be closed.
            await asyncio.gather(self._coming, return_exceptions=True)


async def _next(items: AsyncIterator[Any]) -> Thing | None:
    return await anext(items, None)


Decide = Callable[[Thing, Sequence[Thing]], Awaitable[Thing]]


async def decided(
    items: AsyncIterator[Thing],
    params: Grouped,
    ctx: BlockContext,
    decide: Decide,
    *,
    enough: Enough | None = None,
) -> AsyncGenerator[Thing, None]:
    """Yield one Thing per group, returned by `decide` for the joined Thing and the members.

    Failed members have no vote. If all members failed, the joined Thing fails too.
    """
    async with aclosing(groups(items, params.per, enough=enough)) as found:
        async for group in found:
            # The id is taken before the first await, so that ids don't depend on concurrency.
            joined = ctx.joined(group.members, whole=True)
            members = [member for member in group.members if not failed(member)]
            if members:
                yield await decide(joined, members)
            else:
                reason = f"all {len(group.members)} members of the group failed"
                yield joined.plus(status="failed", reason=reason)
