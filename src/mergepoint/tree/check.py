"""Static checks of a whole tree: every fault is found before the first call is paid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.merge import NO_RESPONSE
from mergepoint.core.path import nearest
from mergepoint.tree.block import Block, Input
from mergepoint.tree.call import Call
from mergepoint.tree.gate import Gate
from mergepoint.tree.kinds import is_node
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, children, find, root_path, walk
from mergepoint.tree.step import Step
from mergepoint.tree.template import Reads


def check(tree: Node) -> list[Fault]:
    """Give every fault of a tree, in tree order; an empty list means that it can run.

    Found here: inputs below the root or given twice, a key captured twice or under an input's
    name, `last_response` and captures of nodes that can never hold an assistant message, loops
    that wait for a key that nothing in them captures, and declared reads of keys that nobody
    writes, or that are written only later.
    """
    root = root_path(tree)
    writers = _Writers.of(tree, root)
    faults = [*_input_faults(tree, root), *writers.faults]
    faults += _response_faults(tree, root)
    known = frozenset(given.name for given in inputs_of(tree))
    faults += _ReadCheck(known, writers.path_of).visit(tree, root, known)
    faults += _until_faults(tree, root)
    order = {path: number for number, (path, _) in enumerate(walk(tree))}
    return sorted(faults, key=lambda fault: order[fault.path])


def checked(tree: Node) -> Node:
    """Give the tree back. Raises TreeError that lists all its faults, or for what is no tree."""
    if faults := check(as_tree(tree)):
        raise TreeError(faults)
    return tree


def as_tree(tree: Any) -> Node:
    """Give a tree back. Raises TreeError for what is none."""
    if is_node(tree):
        return tree  # type: ignore[no-any-return]
    raise TreeError.of(
        f"a tree is a node, such as a Step or a Block, not {type(tree).__name__}; wrap nodes in "
        "Block([...])"
    )


def inputs_of(tree: Node) -> tuple[Input, ...]:
    """Give the inputs that the root declares."""
    return tree.declared_inputs if isinstance(tree, Block) else ()


def needs_of(tree: Node, path: str) -> tuple[Input, ...]:
    """Give what the part at `path` must be given to run alone.

    These are the root's inputs and, as inputs without a default, the keys that the part reads
    and that only the rest of the tree writes.
    """
    if path == root_path(tree):
        return inputs_of(tree)
    part = find(tree, path)
    own = {key for _, node in walk(part, path) if (key := node.capture_key)}
    declared = {given.name: given for given in inputs_of(tree)}
    wanted: dict[str, Input] = {}
    for _, node in walk(part, path):
        for key in _required(node):
            if key not in own and key not in declared:
                wanted.setdefault(key, Input(key))
    return (*declared.values(), *wanted.values())


def can_respond(node: Node) -> bool:
    """Say whether a node's merge can let an assistant message out."""
    if node.merge == "none":
        return False
    return _makes_response(node)


def _makes_response(node: Node) -> bool:
    """Say whether a node can make one; of a Call nothing is claimed."""
    if isinstance(node, Step | Call):
        return True
    return any(can_respond(child) for _, child in children(node, ""))


def keys_read(node: Node) -> tuple[str, ...]:
    """Give the keys that a node is known to read: what it declares, and what a loop waits for."""
    if isinstance(node, Step):
        return (node.reads or node.system_reads).keys
    if isinstance(node, Call):
        return (node.reads or Reads()).keys
    return (node.until,) if isinstance(node, Loop) and isinstance(node.until, str) else ()


def _required(node: Node) -> tuple[str, ...]:
    if isinstance(node, Step):
        return (node.reads or node.system_reads).required
    if isinstance(node, Call):
        return (node.reads or Reads()).required
    return ()


def _input_faults(tree: Node, root: str) -> Iterator[Fault]:
    for path, node in walk(tree, root):
        if not isinstance(node, Block) or not node.inputs:
            continue
        if node is not tree or path != root:
            yield Fault(path, "inputs belong on the root; move them there")
        seen: set[str] = set()
        for given in node.declared_inputs:
            if given.name in seen:
                yield Fault(path, f"input {given.name!r} is declared twice")
            seen.add(given.name)


def _until_faults(tree: Node, root: str) -> Iterator[Fault]:
    for path, node in walk(tree, root):
        if not isinstance(node, Loop) or not isinstance(node.until, str):
            continue
        own = {below.capture_key for _, below in walk(node.body, path) if below.capture_key}
        if node.until not in own:
            yield Fault(
                path,
                f"until={node.until!r}, which nothing in the loop captures"
                f"{nearest(node.until, own)}; its captures are: {', '.join(sorted(own)) or 'none'}",
            )


def _response_faults(tree: Node, root: str) -> Iterator[Fault]:
    for path, node in walk(tree, root):
        if _makes_response(node):
            continue
        if node.merge == "last_response":
            yield Fault(
                path, f"{NO_RESPONSE}: no child keeps one; let one merge, or use merge='none'"
            )
        if node.capture_key is not None and not isinstance(node, Gate):
            yield Fault(
                path,
                f"capture_key={node.capture_key!r} asks for a last response, but no assistant "
                "output exists: no child keeps one",
            )


@dataclass(frozen=True)
class _Writers:
    """Who writes which key, and the faults of keys with two writers."""

    path_of: dict[str, str]
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, tree: Node, root: str) -> _Writers:
        path_of: dict[str, str] = {}
        faults = []
        given = {declared.name for declared in inputs_of(tree)}
        for path, node in walk(tree, root):
            key = node.capture_key
            if key is None:
                continue
            if key in given:
                faults.append(Fault(path, f"capture_key {key!r} is an input's name; rename one"))
            if key in path_of:
                faults.append(
                    Fault(
                        path,
                        f"capture_key {key!r} is written by {path_of[key]} too; a key has one "
                        "writer: build the part with a factory that scopes its keys",
                    )
                )
            path_of.setdefault(key, path)
        return cls(path_of, tuple(faults))


@dataclass
class _ReadCheck:
    """Walks in order of execution with the keys that are surely there."""

    inputs: frozenset[str]
    path_of: dict[str, str]
    faults: list[Fault] = field(default_factory=list)
    unsure: frozenset[str] = frozenset()

    def visit(self, node: Node, path: str, there: frozenset[str]) -> list[Fault]:
        self._visit(node, path, there)
        return self.faults

    def _visit(self, node: Node, path: str, there: frozenset[str]) -> frozenset[str]:
        """Give the keys that are there after the node."""
        self._read(path, _required(node), there)
        after = there
        beside = isinstance(node, Block) and node.parallel
        for child_path, child in children(node, path):
            after |= self._visit(child, child_path, there if beside else after)
        if isinstance(node, Loop) and node.may_skip:
            self.unsure |= after - there
            after = there
        return after | {node.capture_key} if node.capture_key is not None else after

    def _read(self, path: str, keys: Iterable[str], there: frozenset[str]) -> None:
        for key in keys:
            if key in there:
                continue
            if key in self.path_of:
                when = "only later or beside it"
                if key in self.unsure:
                    when = "in a loop that may be skipped"
                problem = (
                    f"reads {key!r}, which is written {when}, at {self.path_of[key]}; "
                    "move the reader behind its exit, or give a default"
                )
            else:
                known = [*sorted(self.inputs), *self.path_of]
                problem = (
                    f"reads {key!r}, which no input and no capture_key gives"
                    f"{nearest(key, known)}; known are: {', '.join(known) or 'none'}"
                )
            self.faults.append(Fault(path, problem))
