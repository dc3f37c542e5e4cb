"""Islands: populations that evolve apart, and now and then the worst begin anew from the best.

Romera-Paredes et al., Mathematical discoveries from program search with large language models,
Nature 625, 2024 (FunSearch), https://doi.org/10.1038/s41586-023-06924-6
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from mergepoint.streams.search.search import Asked, Found, Move, best_first
from mergepoint.streams.search.searching import Searching


class Islands(Searching):
    """Islands in turn: first seeds, then children of parents drawn among an island's best."""

    strategy: Literal["islands"]
    islands: int = Field(default=2, ge=1, description="so many populations")
    seeds: int = Field(default=2, ge=1, description="so many first nodes on each island")
    parents: int = Field(default=2, ge=1, description="so many parents of a child, at most")
    elite: int = Field(default=4, ge=1, description="parents are drawn among so many of the best")
    renew: int = Field(
        default=12, ge=1, description="after so many moves the worse half begins anew from the best"
    )
    at_once: int = Field(default=1, ge=1, description="so many moves before what came is looked at")

    def begin(self, root: str, rng: random.Random) -> IslandSearch:
        """Give a search from a root."""
        return IslandSearch(root, self, rng)


class IslandSearch:
    """Evolution at work."""

    def __init__(self, root: str, params: Islands, rng: random.Random) -> None:
        self._root = root
        self._params = params
        self._rng = rng
        self._asked = Asked()
        self._begun = [0] * params.islands
        self._people: list[list[Found]] = [[] for _ in range(params.islands)]
        self._home: dict[int, int] = {}
        self._told = 0
        self._found: list[Found] = []

    def ask(self) -> Move | None:
        """Give a seed for the island whose turn it is, or where it has enough, parents from it."""
        island = len(self._home) % self._params.islands
        people = self._people[island]
        if self._begun[island] < self._params.seeds or not people:
            self._begun[island] += 1
            move = self._asked.move([self._root], "first")
        else:
            elite = best_first(people)[: self._params.elite]
            chosen = self._rng.sample(elite, min(self._params.parents, len(elite)))
            ranked = sorted(chosen, key=lambda one: one.score)
            move = self._asked.move([one.id for one in ranked], "next")
        self._home[move.number] = island
        return move

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Take in the children of an island."""
        if not self._asked.told(move):
            return
        self._found += found
        self._people[self._home[move.number]] += found
        self._told += 1
        if self._told % self._params.renew == 0:
            self._renew()

    def best(self) -> Sequence[str]:
        """Give all that was found."""
        return [one.id for one in best_first(self._found)]

    def _renew(self) -> None:
        """Let the best of a surviving island be all that is on each of the worse half."""
        tops = [max((one.score for one in people), default=-1.0) for people in self._people]
        order = sorted(range(len(tops)), key=lambda island: -tops[island])
        kept = order[: (len(order) + 1) // 2]
        for island in order[len(kept) :]:
            people = self._people[self._rng.choice(kept)]
            self._people[island] = best_first(people)[:1]
