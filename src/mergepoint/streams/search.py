"""The protocol of searches: moves to try, and their results."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, Field, WithJsonSchema

from mergepoint.streams.conditions import Where
from mergepoint.streams.params import NAMED, Params, named, named_problem
from mergepoint.streams.recipe import Stage
from mergepoint.streams.recipe_yaml import StageForm

Way = Literal["first", "next"]


@dataclass(frozen=True, slots=True)
class Move:
    """One attempt: the parent nodes, and whether to start from the root or from a found node."""

    number: int
    parents: tuple[str, ...]
    way: Way


@dataclass(frozen=True, slots=True)
class Found:
    """A node that a move produced, and its score from 0 to 1, higher is better."""

    id: str
    score: float


class Search(Protocol):
    """A search from one root, which proposes moves and receives their results.

    It knows ids and scores, not models or budgets. It depends only on its seed and the results, so
    that a resumed or replayed run makes the same moves.
    """

    def ask(self) -> Move | None:
        """Return the next move, or None if there is none before further results arrive."""
        ...

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Receive the results of a move; unknown and repeated moves are ignored."""
        ...

    def best(self) -> Sequence[str]:
        """Return the ids of the nodes found, best first; ties keep the order of moves."""
        ...


class PendingMoves:
    """The moves that were proposed and have no result yet."""

    def __init__(self) -> None:
        self._number = 0
        self._open: dict[int, Move] = {}

    def __len__(self) -> int:
        return len(self._open)

    def move(self, parents: Sequence[str], way: Way) -> Move:
        """Return the next move."""
        made = Move(self._number, tuple(parents), way)
        self._number += 1
        self._open[made.number] = made
        return made

    def told(self, move: Move) -> bool:
        """Return whether this is the first result of a move."""
        return self._open.pop(move.number, None) is not None


def best_first(found: Sequence[Found]) -> list[Found]:
    """Return the nodes best first; ties keep their order."""
    return sorted(found, key=lambda one: -one.score)


class Searching(Params):
    """Params of all strategies: stages to try, the score, and when the search ends."""

    next: list[StageForm] = Field(
        min_length=1, description="stages that turn a node into new nodes with a score"
    )
    first: list[StageForm] | None = Field(
        default=None, description="stages that turn the item into the first nodes; default: next"
    )
    moves: int = Field(default=16, ge=1, description="maximum number of moves")
    until: Where | None = Field(
        default=None, description="condition; a node that matches it ends the search"
    )
    by: str = Field(default="score", description="the prop with a node's score")
    worst: float = Field(default=0.0, description="the worst possible score")
    perfect: float = Field(default=100.0, description="the best possible score")
    keep: int = Field(default=1, ge=1, description="number of best nodes that are returned")

    def begin(self, root: str, rng: random.Random) -> Search:
        """Return a search from a root."""
        raise NotImplementedError

    def inside(self) -> Mapping[str, Any]:
        """Return the nested stages by name, in the order in which they run."""
        ways: dict[str, tuple[Stage, ...]] = {}
        if self.first is not None:
            ways["first"] = tuple(stage.made() for stage in self.first)
        ways["next"] = tuple(stage.made() for stage in self.next)
        return ways

    def share(self, number: float) -> float:
        """Return a node's score as a share, 0 to 1."""
        return min(1.0, max(0.0, (number - self.worst) / (self.perfect - self.worst)))


def _beginning(given: Any) -> Any:
    if not callable(given) and (problem := named_problem(given)):
        raise ValueError(f"a search must be a function of root and random generator, or {problem}")
    return given


class Own(Searching):
    """A function of the root's id and a random generator that returns a Search."""

    strategy: Literal["own"]
    search: Annotated[
        Any, AfterValidator(_beginning), NAMED, WithJsonSchema({"type": "string"})
    ] = Field(description="the function: in Python itself, in YAML `module:name`")
    at_once: int = Field(default=1, ge=1, description="number of moves in parallel")

    def begin(self, root: str, rng: random.Random) -> Search:
        """Return a search from a root. Raise BlockError if the name doesn't exist."""
        begin = named(self.search) if isinstance(self.search, str) else self.search
        found: Search = begin(root, rng)
        return found
