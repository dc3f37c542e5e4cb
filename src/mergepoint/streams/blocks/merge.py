"""merge: combine the branches of a Thing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import Field

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, value
from mergepoint.streams.grouping import Grouped, decided
from mergepoint.streams.provenance import MARKS
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing, shown

OF_BRANCHES = frozenset({"branch", *MARKS})


class Merge(Grouped):
    """The rules for contents and conflicting props."""

    content: str | None = Field(
        default=None,
        description="branch whose content is used; default: a mapping of all by branch",
    )
    conflicts: Literal["error", "first", "last"] = Field(
        default="error",
        description="which value of a prop is kept if branches set different values",
    )


@block("merge", params=Merge, needs=("branch",), rewrites=True, in_order=True)
async def merge(
    items: AsyncIterator[Thing], params: Merge, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Combine the branches that tee made of one Thing into one Thing again.

    The result has the original's props and the props that the branches added, in lineage order. Its
    content is that of one branch, or a mapping of contents by branch (with a list for a branch of
    several Things). If the chosen branch is missing, the status is `failed`, with the `reason`.
    Reads `branch` and `group`.
    """

    async def made(joined: Thing, members: Sequence[Thing]) -> Thing:
        contents: dict[str, list[Any]] = {}
        added: dict[str, Any] = {}
        for member in members:
            contents.setdefault(str(value(member, "branch")), []).append(member.content)
            for name, given in member.props.items():
                # A branch that left a prop as it was doesn't conflict with one that changed it.
                if name in OF_BRANCHES or (name, given) in joined.props.items():
                    continue
                # The origin of a content that isn't used would be wrong for the merged Thing.
                if name in ctx.words.origin and member.props["branch"] != params.content:
                    continue
                added[name] = _kept(name, added.get(name, given), given, params, member)
        merged = joined.plus(added).taken_from(members, *added)
        if params.content is None:
            whole = merged.redrafted({name: _one(found) for name, found in contents.items()})
            return whole.taken_from(members, CONTENT)
        if params.content not in contents:
            reason = f"the branch {params.content!r} has no result"
            return merged.plus(status="failed", reason=reason)
        of_branch = [one for one in members if one.props["branch"] == params.content]
        whole = merged.redrafted(_one(contents[params.content]))
        return whole.taken_from(of_branch, CONTENT)

    async with aclosing(decided(items, params, ctx, made)) as merged:
        async for thing in merged:
            yield thing


def _one(contents: list[Any]) -> Any:
    return contents[0] if len(contents) == 1 else contents


def _kept(name: str, before: Any, given: Any, params: Merge, member: Thing) -> Any:
    if before != given and params.conflicts == "error":
        raise BlockError(
            f"branches set {name} to both {shown(before)} and {shown(given)}; to keep one, set "
            "conflicts to first or last",
            item=member.id,
        )
    return before if params.conflicts == "first" else given
