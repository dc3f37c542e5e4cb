"""Uct: a tree search that balances what did well and what was hardly tried.

Kocsis and Szepesvari, Bandit based Monte-Carlo Planning, ECML 2006; over answers of a language
model: Zhou et al. 2023, https://arxiv.org/abs/2310.04406
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from typing import Literal

from pydantic import Field

from mergepoint.streams.search.search import Asked, Found, Move, best_first
from mergepoint.streams.search.searching import Searching


class Uct(Searching):
    """Down from the root to where mean + c * sqrt(ln(N) / n) is highest, and on from there."""

    strategy: Literal["uct"]
    c: float = Field(default=1.0, ge=0, description="how much a node that was hardly tried counts")
    depth: int = Field(default=4, ge=1, description="so many levels at most")
    at_once: int = Field(default=1, ge=1, description="so many moves before what came is looked at")

    def begin(self, root: str, rng: random.Random) -> UctSearch:
        """Give a search from a root."""
        return UctSearch(root, self)


@dataclass(slots=True)
class _Node:
    """A node with what was found on all ways through it."""

    id: str
    depth: int
    visits: int = 0
    total: float = 0.0
    tried: bool = False
    above: _Node | None = None
    below: list[_Node] = field(default_factory=list)


class UctSearch:
    """A tree search at work."""

    def __init__(self, root: str, params: Uct) -> None:
        self._params = params
        self._asked = Asked()
        self._root = _Node(root, 0)
        self._nodes = {root: self._root}
        self._found: list[Found] = []

    def ask(self) -> Move | None:
        """Give the node to go on from; those that are under way count as visited."""
        node = self._leaf(self._root)
        if node is None:
            return None
        node.tried = True
        self._visited(node, 0.0)
        return self._asked.move([node.id], "first" if node is self._root else "next")

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Take in what a node led to; its mean score is that of the visit, on the whole way up."""
        if not self._asked.told(move):
            return
        node = self._nodes[move.parents[0]]
        if found:
            self._visited(node, sum(one.score for one in found) / len(found), visits=0)
        for one in found:
            made = _Node(one.id, node.depth + 1, visits=1, total=one.score, above=node)
            self._nodes[one.id] = made
            node.below.append(made)
            self._found.append(one)

    def best(self) -> Sequence[str]:
        """Give all that was found."""
        return [one.id for one in best_first(self._found)]

    def _leaf(self, node: _Node) -> _Node | None:
        """Give the first node on the best ways down that can be tried."""
        if not node.tried:
            return node if node.depth < self._params.depth else None
        ranked = sorted(node.below, key=lambda one: -self._bound(one, node.visits))
        return next((leaf for one in ranked if (leaf := self._leaf(one)) is not None), None)

    def _bound(self, node: _Node, around: int) -> float:
        visits = max(1, node.visits)
        return node.total / visits + self._params.c * sqrt(log(max(1, around)) / visits)

    def _visited(self, node: _Node, score: float, *, visits: int = 1) -> None:
        up: _Node | None = node
        while up is not None:
            up.visits += visits
            up.total += score
            up = up.above
