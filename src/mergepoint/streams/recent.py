"""Recent: the ids that left a stage of late, each of which has to be the only one of its name."""

from __future__ import annotations

from typing import Final

from mergepoint.streams.thing import Thing

MOST: Final = 4096


class Recent:
    """Remembers the latest ids, so that memory stays flat; a clash is nearly always a near one."""

    def __init__(self) -> None:
        self._left: dict[str, None] = {}
        self._split: dict[str, None] = {}

    def came(self, name: str) -> None:
        """Take note of an item: it may leave, also where it was here before."""
        self._left.pop(name, None)
        self._split.pop(name, None)

    def problem(self, thing: Thing) -> str:
        """Take note of a Thing that leaves; say what is wrong with its id, or nothing.

        Children are numbered below their parent's id, so a parent that went on beside them could
        get the same children again.
        """
        name = thing.id
        if name in self._left:
            return f"two Things with the id {name} leave; ids are keys, give children new numbers"
        parent = _parent(thing)
        if name in self._split or parent in self._left:
            return (
                f"{parent if parent in self._left else name} leaves beside a child of its own; "
                "give it as one more child: ctx.child(thing, number)"
            )
        _remember(self._left, name)
        if parent:
            _remember(self._split, parent)
        return ""


def _parent(thing: Thing) -> str:
    """Give the id that a Thing was made below of, at this stage."""
    if thing.made is None or not thing.made.parents:
        return ""
    parent, _, number = thing.id.rpartition(".")
    return parent if number.isdecimal() else ""


def _remember(names: dict[str, None], name: str) -> None:
    names[name] = None
    if len(names) > MOST:
        del names[next(iter(names))]
