"""Places: where in a tree what is made that a browser shows."""

from __future__ import annotations

from collections.abc import Iterator

from mergepoint.core.path import SEPARATOR, join
from mergepoint.session.artifacts import STEP, Artifacts
from mergepoint.tree.gate import Gate
from mergepoint.tree.node import Node, children, root_path, walk
from mergepoint.tree.step import Step


class Places:
    """A tree as a browser sees it: artifacts, gates, drafts, and what answers."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.artifacts = Artifacts(tree)
        self._answers = set(_answering(tree, root_path(tree)))
        self._drafts = dict(_drafts(tree, root_path(tree)))

    def drafted(self, path: str) -> str | None:
        """Give where in a run the artifact is made that a step at a path drafts."""
        found = self._drafts.get(self.artifacts.place(path))
        return None if found is None else join(path.rpartition(SEPARATOR)[0], found)

    def answers(self, path: str) -> bool:
        """Say whether what is made at a path is what the tree answers."""
        return self.artifacts.place(path) in self._answers

    def is_gate(self, path: str) -> bool:
        """Say whether a person may be asked at a path."""
        return isinstance(self.artifacts.node_at(path), Gate)


def _answering(node: Node, path: str) -> Iterator[str]:
    """Give the paths of the steps whose text can be what the tree answers."""
    if isinstance(node, Step):
        yield path
    for at, child in reversed([*children(node, path)]):
        if child.merge != "none":
            yield from _answering(child, at)
            return


def _drafts(node: Node, path: str) -> Iterator[tuple[str, str]]:
    """Give the steps that draft an artifact of a sibling behind them, and that one's path.

    The path is relative to what both stand in.
    """
    below = [*children(node, path)]
    for number, (at, child) in enumerate(below):
        if isinstance(child, Step) and STEP not in child.meta and child.merge == "none":
            home = f"{at.rpartition(SEPARATOR)[0]}{SEPARATOR}"
            made = [
                place.removeprefix(home)
                for later, sibling in below[number + 1 :]
                for place, one in walk(sibling, later)
                if STEP in one.meta and not isinstance(one, Gate)
            ]
            yield from ((at, one) for one in made[:1])
        yield from _drafts(child, at)
