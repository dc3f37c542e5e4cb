"""share: give each Thing the contents of its group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from pydantic import Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import failed
from mergepoint.streams.grouping import Grouped, groups
from mergepoint.streams.prompting import listed
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Share(Grouped):
    """The prop to write, and whether it includes the Thing's own content."""

    into: str = Field(default="others", min_length=1, description="the prop that is written")
    itself: bool = Field(default=False, description="whether to include the Thing's own content")


@block("share", params=Share, adds=lambda params: [params.into], in_order=True)
async def share(
    items: AsyncIterator[Thing], params: Share, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Write the contents of the other Things of a group to each Thing, as a numbered list.

    Writes `others`: their contents in lineage order, without failed Things. This is the exchange
    between rounds of a debate: Du et al. 2023, https://arxiv.org/abs/2305.14325
    """
    async with aclosing(groups(items, params.per)) as found:
        async for group in found:
            able = [member for member in group.members if not failed(member)]
            for member in group.members:
                told = [one for one in able if params.itself or one is not member]
                yield member.plus({params.into: listed(told)["listed"]})
