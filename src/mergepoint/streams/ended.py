"""Ended: the groups that came to their end; one that comes back would count twice."""

from __future__ import annotations

from typing import Final

from mergepoint.streams.block_error import BlockError
from mergepoint.streams.thing import Thing

MOST: Final = 4096


class Ended:
    """Remembers the latest names, so that memory stays flat."""

    def __init__(self) -> None:
        self._names: dict[str | None, None] = {}

    def add(self, name: str | None) -> None:
        """Take note of a group that has ended."""
        self._names[name] = None
        if len(self._names) > MOST:
            del self._names[next(iter(self._names))]

    def refuse(self, name: str | None, thing: Thing) -> None:
        """Raise BlockError where a Thing would begin a group that has ended."""
        if name in self._names:
            which = f"group {name}" if name else "the group of Things without a group"
            problem = f"{which} comes back after it has ended; group the Things once more before"
            raise BlockError(problem, item=thing.id)
