"""Search: who is asked what to try next, and told what came of it.

The search knows ids and scores, and nothing of models; whoever asks holds the budget. It goes by
its seed and by what it was told alone, so a run that is resumed or replayed asks for the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Way = Literal["first", "next"]


@dataclass(frozen=True, slots=True)
class Move:
    """One thing to try: from which nodes; `first` from the root, `next` from what was found."""

    number: int
    parents: tuple[str, ...]
    way: Way


@dataclass(frozen=True, slots=True)
class Found:
    """A node that a move led to, and how good it is: 0 to 1, higher is better."""

    id: str
    score: float


class Search(Protocol):
    """Decides where to go on; a frozen plan of a search makes one for each root."""

    def ask(self) -> Move | None:
        """Give what to try next; None where that depends on what is not told yet, or is nothing."""
        ...

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Take in what came of a move; one that was told of already, or never asked, is nothing."""
        ...

    def best(self) -> Sequence[str]:
        """Give the ids of what was found, the best first, equal ones in the order of moves."""
        ...


class Asked:
    """The moves that were asked for and are not told of yet."""

    def __init__(self) -> None:
        self._number = 0
        self._open: dict[int, Move] = {}

    def __len__(self) -> int:
        return len(self._open)

    def move(self, parents: Sequence[str], way: Way) -> Move:
        """Give the next move."""
        made = Move(self._number, tuple(parents), way)
        self._number += 1
        self._open[made.number] = made
        return made

    def told(self, move: Move) -> bool:
        """Say whether a move is told of for the first time."""
        return self._open.pop(move.number, None) is not None


def best_first(found: Sequence[Found]) -> list[Found]:
    """Give what was found, the best first, equal ones in their order."""
    return sorted(found, key=lambda one: -one.score)
