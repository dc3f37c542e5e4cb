"""route: assign each Thing to a branch."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import Where, holds, read_props
from mergepoint.streams.params import Params
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class RouteCase(Params):
    """A branch, and the condition for it."""

    where: Where
    to: str = Field(min_length=1, description="the name of the branch")


class Route(Params):
    """Cases in order; the first that matches decides."""

    cases: list[RouteCase] = Field(min_length=1, description="branches with their conditions")
    otherwise: str = Field(
        default="otherwise", min_length=1, description="the branch if no case matches"
    )


def _needs(params: Route) -> list[str]:
    return list(dict.fromkeys(name for case in params.cases for name in read_props(case.where)))


@block("route", params=Route, needs=_needs, adds=("branch",))
async def route(
    items: AsyncIterator[Thing], params: Route, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Assign each Thing to a branch: that of the first case whose condition matches.

    Reads the props in the conditions; writes `branch`.
    """
    async for thing in items:
        fitting = (case.to for case in params.cases if holds(case.where, thing))
        yield thing.plus(branch=next(fitting, params.otherwise))
