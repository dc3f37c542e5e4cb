"""Searches: the protocol of moves and results, and the strategies beam, best-first, islands, ..."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
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


# Breadth-first search over thoughts: Yao et al. 2023, https://arxiv.org/abs/2305.10601


class Beam(Searching):
    """Level by level: the best nodes of each level continue, and the last level is the result."""

    strategy: Literal["beam"]
    width: int = Field(default=2, ge=1, description="number of nodes per level that continue")
    depth: int = Field(default=3, ge=1, description="number of levels")
    # Higher than elsewhere: moves of one level don't depend on each other's results.
    at_once: int = Field(default=64, ge=1, description="number of moves in parallel")

    def begin(self, root: str, rng: random.Random) -> BeamSearch:
        """Return a search from a root."""
        return BeamSearch(root, self)


class BeamSearch:
    """A running beam search."""

    def __init__(self, root: str, params: Beam) -> None:
        self._params = params
        self._asked = PendingMoves()
        self._going: deque[str] = deque([root])
        self._level = 1
        self._found: dict[int, Sequence[Found]] = {}

    def ask(self) -> Move | None:
        """Return the next node of this level, or of the next level when all results are known."""
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
        """Record the nodes of a level, in any order of moves."""
        if self._asked.told(move):
            self._found[move.number] = tuple(found)

    def best(self) -> Sequence[str]:
        """Return the nodes of the deepest level, best first."""
        return [one.id for one in best_first(self._here)]

    @property
    def _here(self) -> list[Found]:
        # By move, not by arrival: ties must not depend on which result came first.
        return [one for number in sorted(self._found) for one in self._found[number]]


class BestFirst(Searching):
    """Greedy: each move continues from the best untried node of any level."""

    strategy: Literal["best_first"]
    depth: int | None = Field(default=None, ge=1, description="maximum number of levels")
    at_once: int = Field(default=1, ge=1, description="number of moves in parallel")

    def begin(self, root: str, rng: random.Random) -> BestFirstSearch:
        """Return a search from a root."""
        return BestFirstSearch(root, self)


class BestFirstSearch:
    """A running greedy search."""

    def __init__(self, root: str, params: BestFirst) -> None:
        self._root = root
        self._params = params
        self._asked = PendingMoves()
        self._depth = {root: 0}
        self._untried = [Found(root, 1.0)]
        self._found: list[Found] = []

    def ask(self) -> Move | None:
        """Return the best untried node."""
        if not self._untried:
            return None
        node = best_first(self._untried)[0]
        self._untried.remove(node)
        return self._asked.move([node.id], "first" if node.id == self._root else "next")

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Record the nodes that a move produced."""
        if not self._asked.told(move):
            return
        deep = self._depth[move.parents[0]] + 1
        for one in found:
            self._depth[one.id] = deep
            self._found.append(one)
            if self._params.depth is None or deep < self._params.depth:
                self._untried.append(one)

    def best(self) -> Sequence[str]:
        """Return all nodes, best first."""
        return [one.id for one in best_first(self._found)]


# Island model of FunSearch: Romera-Paredes et al., Mathematical discoveries from program search
# with large language models, Nature 625, 2024, https://doi.org/10.1038/s41586-023-06924-6


class Islands(Searching):
    """Populations in turn: first seeds, then children of parents drawn among the best."""

    strategy: Literal["islands"]
    islands: int = Field(default=2, ge=1, description="number of populations")
    seeds: int = Field(default=2, ge=1, description="number of first nodes on each island")
    parents: int = Field(default=2, ge=1, description="maximum number of parents of a child")
    elite: int = Field(
        default=4, ge=1, description="number of best nodes among which parents are drawn"
    )
    renew: int = Field(
        default=12,
        ge=1,
        description="number of moves after which the worse half restarts from the best",
    )
    at_once: int = Field(default=1, ge=1, description="number of moves in parallel")

    def begin(self, root: str, rng: random.Random) -> IslandSearch:
        """Return a search from a root."""
        return IslandSearch(root, self, rng)


