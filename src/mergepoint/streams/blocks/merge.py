"""merge: branches made one again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import Field

from mergepoint.streams.block import block
from mergepoint.streams.block_error import BlockError
from mergepoint.streams.context import BlockContext
from mergepoint.streams.decided import decided
from mergepoint.streams.groups import MARKS, Grouped
from mergepoint.streams.reading import value
from mergepoint.streams.thing import Thing
from mergepoint.streams.why import shown

OF_BRANCHES = frozenset({"branch", *MARKS})


class Merge(Grouped):
    """What becomes of contents and props."""

    content: str | None = Field(
        default=None, description="the branch whose content is taken; else all, a mapping by branch"
    )
    conflicts: Literal["error", "first", "last"] = Field(
        default="error", description="a prop that branches set to different values: whose is kept"
    )


@block("merge", params=Merge, needs=("branch",), in_order=True)
async def merge(
    items: AsyncIterator[Thing], params: Merge, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Make one Thing of the branches that tee made of one.

    It has what that Thing had, and the props that its branches added, in the order of lineage.
    Its content is one branch's, or a mapping of contents by branch (a list where a branch has
    several Things). Where the wanted branch is not there it gets the status `failed` and the
    `reason`. Reads `branch` and `group`.
    """

    async def made(joined: Thing, members: Sequence[Thing]) -> Thing:
        contents: dict[str, list[Any]] = {}
        added: dict[str, Any] = {}
        for member in members:
            contents.setdefault(str(value(member, "branch")), []).append(member.content)
            for name, given in member.props.items():
                if name in OF_BRANCHES or (name, given) in joined.props.items():
                    continue
                added[name] = _kept(name, added.get(name, given), given, params, member)
        merged = joined.plus(added)
        if params.content is None:
            return merged.redrafted({name: _one(found) for name, found in contents.items()})
        if params.content not in contents:
            reason = f"nothing came out of the branch {params.content!r}"
            return merged.plus(status="failed", reason=reason)
        return merged.redrafted(_one(contents[params.content]))

    async with aclosing(decided(items, params, ctx, made)) as merged:
        async for thing in merged:
            yield thing


def _one(contents: list[Any]) -> Any:
    return contents[0] if len(contents) == 1 else contents


def _kept(name: str, before: Any, given: Any, params: Merge, member: Thing) -> Any:
    if before != given and params.conflicts == "error":
        raise BlockError(
            f"branches set {name} to {shown(before)} and to {shown(given)}; say whose is kept: "
            "conflicts: first, or last",
            item=member.id,
        )
    return before if params.conflicts == "first" else given
