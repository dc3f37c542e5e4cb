"""Beam: level by level, with the best few of each level going on.

Breadth-first search over thoughts: Yao et al. 2023, https://arxiv.org/abs/2305.10601
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from mergepoint.streams.search.search import Asked, Found, Move, best_first
from mergepoint.streams.search.searching import Searching


class Beam(Searching):
    """Level by level; of each level the best go on, and the best of the last is the result."""

    strategy: Literal["beam"]
    width: int = Field(default=2, ge=1, description="so many nodes of a level go on")
    depth: int = Field(default=3, ge=1, description="so many levels")
    at_once: int = Field(
        default=64, ge=1, description="so many moves before what came is looked at"
    )

    def begin(self, root: str, rng: random.Random) -> BeamSearch:
        """Give a search from a root."""
        return BeamSearch(root, self)


class BeamSearch:
    """A beam search at work."""

    def __init__(self, root: str, params: Beam) -> None:
        self._params = params
        self._asked = Asked()
        self._going: deque[str] = deque([root])
        self._level = 1
        self._found: dict[int, Sequence[Found]] = {}

    def ask(self) -> Move | None:
        """Give the next node of this level; when all are told of, the first of the next level."""
        if not self._going and not self._asked and self._level < self._params.depth:
            ranked = best_first(self._here)
            if ranked:
                self._level += 1
                self._found = {}
                self._going.extend(one.id for one in ranked[: self._params.width])
        if not self._going:
            return None
        return self._asked.move([self._going.popleft()], "first" if self._level == 1 else "next")

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Take in the nodes of a level, in whatever order their moves come in."""
        if self._asked.told(move):
            self._found[move.number] = tuple(found)

    def best(self) -> Sequence[str]:
        """Give the nodes of the deepest level."""
        return [one.id for one in best_first(self._here)]

    @property
    def _here(self) -> list[Found]:
        return [one for number in sorted(self._found) for one in self._found[number]]
