"""Trail: a conversation that has been hashed, so that one which goes on from it costs what is new.

A row of steps asks with the whole conversation each time. Hashing all of it anew would make each
step dearer than the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Protocol


class Hash(Protocol):
    """What a trail needs of a hash, such as one of hashlib."""

    def update(self, data: bytes, /) -> None:
        """Take in more."""
        ...

    def copy(self) -> Hash:
        """Give another that goes on from here."""
        ...

    def hexdigest(self) -> str:
        """Give what it comes to, as text."""
        ...

    def digest(self) -> bytes:
        """Give what it comes to."""
        ...


class Trail:
    """The last conversation that was followed, and the hash at each place where one ended.

    Messages are compared as objects: what is taken for known is the same object at the same
    place. Where two part ways, as at the exit of a block, the next one goes on from the last end
    in what they share.
    """

    def __init__(self, start: Hash) -> None:
        self._messages: list[Any] = []
        self._ends: list[tuple[int, Hash]] = [(0, start)]

    def follow(self, messages: Sequence[Any], digest: Callable[[Any], bytes]) -> Hash:
        """Give a hash that has taken in the start and the digest of every message, in order."""
        shared = _shared(self._messages, messages)
        while self._ends[-1][0] > shared:
            self._ends.pop()
        known, found = self._ends[-1]
        whole = found.copy()
        new = messages[known:]
        if new:
            for message in new:
                whole.update(digest(message))
            self._ends.append((len(messages), whole.copy()))
        self._messages[known:] = new
        return whole


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Give how many objects two sequences have in common at their front."""
    if all(map(is_, one, other)):
        return min(len(one), len(other))
    return [*map(is_, one, other)].index(False)