class IslandSearch:
    """A running island search."""

    def __init__(self, root: str, params: Islands, rng: random.Random) -> None:
        self._root = root
        self._params = params
        self._rng = rng
        self._asked = PendingMoves()
        self._begun = [0] * params.islands
        self._people: list[list[Found]] = [[] for _ in range(params.islands)]
        self._home: dict[int, int] = {}
        self._told = 0
        self._found: list[Found] = []

    def ask(self) -> Move | None:
        """Return a seed for the next island, or parents from it once it has enough nodes."""
        island = len(self._home) % self._params.islands
        people = self._people[island]
        # If all seeds of an island failed, it has no parents, so it gets another seed.
        if self._begun[island] < self._params.seeds or not people:
            self._begun[island] += 1
            move = self._asked.move([self._root], "first")
        else:
            elite = best_first(people)[: self._params.elite]
            chosen = self._rng.sample(elite, min(self._params.parents, len(elite)))
            # The prompt shows the best parent last, as in FunSearch.
            ranked = sorted(chosen, key=lambda one: one.score)
            move = self._asked.move([one.id for one in ranked], "next")
        self._home[move.number] = island
        return move

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Record the children of an island."""
        if not self._asked.told(move):
            return
        self._found += found
        self._people[self._home[move.number]] += found
        self._told += 1
        if self._told % self._params.renew == 0:
            self._renew()

    def best(self) -> Sequence[str]:
        """Return all nodes, best first."""
        return [one.id for one in best_first(self._found)]

    def _renew(self) -> None:
        """Replace each island of the worse half by the best node of a surviving island."""
        # Scores are 0 to 1, so an empty island counts as the worst.
        tops = [max((one.score for one in people), default=-1.0) for people in self._people]
        order = sorted(range(len(tops)), key=lambda island: -tops[island])
        kept = order[: (len(order) + 1) // 2]
        for island in order[len(kept) :]:
            people = self._people[self._rng.choice(kept)]
            self._people[island] = best_first(people)[:1]


# Adaptive branching with Thompson sampling: Inoue et al. 2025, https://arxiv.org/abs/2503.04412
# (the variant with an independent posterior per branch, here Beta over scores from 0 to 1).


class Thompson(Searching):
    """At each node, a random draw decides between a new child and an existing one."""

    strategy: Literal["thompson"]
    depth: int | None = Field(default=None, ge=1, description="maximum number of levels")
    prior: float = Field(
        default=1.0, gt=0, description="initial successes and failures of each branch"
    )
    at_once: int = Field(default=1, ge=1, description="number of moves in parallel")

    def begin(self, root: str, rng: random.Random) -> ThompsonSearch:
        """Return a search from a root."""
        return ThompsonSearch(root, self, rng)


class ThompsonSearch:
    """A running search with adaptive branching."""

    def __init__(self, root: str, params: Thompson, rng: random.Random) -> None:
        self._root = root
        self._params = params
        self._rng = rng
        self._asked = PendingMoves()
        self._above: dict[str, str] = {}
        self._below: dict[str, list[Found]] = {root: []}
        # The scores of a node and its descendants: the evidence for going deeper.
        self._inside: dict[str, list[float]] = {}
        self._depth = {root: 0}
        self._found: list[Found] = []

    def ask(self) -> Move | None:
        """Return a move from the node at which a draw favors a new child."""
        node = self._root
        while True:
            below = self._below[node]
            # Draws advance the generator: in another order, a resumed search would differ.
            wider = self._drawn([one.score for one in below])
            ways = [(self._drawn(self._inside[one.id]), one.id) for one in below if self._goes(one)]
            deeper, name = max(ways, default=(-1.0, ""), key=lambda way: way[0])
            if wider >= deeper:
                return self._asked.move([node], "first" if node == self._root else "next")
            node = name

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Record the nodes that a move produced, with their scores at all ancestors."""
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
        """Return all nodes, best first."""
        return [one.id for one in best_first(self._found)]

    def _goes(self, node: Found) -> bool:
        return self._params.depth is None or self._depth[node.id] < self._params.depth

    def _drawn(self, scores: Sequence[float]) -> float:
        good = sum(scores)
        prior = self._params.prior
        return self._rng.betavariate(prior + good, prior + len(scores) - good)


# UCT: Kocsis and Szepesvari, Bandit based Monte-Carlo Planning, ECML 2006; over answers of a
# language model: Zhou et al. 2023, https://arxiv.org/abs/2310.04406


class Uct(Searching):
    """From the root, follow the highest mean + c * sqrt(ln(N) / n), and continue there."""

    strategy: Literal["uct"]
    c: float = Field(default=1.0, ge=0, description="weight of rarely tried nodes")
    depth: int = Field(default=4, ge=1, description="maximum number of levels")
    at_once: int = Field(default=1, ge=1, description="number of moves in parallel")

    def begin(self, root: str, rng: random.Random) -> UctSearch:
        """Return a search from a root."""
        return UctSearch(root, self)


@dataclass(slots=True)
class _Node:
    """A node with the visits and scores of all paths through it."""

    id: str
    depth: int
    visits: int = 0
    total: float = 0.0
    tried: bool = False
    above: _Node | None = None
    below: list[_Node] = field(default_factory=list)


class UctSearch:
    """A running tree search."""

    def __init__(self, root: str, params: Uct) -> None:
        self._params = params
        self._asked = PendingMoves()
        self._root = _Node(root, 0)
        self._nodes = {root: self._root}
        self._found: list[Found] = []

    def ask(self) -> Move | None:
        """Return the node to continue from; moves without a result count as visits."""
        node = self._leaf(self._root)
        if node is None:
            return None
        node.tried = True
        # Count the visit now ("virtual loss"), so that parallel moves take different paths.
        self._visited(node, 0.0)
        return self._asked.move([node.id], "first" if node is self._root else "next")

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Record the nodes of a move; their mean score counts as the visit's at all ancestors."""
        if not self._asked.told(move):
            return
        node = self._nodes[move.parents[0]]
        # `ask` has counted the visit already. A move without results keeps it, with a score of 0.
        if found:
            self._visited(node, sum(one.score for one in found) / len(found), visits=0)
        for one in found:
            made = _Node(one.id, node.depth + 1, visits=1, total=one.score, above=node)
            self._nodes[one.id] = made
            node.below.append(made)
            self._found.append(one)

    def best(self) -> Sequence[str]:
        """Return all nodes, best first."""
        return [one.id for one in best_first(self._found)]

    def _leaf(self, node: _Node) -> _Node | None:
        """Return the first node on the best paths that can be tried."""
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
