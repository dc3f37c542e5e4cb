"""tee: copy a Thing into several branches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import AfterValidator, Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.provenance import children
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise ValueError("branches must have distinct, non-blank names")
    return names


class Tee(Params):
    """The branches, in order."""

    branches: Annotated[list[str], AfterValidator(_distinct)] = Field(
        min_length=1, description="names of branches"
    )


@block("tee", params=Tee, adds=("branch", "group", "group_size", "group_last", "group_key"))
async def tee(items: AsyncIterator[Thing], params: Tee, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Make a child of each Thing for every branch, with the same content and props.

    The children of one Thing form a group, which `merge` combines again. Writes `branch`, `group`,
    `group_size`, `group_last`, and `group_key`: the id of the original Thing.
    """
    async for thing in items:
        props = [{"branch": branch, "group_key": thing.id} for branch in params.branches]
        for child in children(thing, props):
            yield child
