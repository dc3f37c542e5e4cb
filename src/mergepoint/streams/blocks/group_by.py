"""group_by: group Things by a prop or by lineage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import Field, model_validator

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, canonical, failed, value
from mergepoint.streams.grouping import RecentNames
from mergepoint.streams.params import Params
from mergepoint.streams.provenance import ancestor, group_marks
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

_Members = tuple[Any, Sequence[Thing]]


class GroupBy(Params):
    """The prop or ancestor that the members of a group share."""

    by: str | None = Field(default=None, description="a prop, or content")
    lineage: Literal["parent", "root"] | int | None = Field(
        default=None,
        description="their common ancestor: parent, root, or the number of levels up",
    )
    size: int | None = Field(
        default=None,
        ge=1,
        description="with lineage: members per group; a full group leaves immediately",
    )

    @model_validator(mode="after")
    def _one(self) -> GroupBy:
        if (self.by is None) is (self.lineage is None):
            raise ValueError("set exactly one of by and lineage")
        if isinstance(self.lineage, int) and self.lineage < 1:
            raise ValueError("lineage must be parent, root, or a number of levels of at least 1")
        if self.size is not None and self.lineage is None:
            raise ValueError("size requires lineage")
        return self


@block(
    "group_by",
    params=GroupBy,
    needs=lambda params: () if params.by in (None, CONTENT) else (params.by,),
    adds=("group", "group_size", "group_last", "group_key"),
    in_order=True,
    barrier=lambda params: params.by is not None,
)
async def group_by(
    items: AsyncIterator[Thing], params: GroupBy, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Group Things by the value of a prop, or by a common ancestor.

    By a prop, it waits for the whole stream, and groups leave in the order of their first Things.
    By lineage, a group leaves as soon as the next one begins. Writes `group`, `group_size`,
    `group_last`, and `group_key`: the common value or id. Reads the named prop.
    """
    found = _by_lineage(items, params) if params.by is None else _by_prop(items, params.by)
    async with aclosing(found):
        async for key, members in found:
            marks = group_marks(ctx.next_id(), members)
            for member in members:
                yield member.plus(marks, group_key=key)


async def _by_prop(items: AsyncIterator[Thing], name: str) -> AsyncGenerator[_Members, None]:
    found: dict[str, list[Thing]] = {}
    async for thing in items:
        # By JSON text: as keys of a dict, 1 and true would be the same value.
        found.setdefault(canonical(_key(thing, name)), []).append(thing)
    for members in found.values():
        yield _key(members[0], name), members


async def _by_lineage(
    items: AsyncIterator[Thing], params: GroupBy
) -> AsyncGenerator[_Members, None]:
    levels = {"parent": 1, "root": None}.get(str(params.lineage), params.lineage)
    ended, key = RecentNames(), ""
    members: list[Thing] = []
    async for thing in items:
        here = ancestor(thing.id, levels if isinstance(levels, int) else None)
        if members and here != key:
            ended.add(key)
            yield key, members
            members = []
        if not members:
            # Items arrive in lineage order; an ancestor that returns means that they didn't.
            ended.refuse(here, thing)
        key = here
        members.append(thing)
        if len(members) == params.size:
            ended.add(key)
            yield key, members
            members = []
    if members:
        yield key, members


def _key(thing: Thing, name: str) -> object:
    """Return the grouping value; Things that failed before they had it form one group."""
    return thing.props.get(name) if failed(thing) and name != CONTENT else value(thing, name)
