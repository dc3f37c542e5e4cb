"""BestFirst: always on from the best node that was not tried yet."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from mergepoint.streams.search.search import Asked, Found, Move, best_first
from mergepoint.streams.search.searching import Searching


class BestFirst(Searching):
    """On from the best node that was not tried yet, wherever it is."""

    strategy: Literal["best_first"]
    depth: int | None = Field(default=None, ge=1, description="so many levels at most")
    at_once: int = Field(default=1, ge=1, description="so many moves before what came is looked at")

    def begin(self, root: str, rng: random.Random) -> BestFirstSearch:
        """Give a search from a root."""
        return BestFirstSearch(root, self)


class BestFirstSearch:
    """A greedy search at work."""

    def __init__(self, root: str, params: BestFirst) -> None:
        self._root = root
        self._params = params
        self._asked = Asked()
        self._depth = {root: 0}
        self._untried = [Found(root, 1.0)]
        self._found: list[Found] = []

    def ask(self) -> Move | None:
        """Give the best node that was not tried."""
        if not self._untried:
            return None
        node = best_first(self._untried)[0]
        self._untried.remove(node)
        return self._asked.move([node.id], "first" if node.id == self._root else "next")

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Take in what a node led to."""
        if not self._asked.told(move):
            return
        deep = self._depth[move.parents[0]] + 1
        for one in found:
            self._depth[one.id] = deep
            self._found.append(one)
            if self._params.depth is None or deep < self._params.depth:
                self._untried.append(one)

    def best(self) -> Sequence[str]:
        """Give all that was found."""
        return [one.id for one in best_first(self._found)]
