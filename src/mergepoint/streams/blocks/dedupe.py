"""dedupe: each thing once."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from pydantic import Field

from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.ended import Ended
from mergepoint.streams.groups import NOWHERE, Grouped
from mergepoint.streams.reading import CONTENT, answer_key, failed
from mergepoint.streams.thing import Thing


class Dedupe(Grouped):
    """What counts as the same."""

    by: str = Field(default="content", description="the prop that is compared, or content")
    exact: bool = Field(
        default=False,
        description="tell apart texts that differ in case, spaces, or marks at their ends",
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
    """Let the first of equal Things pass, in each group or in the whole stream.

    They leave as they came, one by one; nothing is waited for. Things that failed pass. Memory
    grows with each that is different. Reads the prop that is named; writes nothing.
    """
    seen: set[bytes] = set()
    ended = Ended()
    group: object = NOWHERE
    async for thing in items:
        here = thing.props.get("group") if params.per == "group" else None
        if here != group:
            if isinstance(group, str | None):
                ended.add(group)
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
