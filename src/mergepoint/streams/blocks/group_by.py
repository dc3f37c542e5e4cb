"""group_by: Things that belong together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import Field, model_validator

from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.ended import Ended
from mergepoint.streams.groups import group_marks
from mergepoint.streams.lineage import ancestor
from mergepoint.streams.params import Params
from mergepoint.streams.reading import CONTENT, canonical, failed, value
from mergepoint.streams.thing import Thing

_Members = tuple[Any, Sequence[Thing]]


class GroupBy(Params):
    """What the members of a group have in common: a prop, or where they come from."""

    by: str | None = Field(default=None, description="a prop, or content")
    lineage: Literal["parent", "root"] | int | None = Field(
        default=None,
        description="the Thing that they were made from: so many levels up, or the first",
    )
    size: int | None = Field(
        default=None,
        ge=1,
        description="with lineage: how many a group has; it is let out without a look at the next",
    )

    @model_validator(mode="after")
    def _one(self) -> GroupBy:
        if (self.by is None) is (self.lineage is None):
            raise ValueError("give exactly one of by and lineage")
        if isinstance(self.lineage, int) and self.lineage < 1:
            raise ValueError("lineage is parent, root, or how many levels up, from 1 on")
        if self.size is not None and self.lineage is None:
            raise ValueError("size goes with lineage")
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
    """Let Things out group by group: those with one value of a prop, or made from one Thing.

    By a prop it waits for the whole stream, and groups come in the order of their first Things;
    by lineage a group comes as soon as the next begins. Writes `group`, `group_size`,
    `group_last`, and `group_key`: the value or id in common. Reads the prop that is named.
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
        found.setdefault(canonical(_key(thing, name)), []).append(thing)
    for members in found.values():
        yield _key(members[0], name), members


async def _by_lineage(
    items: AsyncIterator[Thing], params: GroupBy
) -> AsyncGenerator[_Members, None]:
    levels = {"parent": 1, "root": None}.get(str(params.lineage), params.lineage)
    ended, key = Ended(), ""
    members: list[Thing] = []
    async for thing in items:
        here = ancestor(thing.id, levels if isinstance(levels, int) else None)
        if members and here != key:
            ended.add(key)
            yield key, members
            members = []
        if not members:
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
    """Give what a Thing is grouped by; those that failed before they had it are a group."""
    return thing.props.get(name) if failed(thing) and name != CONTENT else value(thing, name)
