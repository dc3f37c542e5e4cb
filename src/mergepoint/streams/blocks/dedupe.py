"""dedupe: drop duplicate Things."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from pydantic import Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, answer_key, failed
from mergepoint.streams.grouping import NOWHERE, Grouped, RecentNames
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Dedupe(Grouped):
    """The value that is compared, and how."""

    by: str = Field(default="content", description="the prop that is compared, or content")
    exact: bool = Field(
        default=False,
        description="distinguish strings that differ only in case, spaces, or end punctuation",
    )


@block(
    "dedupe",
    params=Dedupe,
    needs=lambda params: () if params.by == CONTENT else (params.by,),
    in_order=True,
)
async def dedupe(
    items: AsyncIterator[Thing], params: Dedupe, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Pass only the first of equal Things, in each group or in the whole stream.

    Things leave unchanged and without delay. Failed Things always pass. Memory use grows with the
    number of different values. Reads the compared prop; writes nothing.
    """
    # Digests instead of keys: contents may be long, and all of a group are kept.
    seen: set[bytes] = set()
    ended = RecentNames()
    group: object = NOWHERE
    async for thing in items:
        here = thing.props.get("group") if params.per == "group" else None
        if here != group:
            if isinstance(group, str | None):
                ended.add(group)
            # A group that continues after it ended would have lost its seen values.
            ended.refuse(here, thing)
            group = here
            seen.clear()
        if failed(thing):
            yield thing
            continue
        key = answer_key(thing, params.by, exact=params.exact)
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield thing
