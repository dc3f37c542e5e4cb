"""The nodes of a run as the data of a page: the outline, with status, time and usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mergepoint.core.paths import SEPARATOR, ancestors
from mergepoint.tree.nodes import Gate, Loop
from mergepoint.view.run_usage import PathUsage

Data = dict[str, Any]
Shape = Mapping[str, Any]

THING: Final = "thing"


@dataclass(slots=True)
class PageNode:
    """A node of the outline, and what its calls used; parents include what is below them."""

    path: str
    kind: str
    parent: int
    merge: str = ""
    parallel: bool = False
    capture: str = ""
    children: list[int] = field(default_factory=list)
    status: str = ""
    start: float | None = None
    end: float | None = None
    answered: int = 0
    reused: int = 0
    failed: int = 0
    used: PathUsage = field(default_factory=PathUsage)

    def ran(self, start: float, end: float) -> None:
        """Extend the time of the node."""
        self.start = start if self.start is None else min(self.start, start)
        self.end = end if self.end is None else max(self.end, end)

    def include(self, other: PageNode) -> None:
        """Add what a child used."""
        if other.start is not None and other.end is not None:
            self.ran(other.start, other.end)
        self.answered += other.answered
        self.reused += other.reused
        self.failed += other.failed
        self.used.include(other.used)


class PageNodes:
    """The nodes of a run in pre-order, by index; `number` is the index of each path."""

    def __init__(self, outlined: Iterable[PageNode]) -> None:
        self.all = list(outlined)
        self.number = {node.path: number for number, node in enumerate(self.all)}
        for number, node in enumerate(self.all):
            if node.parent >= 0:
                self.all[node.parent].children.append(number)

    def at(self, path: str) -> PageNode:
        """Return the node at a path."""
        return self.all[self.number[path]]

    def around(self, path: str) -> PageNode | None:
        """Return the node at a path, or the nearest above it."""
        found = next((at for at in (path, *ancestors(path)) if at in self.number), None)
        return None if found is None else self.at(found)

    def add_up(self) -> None:
        """Add what children used to their parents. Call it once."""
        for node in reversed(self.all):
            if node.parent >= 0:
                self.all[node.parent].include(node)

    def to_page(self, start: float) -> list[Data]:
        """Return the nodes as the data of a page, with times relative to `start`."""
        shapes = self._shapes()
        return [
            {
                "path": node.path,
                "kind": node.kind,
                "parent": node.parent,
                "merge": node.merge,
                "parallel": node.parallel,
                "capture": node.capture,
                "status": node.status,
                "start": None if node.start is None else round(node.start - start, 6),
                "end": None if node.end is None else round(node.end - start, 6),
                "calls": node.answered,
                "reused": node.reused,
                "failed": node.failed,
                "input_tokens": node.used.input_tokens,
                "output_tokens": node.used.output_tokens,
                "cost": node.used.to_page()["cost"],
                "shape": shapes[number],
            }
            for number, node in enumerate(self.all)
        ]

    def _shapes(self) -> list[int]:
        """Return a number for each node, the same for nodes of the same structure."""
        known: dict[tuple[Any, ...], int] = {}
        found = [0] * len(self.all)
        # Children follow their parents, so backward all children have their numbers.
        for number in range(len(self.all) - 1, -1, -1):
            node = self.all[number]
            inner = tuple(found[child] for child in node.children)
            shape = (node.kind, node.merge, node.parallel, bool(node.capture), inner)
            found[number] = known.setdefault(shape, len(known))
        return found


def outline_of(shape: Shape, parent: int = -1, number: int = 0) -> Iterator[PageNode]:
    """Yield the nodes of a tree's outline whose loops are unrolled, parents first."""
    # A list of what is left, because a tree can be deeper than Python's recursion.
    waiting: list[tuple[Shape, int, str]] = [(shape, parent, "")]
    while waiting:
        one, above, around = waiting.pop()
        yield PageNode(
            path=str(one["path"]),
            kind="iteration" if around == Loop.kind else str(one["kind"]),
            parent=above,
            merge=str(one["merge"]),
            parallel=bool(one.get("parallel")),
            capture=str(one.get("capture_key") or ""),
        )
        waiting += [(child, number, one["kind"]) for child in reversed(one.get("nodes", ()))]
        number += 1


def recipe_outline(shape: Shape, paths: Sequence[str], end: str) -> Iterator[PageNode]:
    """Yield the stages of a recipe, each with the Things that its calls worked on.

    Args:
        shape: The outline of the recipe.
        paths: The paths of its calls.
        end: The path of the record of its end, which is no stage.
    """
    things: dict[str, dict[str, None]] = {}
    stages = {str(one["path"]) for one in _stages(shape)}
    for path in paths:
        stage, thing = thing_of(path, stages)
        if thing:
            things.setdefault(stage, {})[thing] = None
    number = 0
    waiting: list[tuple[Shape, int]] = [(shape, -1)]
    while waiting:
        one, above = waiting.pop()
        path, mine = str(one["path"]), number
        yield PageNode(path=path, kind="recipe" if above < 0 else "stage", parent=above)
        number += 1
        for thing in things.get(path, ()):
            yield PageNode(path=f"{path}{SEPARATOR}{thing}", kind=THING, parent=mine)
            number += 1
        inner = [child for child in one.get("nodes", ()) if child["path"] != end]
        waiting += [(child, mine) for child in reversed(inner)]


def thing_of(path: str, stages: Iterable[str]) -> tuple[str, str]:
    """Return the innermost stage around a call, and its Thing; both empty if there is none."""
    known = stages if isinstance(stages, (set, frozenset, dict)) else set(stages)
    parts = path.split(SEPARATOR)
    for length in range(len(parts) - 1, 0, -1):
        stage = SEPARATOR.join(parts[:length])
        if stage in known:
            return stage, parts[length] if length < len(parts) - 1 else ""
    return "", ""


def _stages(shape: Shape) -> Iterator[Shape]:
    waiting = [shape]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += one.get("nodes", ())


def combined(statuses: Sequence[str], kind: str) -> str:
    """Return the status of a node that has not finished, from those of its children."""
    for status in ("failed", "waiting", "running"):
        if status in statuses:
            return status
    if kind == Gate.kind and "rejected" in statuses:
        return "rejected"
    return "not_reached"
