"""Decided: what a block makes of a whole group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

from mergepoint.streams.context import BlockContext
from mergepoint.streams.groups import Enough, Grouped, groups
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing

Decide = Callable[[Thing, Sequence[Thing]], Awaitable[Thing]]


async def decided(
    items: AsyncIterator[Thing],
    params: Grouped,
    ctx: BlockContext,
    decide: Decide,
    *,
    enough: Enough | None = None,
) -> AsyncGenerator[Thing, None]:
    """Give one Thing a group: what `decide` makes of the joined Thing and the members.

    Members that failed have no say; where all did, the joined Thing has failed too.
    """
    async with aclosing(groups(items, params.per, enough=enough)) as found:
        async for group in found:
            joined = ctx.joined(group.members, whole=True)
            members = [member for member in group.members if not failed(member)]
            if members:
                yield await decide(joined, members)
            else:
                reason = f"all {len(group.members)} that it was to be made of failed"
                yield joined.plus(status="failed", reason=reason)
