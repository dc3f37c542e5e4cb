"""route: which way a Thing goes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import Field

from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.thing import Thing
from mergepoint.streams.where import Where, holds, read_props


class Case(Params):
    """A branch, and the condition under which a Thing is sent there."""

    where: Where
    to: str = Field(min_length=1, description="the name of the branch")


class Route(Params):
    """Cases, of which the first that holds decides."""

    cases: list[Case] = Field(min_length=1, description="branches with their conditions")
    otherwise: str = Field(
        default="otherwise", min_length=1, description="the branch where no case holds"
    )


def _needs(params: Route) -> list[str]:
    return list(dict.fromkeys(name for case in params.cases for name in read_props(case.where)))


@block("route", params=Route, needs=_needs, adds=("branch",))
async def route(
    items: AsyncIterator[Thing], params: Route, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Send each Thing one way: the first case whose condition holds names its branch.

    Reads the props that the conditions name; writes `branch`.
    """
    async for thing in items:
        fitting = (case.to for case in params.cases if holds(case.where, thing))
        yield thing.plus(branch=next(fitting, params.otherwise))
