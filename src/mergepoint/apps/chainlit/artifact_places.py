"""The places in a tree that produce what the browser shows."""

from __future__ import annotations

from collections.abc import Iterator

from mergepoint.core.paths import SEPARATOR, join
from mergepoint.session.turn_runner import STEP, Artifacts
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Gate, Node, children, root_path, walk


class ArtifactPlaces:
    """A tree's artifacts, gates, drafts, and answering steps, by path."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.artifacts = Artifacts(tree)
        self._answers = set(_answering(tree, root_path(tree)))
        self._drafts = dict(_drafts(tree, root_path(tree)))

    def drafted(self, path: str) -> str | None:
        """Return the path in a run of the artifact that a step drafts, or None."""
        found = self._drafts.get(self.artifacts.place(path))
        return None if found is None else join(path.rpartition(SEPARATOR)[0], found)

    def answers(self, path: str) -> bool:
        """Return whether a path's output can be the tree's answer."""
        return self.artifacts.place(path) in self._answers

    def is_gate(self, path: str) -> bool:
        """Return whether the node at a path is a gate."""
        return isinstance(self.artifacts.node_at(path), Gate)


def _answering(node: Node, path: str) -> Iterator[str]:
    """Yield the paths of the steps whose text can be the tree's answer."""
    if isinstance(node, Step):
        yield path
    for at, child in reversed([*children(node, path)]):
        if child.merge != "none":
            yield from _answering(child, at)
            return


# A draft is shown in the place of its artifact while it is written.
def _drafts(node: Node, path: str) -> Iterator[tuple[str, str]]:
    """Yield the steps that draft an artifact of a later sibling, with that artifact's path.

    The path is relative to their common parent.
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
