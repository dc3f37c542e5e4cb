"""tee: one Thing in several branches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from pydantic import AfterValidator, Field

from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.thing import Thing


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise ValueError("the names of branches are distinct and not blank")
    return names


class Tee(Params):
    """Branches, in order."""

    branches: Annotated[list[str], AfterValidator(_distinct)] = Field(min_length=1)


@block("tee", params=Tee, adds=("branch", "group", "group_key"))
async def tee(items: AsyncIterator[Thing], params: Tee, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Make a child of each Thing for every branch, with the same content and props.

    The children of one Thing are a group, which `merge` makes one Thing again. Writes `branch`,
    `group`, and `group_key`: the id of the Thing that they were made from.
    """
    async for thing in items:
        name = ctx.next_id()
        for number, branch in enumerate(params.branches):
            yield ctx.child(thing, number).plus(branch=branch, group=name, group_key=thing.id)
