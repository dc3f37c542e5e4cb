"""Thompson: at each node by chance wider or deeper, as likely as that is to be the better.

Adaptive branching: Inoue et al. 2025, https://arxiv.org/abs/2503.04412 (the variant with an
independent posterior for each way on, here Beta over scores from 0 to 1).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from mergepoint.streams.search.search import Asked, Found, Move, best_first
from mergepoint.streams.search.searching import Searching


class Thompson(Searching):
    """At each node a draw decides: a new one of it, or on from one of those that there are."""

    strategy: Literal["thompson"]
    depth: int | None = Field(default=None, ge=1, description="so many levels at most")
    prior: float = Field(
        default=1.0, gt=0, description="successes and failures that each way begins with"
    )
    at_once: int = Field(default=1, ge=1, description="so many moves before what came is looked at")

    def begin(self, root: str, rng: random.Random) -> ThompsonSearch:
        """Give a search from a root."""
        return ThompsonSearch(root, self, rng)


class ThompsonSearch:
    """An adaptively branching search at work."""

    def __init__(self, root: str, params: Thompson, rng: random.Random) -> None:
        self._root = root
        self._params = params
        self._rng = rng
        self._asked = Asked()
        self._above: dict[str, str] = {}
        self._below: dict[str, list[Found]] = {root: []}
        self._inside: dict[str, list[float]] = {}  # the scores of a node and of those below it
        self._depth = {root: 0}
        self._found: list[Found] = []

    def ask(self) -> Move | None:
        """Go down by draws until one says wider."""
        node = self._root
        while True:
            below = self._below[node]
            wider = self._drawn([one.score for one in below])
            ways = [(self._drawn(self._inside[one.id]), one.id) for one in below if self._goes(one)]
            deeper, name = max(ways, default=(-1.0, ""), key=lambda way: way[0])
            if wider >= deeper:
                return self._asked.move([node], "first" if node == self._root else "next")
            node = name

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Take in what a node led to; all nodes above it learn from it."""
        if not self._asked.told(move):
            return
        node = move.parents[0]
        for one in found:
            self._above[one.id] = node
            self._below[node].append(one)
            self._below[one.id] = []
            self._inside[one.id] = []
            self._depth[one.id] = self._depth[node] + 1
            self._found.append(one)
            up = one.id
            while up != self._root:
                self._inside[up].append(one.score)
                up = self._above[up]

    def best(self) -> Sequence[str]:
        """Give all that was found."""
        return [one.id for one in best_first(self._found)]

    def _goes(self, node: Found) -> bool:
        return self._params.depth is None or self._depth[node.id] < self._params.depth

    def _drawn(self, scores: Sequence[float]) -> float:
        good = sum(scores)
        prior = self._params.prior
        return self._rng.betavariate(prior + good, prior + len(scores) - good)
