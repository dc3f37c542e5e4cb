"""share: what the others of a group say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from pydantic import Field

from mergepoint.streams.asked_strategies import listed
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.groups import Grouped, groups
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing


class Share(Grouped):
    """Who is told what by whom."""

    into: str = Field(default="others", min_length=1, description="the prop that is written")
    itself: bool = Field(default=False, description="the Thing's own content is among them")


@block("share", params=Share, adds=lambda params: [params.into], in_order=True)
async def share(
    items: AsyncIterator[Thing], params: Share, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Give each Thing of a group what the others of it say, as a numbered list.

    Writes `others`: their contents in the order of lineage, without those that failed. The
    exchange between rounds of a debate: Du et al. 2023, https://arxiv.org/abs/2305.14325
    """
    async with aclosing(groups(items, params.per)) as found:
        async for group in found:
            able = [member for member in group.members if not failed(member)]
            for member in group.members:
                told = [one for one in able if params.itself or one is not member]
                yield member.plus({params.into: listed(told)["listed"]})
