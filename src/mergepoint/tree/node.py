"""Node: any part of a tree; how trees are walked, and the paths of what is in them."""

from __future__ import annotations

from collections.abc import Iterator

from mergepoint.core.path import ITERATION, SEPARATOR, effective_name, iteration_name, join
from mergepoint.tree.block import Block
from mergepoint.tree.call import Call
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.step import Step

Node = Step | Call | Gate | Block | Loop


def root_path(tree: Node) -> str:
    """Give the root's path: its name, else `pipeline` for a block (for a lone step `step_01`)."""
    if tree.name is not None:
        return tree.name
    return "pipeline" if isinstance(tree, Block) else effective_name(None, tree.kind, 1)


def names(block: Block) -> tuple[str, ...]:
    """Give the effective names of a block's children, in order."""
    return tuple(
        effective_name(node.name, node.kind, position)
        for position, node in enumerate(block.nodes, start=1)
    )


def children(node: Node, path: str) -> list[tuple[str, Node]]:
    """Give (path, child) for each child of a node, in order; none for a step or call.

    A loop has one child, its body under the path of the first iteration.
    """
    if isinstance(node, Block):
        return [
            (join(path, name), child) for name, child in zip(names(node), node.nodes, strict=True)
        ]
    if isinstance(node, Gate):
        return [(join(path, effective_name(node.node.name, node.node.kind, 1)), node.node)]
    if isinstance(node, Loop):
        return [(join(path, iteration_name(1)), node.body)]
    return []


def inside(node: Node, path: str) -> list[tuple[str, Node]]:
    """Give (path, node) for the nodes that a container was made with; for a loop its body's."""
    if isinstance(node, Loop):
        return children(node.body, join(path, iteration_name(1)))
    return children(node, path)


def walk(node: Node, path: str | None = None) -> Iterator[tuple[str, Node]]:
    """Give (path, node) for the node and everything below it, parents first."""
    path = root_path(node) if path is None else path
    yield path, node
    for child_path, child in children(node, path):
        yield from walk(child, child_path)


def find(tree: Node, path: str) -> Node:
    """Give the node at an exact path. Raises LookupError that lists the paths there are."""
    nodes = dict(walk(tree))
    if path not in nodes:
        raise LookupError(f"no node at {path!r}; there are:\n  " + "\n  ".join(nodes))
    return nodes[path]


class Order:
    """The order of a tree, for paths of any iteration."""

    def __init__(self, tree: Node, path: str) -> None:
        self._places = {at: number for number, (at, _) in enumerate(walk(tree, path))}
        self._loops = any(isinstance(node, Loop) for _, node in walk(tree, path))

    def static(self, path: str) -> str:
        """Give the path in the tree of a path in a run: the same in the first iteration."""
        if path in self._places or not self._loops:
            return path
        at = ""
        for name in path.split(SEPARATOR):
            below = join(at, name)
            first = join(at, iteration_name(1))
            rounds = name.startswith(ITERATION) and first in self._places
            at = first if below not in self._places and rounds else below
        return at

    def __contains__(self, path: str) -> bool:
        """Say whether the tree has such a path, in any iteration."""
        return self.static(path) in self._places

    def __call__(self, path: str) -> tuple[tuple[int, int], ...]:
        """Give a key to sort paths by; what is not in the tree comes last."""
        key: list[tuple[int, int]] = []
        at = ""
        for name in path.split(SEPARATOR):
            at = join(at, name)
            static = self.static(at)
            number = self._places.get(static, len(self._places))
            moved = static != at and static.endswith(iteration_name(1))
            key.append((number, _number(name) if moved else 0))
        return tuple(key)


def _number(name: str) -> int:
    digits = name.removeprefix(ITERATION)
    return int(digits) if digits.isdecimal() else 0
