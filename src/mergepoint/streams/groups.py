"""Groups: the groups of a stream, as blocks that decide among several read them.

A block that groups (accumulate, group_by, tee) gives its Things the props `group`, `group_size`
and `group_last`, the id of the last member. Things that have none are one group, which is the whole
stream. A group inside of another is named below it: `outer#0/inner#3`; what a whole group became is
in the group around.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Literal

from pydantic import Field

from mergepoint.streams.ended import Ended
from mergepoint.streams.lineage import lineage_order
from mergepoint.streams.params import Params
from mergepoint.streams.thing import Thing


class Grouped(Params):
    """Params of blocks that decide among several Things."""

    per: Literal["group", "all"] = Field(
        default="group", description="decide in each group, or over the whole stream"
    )


MARKS: Final = ("group", "group_size", "group_last", "group_key")
_BELOW: Final = "/"


def group_marks(name: str, members: Sequence[Thing]) -> dict[str, Any]:
    """Give the props by which the members of a new group are known, below the one around them."""
    around = group_of(members)
    full = name if around is None else f"{around}{_BELOW}{name}"
    return {"group": full, "group_size": len(members), "group_last": members[-1].id}


def group_of(things: Sequence[Thing], *, whole: bool = False) -> str | None:
    """Give the innermost group that all are in; with `whole` the one around a group of them all."""
    names = [str(thing.props.get("group") or "").split(_BELOW) for thing in things]
    levels = zip(*names, strict=False)  # the shortest ends it
    shared = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    if whole and all(name == shared for name in names):
        shared = shared[:-1]
    return _BELOW.join(shared) or None


def regrouped(thing: Thing, group: str | None) -> Thing:
    """Give the Thing in this group, or in none; what was said of another group is blank."""
    if thing.props.get("group") == group:
        return thing
    blank = dict.fromkeys(name for name in MARKS if name in thing.props)
    return thing.plus({**blank, "group": group})


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a group in the order of their lineage; its name is None for a stream."""

    name: str | None
    members: tuple[Thing, ...]


NOWHERE: Final = object()

Enough = Callable[[Sequence[Thing]], bool]


async def groups(
    items: AsyncIterator[Thing], per: Literal["group", "all"], *, enough: Enough | None = None
) -> AsyncGenerator[Group, None]:
    """Give the groups of a stream, each as soon as it is whole.

    A group is whole when it has its size, when the next begins, or at the end. With `enough`, a
    function of the members so far, it may be given before: what is left of it is passed over, and
    where it is the whole stream nothing more is pulled.

    Raises BlockError for a group that comes back after it has ended, since it would count twice.
    """
    ended = Ended()
    passing: object = NOWHERE
    name: str | None = None
    members: list[Thing] = []
    async for thing in items:
        here = thing.props.get("group") if per == "group" else None
        if members and here != name:
            yield _ended(ended, name, members)
            members = []
        if here == passing:
            continue
        if not members:
            ended.refuse(here, thing)
        name, passing = here, NOWHERE
        members.append(thing)
        is_enough = enough is not None and enough(members)
        if is_enough or (here is not None and thing.props.get("group_last") == thing.id):
            yield _ended(ended, name, members)
            members = []
            if is_enough and here is None:
                return
            passing = here if is_enough else NOWHERE
    if members:
        yield _ended(ended, name, members)


def _ended(ended: Ended, name: str | None, members: list[Thing]) -> Group:
    ended.add(name)
    return Group(name, tuple(sorted(members, key=lambda one: lineage_order(one.id))))
