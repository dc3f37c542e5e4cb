"""Trees from trees: overrides, outlines, and checks of the stack."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import BaseModel

from mergepoint.core.errors import Fault, ReplayMiss, TreeError
from mergepoint.core.paths import SEPARATOR, nearest, of_first_iterations, select
from mergepoint.tree.leaves import Call, Step, height_of, tool_name
from mergepoint.tree.nodes import Block, Gate, Loop, Node, children, inside, root_path, walk
from mergepoint.tree.policy import Budget
from mergepoint.tree.prompts import PromptContext


def with_overrides(tree: Node, overrides: Mapping[str, Mapping[str, Any]]) -> Node:
    """Return a tree with changed fields: `{"stage_2/draft": {"temperature": 0.2}}`.

    Each key selects nodes by exact path, unique suffix, or glob (`**/tot_enclave`). Inside a loop,
    a path of any iteration selects all of them, so you can copy one from a transcript. `nodes` and
    `name` cannot be set: a path never changes.

    Raises TreeError that lists all selectors that match nothing, and unknown or invalid fields.
    """
    paths = [path for path, _ in walk(tree)]
    changes: dict[str, dict[str, Any]] = {}
    faults: list[Fault] = []
    nodes = dict(walk(tree))
    for selector, fields in overrides.items():
        given: object = fields
        if not isinstance(given, Mapping):
            faults.append(Fault(selector, f"what to set is a mapping of fields, not {fields!r}"))
            continue
        for path in _selected(selector, paths, faults):
            if isinstance(nodes.get(path.rpartition(SEPARATOR)[0]), Loop):
                faults.append(Fault(path, "an iteration is set on its loop; name the loop"))
                continue
            faults += _field_faults(nodes[path], path, fields)
            changes.setdefault(path, {}).update(fields)
    if not faults:
        # Tried node by node: `_rebuild` would stop at the first invalid value.
        for path in paths:
            try:
                dataclasses.replace(nodes[path], **changes.get(path, {}))
            except TreeError as error:
                faults += [Fault(path, fault.problem) for fault in error.faults]
    if faults:
        raise TreeError(faults)
    changed = _rebuild(tree, root_path(tree), changes, frozenset())
    return tree if changed is None else changed


def without(tree: Node, selectors: str | Iterable[str]) -> Node:
    """Return a tree without the selected nodes; the names of the others stay the same.

    Raises TreeError for a selector of nothing, of the root, or of a node that its parent needs.
    """
    paths = [path for path, _ in walk(tree)]
    faults: list[Fault] = []
    chosen = [selectors] if isinstance(selectors, str) else list(selectors)
    gone = {path for selector in chosen for path in _selected(selector, paths, faults)}
    fixed = {paths[0]: "the root cannot be taken out"} | {
        below: f"the {node.kind} around it cannot be without it; take out {path}"
        for path, node in walk(tree)
        if isinstance(node, Gate | Loop)
        for below, _ in children(node, path)
    }
    faults += [Fault(path, problem) for path, problem in fixed.items() if path in gone]
    if faults:
        raise TreeError(faults)
    changed = _rebuild(tree, root_path(tree), {}, frozenset(gone))
    return tree if changed is None else changed


def _selected(selector: str, paths: list[str], faults: list[Fault]) -> list[str]:
    try:
        # As written first: a node may be named like an iteration.
        return select(selector, paths)
    except LookupError as error:
        with contextlib.suppress(LookupError):
            return select(of_first_iterations(selector), paths)
        faults.append(Fault("", str(error.args[0])))
        return []


def _field_faults(node: Node, path: str, fields: Mapping[str, Any]) -> list[Fault]:
    kept = ("name", "nodes", "node")
    allowed = [f.name for f in dataclasses.fields(node) if f.name not in kept]
    return [
        Fault(
            path,
            f"a {node.kind} has no field {name!r} to set{nearest(name, allowed)}; "
            f"its fields are: {', '.join(allowed)}",
        )
        for name in fields
        if name not in allowed
    ]


def _rebuild(
    node: Node, path: str, changes: Mapping[str, Mapping[str, Any]], gone: frozenset[str]
) -> Node | None:
    """Return the changed node, or None if nothing below it changes."""
    fields: dict[str, Any] = dict(changes.get(path, {}))
    if not isinstance(node, Step | Call):
        kept: list[Node] = []
        touched = False
        for child_path, child in inside(node, path):
            if child_path in gone:
                touched = True
                continue
            changed = _rebuild(child, child_path, changes, gone)
            touched = touched or changed is not None
            name = child_path.rpartition(SEPARATOR)[2]
            kept.append(_named(changed or child, name) if gone else changed or child)
        if touched:
            fields |= {"node": kept[0]} if isinstance(node, Gate) else {"nodes": kept}
    if not fields:
        return None
    return dataclasses.replace(node, **fields)


def _named(node: Node, name: str) -> Node:
    """Return the node with its positional name made explicit, so paths stay if siblings go."""
    return node if node.name == name else dataclasses.replace(node, name=name)


class _Structured(BaseModel):
    """A placeholder for any schema in a tree that is made from an outline."""


def outlined_condition(context: PromptContext) -> bool:
    """Raise ReplayMiss: an outline does not contain the function of an `until`."""
    raise ReplayMiss(f"an outline does not hold what until says at {context.path}")


def outlined_target(context: PromptContext) -> None:
    """Return nothing: a placeholder for the target of a Call, which an outline does not have."""


def outline(node: Node, path: str | None = None) -> dict[str, Any]:
    """Return path, kind, merge mode and capture of a node and everything below it, as JSON."""
    path = root_path(node) if path is None else path
    shape: dict[str, Any] = {"path": path, "kind": node.kind, "merge": node.merge}
    if node.capture_key is not None:
        shape["capture_key"] = node.capture_key
    if isinstance(node, Step):
        # What matters for replay: structured output and tools.
        shape |= {"structured": True} if node.schema is not None else {}
        shape |= {"tools": [tool_name(one) for one in node.tools]} if node.tools else {}
    if isinstance(node, Step | Call):
        reads = node.reads
        if reads is not None and reads.keys:
            shape["reads"] = list(reads.keys)
        return shape
    if isinstance(node, Block) and node.parallel:
        shape["parallel"] = node.parallel
    budget = getattr(node, "budget", None)
    if isinstance(budget, Budget) and budget.on_exhausted == "keep":
        shape["keeps"] = True
    if isinstance(node, Gate) and node.on_reject == "stop":
        shape["on_reject"] = "stop"
    if isinstance(node, Loop):
        shape["until"] = node.until if isinstance(node.until, str) else None
        shape["max_iterations"] = node.max_iterations
        shape["on_exhausted"] = node.on_exhausted
        if node.may_skip:
            shape["may_skip"] = True
    shape["nodes"] = [outline(child, at) for at, child in children(node, path)]
    return shape


def from_outline(shape: Mapping[str, Any]) -> Node:
    """Return a tree of that shape, whose prompts hold nothing; the same one for equal outlines."""
    try:
        return _known_tree(orjson.dumps(shape))
    except TypeError:  # not JSON: the tree's own checks say what is wrong
        return _tree_of(shape)


# A run reads its own outline back up to five times (header, transcript, usage); nodes are frozen.
@lru_cache(maxsize=32)
def _known_tree(outlined: bytes) -> Node:
    return _tree_of(orjson.loads(outlined))


def _tree_of(shape: Mapping[str, Any]) -> Node:
    name = shape["path"].rpartition("/")[2]
    fields = {"name": name, "merge": shape["merge"], "capture_key": shape.get("capture_key")}
    kind = shape["kind"]
    if kind == Step.kind:
        schema = _Structured if shape.get("structured") else None
        return Step("(not part of an outline)", schema=schema, **fields)
    if kind == Call.kind:
        return Call(outlined_target, **fields)
    nodes = [_tree_of(child) for child in shape["nodes"]]
    if kind == Gate.kind:
        return Gate(nodes[0], on_reject=shape.get("on_reject", "continue"), **fields)
    if kind == Loop.kind:
        # The one child in an outline is the body, and a Loop makes its body from the nodes.
        (body,) = nodes
        return Loop(
            body.nodes if isinstance(body, Block) else (),
            until=shape["until"] or outlined_condition,
            max_iterations=shape["max_iterations"],
            on_exhausted=shape["on_exhausted"],
            may_skip=shape.get("may_skip", False),
            **fields,
        )
    return Block(nodes, parallel=shape.get("parallel", False), **fields)


def leaf_count(shape: Mapping[str, Any]) -> int | None:
    """Return the number of leaves that a run passes through, or None if the tree has a loop."""
    counts = [leaf_count(inner) for inner in shape.get("nodes", ())]
    if shape["kind"] == Loop.kind or None in counts:
        return None
    return sum(count or 0 for count in counts) if "nodes" in shape else 1


def leaf_paths(shape: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the leaves, in the order of the tree."""
    if "nodes" not in shape:
        yield str(shape["path"])
    for inner in shape.get("nodes", ()):
        yield from leaf_paths(inner)


# Measured on 3.11: a level of subgraphs takes 7.2 frames, one of a fused tree 4. A provider's
# client beneath them takes about 60, and the graph's own entry 50.
_FRAMES_OF_A_LEVEL: Final = 8
_FRAMES_OF_A_CALL: Final = 110


def check_stack(tree: Any, path: str) -> None:
    """Raise TreeError if the caller's stack has too little room to run a tree."""
    if problem := stack_problem(tree):
        raise TreeError.of(problem, path=path)


def stack_problem(tree: Any) -> str | None:
    """Return why the caller's stack has too little room to run a tree, or None.

    In the middle of a run that would be a RecursionError, after calls that cost money.
    """
    levels = height_of(tree)
    needed = _FRAMES_OF_A_LEVEL * levels + _FRAMES_OF_A_CALL
    most = sys.getrecursionlimit()
    try:
        sys._getframe(max(0, most - needed))  # counts frames without creating frame objects
    except ValueError:  # the stack is not as deep as that
        return None
    return (
        f"{levels} names deep, which takes up to {needed} frames of the stack, and its caller "
        f"leaves less of the {most} that Python allows: call it from a thread of its own, or "
        "allow more with sys.setrecursionlimit"
    )
