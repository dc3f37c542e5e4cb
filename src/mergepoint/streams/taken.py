"""Taken: the items that a stage pulled."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from mergepoint.streams.thing import Thing

MOST: Final = 1024


class Taken:
    """Knows an item as long as anything is there that was made from it; memory stays flat.

    The latest items are known in any case, by the hash of their last entry: a worker in another
    process gives back copies.
    """

    def __init__(self) -> None:
        self._alive: WeakKeyDictionary[Thing, float] = WeakKeyDictionary()
        self._latest: dict[tuple[str, int], tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def add(self, thing: Thing, time: float) -> None:
        """Take note of an item, and when it was pulled."""
        self._alive[thing] = time
        self._latest[thing.id, len(thing.history)] = (hash(thing.history[-1]), time)
        if len(self._latest) > MOST:
            del self._latest[next(iter(self._latest))]

    def when(self, thing: Thing) -> float | None:
        """Give when an item was pulled; None for what is no item."""
        if (time := self._alive.get(thing)) is not None or not thing.history:
            return time
        last, time = self._latest.get((thing.id, len(thing.history)), (None, None))
        return time if last == hash(thing.history[-1]) else None
