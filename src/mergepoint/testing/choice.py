"""Choice: where a generator of random values takes its decisions from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choice(Protocol):
    """A source of decisions; the first of what there is to pick is the plainest."""

    def integer(self, low: int, high: int) -> int:
        """Give a whole number, both ends included."""
        ...

    def pick(self, options: Sequence[T]) -> T:
        """Give one of the options."""
        ...

    def chance(self, percent: int) -> bool:
        """Say yes in about so many of a hundred cases."""
        ...


class Seeded:
    """Decisions of a seed: the same in every process, and much faster than a property test's."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  (test data, no secrets)

    def integer(self, low: int, high: int) -> int:
        """Give a whole number, both ends included."""
        return self._random.randint(low, high)

    def pick(self, options: Sequence[T]) -> T:
        """Give one of the options."""
        return options[self._random.randrange(len(options))]

    def chance(self, percent: int) -> bool:
        """Say yes in about so many of a hundred cases."""
        return self._random.randrange(100) >= 100 - percent
