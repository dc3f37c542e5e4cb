"""Groups in a stream: their props, and reading one group after another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Literal

from pydantic import Field

from mergepoint.core.errors import BlockError
from mergepoint.streams.params import Params
from mergepoint.streams.provenance import lineage_order
from mergepoint.streams.thing import Thing

MOST: Final = 4096


class RecentNames:
    """A bounded set of the latest names."""

    def __init__(self) -> None:
        self._names: dict[str | None, None] = {}

    def add(self, name: str | None) -> None:
        """Record a group that has ended."""
        self._names[name] = None
        if len(self._names) > MOST:
            del self._names[next(iter(self._names))]

    def refuse(self, name: str | None, thing: Thing) -> None:
        """Raise BlockError if a Thing belongs to a group that has already ended."""
        if name in self._names:
            which = f"group {name}" if name else "the group of Things without a group"
            problem = f"{which} continues after it ended; add group_by before this stage"
            raise BlockError(problem, item=thing.id)


class Grouped(Params):
    """Params of blocks that decide among several Things."""

    per: Literal["group", "all"] = Field(
        default="group", description="decide in each group, or over the whole stream"
    )


MARKS: Final = ("group", "group_size", "group_last", "group_key")
_BELOW: Final = "/"


def group_marks(name: str, members: Sequence[Thing]) -> dict[str, Any]:
    """Return the props that mark the members of a new group inside their current group.

    Blocks that group (accumulate, group_by, tee) set `group`, `group_size`, and `group_last`, the
    id of the last member. Things without these props form one group: the whole stream. A nested
    group has a path as its name: `outer#0/inner#3`.
    """
    around = group_of(members)
    full = name if around is None else f"{around}{_BELOW}{name}"
    return {"group": full, "group_size": len(members), "group_last": members[-1].id}


def group_of(things: Sequence[Thing], *, whole: bool = False) -> str | None:
    """Return the innermost group that all Things share.

    With `whole`, if the Things are an entire group, return the group around it.
    """
    names = [str(thing.props.get("group") or "").split(_BELOW) for thing in things]
    # The shortest path limits the comparison, so zip may drop the rest.
    levels = zip(*names, strict=False)
    shared = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    if whole and all(name == shared for name in names):
        shared = shared[:-1]
    return _BELOW.join(shared) or None


def regrouped(thing: Thing, group: str | None) -> Thing:
    """Return the Thing in a group, or in none; props of its former group become None."""
    if thing.props.get("group") == group:
        return thing
    blank = dict.fromkeys(name for name in MARKS if name in thing.props)
    return thing.plus({**blank, "group": group})


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a group in lineage order; the name is None for a whole stream."""

    name: str | None
    members: tuple[Thing, ...]


NOWHERE: Final = object()

Enough = Callable[[Sequence[Thing]], bool]


async def groups(
    items: AsyncIterator[Thing], per: Literal["group", "all"], *, enough: Enough | None = None
) -> AsyncGenerator[Group, None]:
    """Yield the groups of a stream, each as soon as it is complete.

    A group is complete at its declared size, at the start of the next group, or at the end of the
    stream. `enough`, a function of the members so far, may complete it earlier: the remaining
    members are then skipped. If the group is the whole stream, nothing more is pulled.

    Raise BlockError if a group continues after it ended, since it would count twice.
    """
    ended = RecentNames()
    passing: object = NOWHERE
    name: str | None = None
    members: list[Thing] = []
    async for thing in items:
        # None names the whole stream, so NOWHERE marks "not skipping any group".
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


def _ended(ended: RecentNames, name: str | None, members: list[Thing]) -> Group:
    ended.add(name)
    # Members arrive in completion order; decisions must not depend on it.
    return Group(name, tuple(sorted(members, key=lambda one: lineage_order(one.id))))
