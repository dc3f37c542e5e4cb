"""Changed trees: `with_overrides` and `without` give new ones, by path."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.path import SEPARATOR, nearest, of_first_iterations, select
from mergepoint.tree.call import Call
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, children, inside, root_path, walk
from mergepoint.tree.step import Step


def with_overrides(tree: Node, overrides: Mapping[str, Mapping[str, Any]]) -> Node:
    """Give a tree with other fields: `{"stage_2/draft": {"temperature": 0.2}}`.

    Each key selects by exact path, unique suffix, or glob (`**/tot_enclave`). Inside of a loop a
    path of any iteration means all of them, so that one can be taken from a transcript. `nodes`
    cannot be set this way, and neither can `name`: a path never changes.

    Raises TreeError that lists every selector that fits nothing and every unknown field.
    """
    paths = [path for path, _ in walk(tree)]
    changes: dict[str, dict[str, Any]] = {}
    faults: list[Fault] = []
    nodes = dict(walk(tree))
    for selector, fields in overrides.items():
        if problem := _mapping_problem(fields):
            faults.append(Fault(selector, problem))
            continue
        for path in _selected(selector, paths, faults):
            if isinstance(nodes.get(path.rpartition(SEPARATOR)[0]), Loop):
                faults.append(Fault(path, "an iteration is set on its loop; name the loop"))
                continue
            faults += _field_faults(nodes[path], path, fields)
            changes.setdefault(path, {}).update(fields)
    if not faults:
        faults = [fault for path in paths for fault in _value_faults(nodes[path], path, changes)]
    if faults:
        raise TreeError(faults)
    changed = _rebuild(tree, root_path(tree), changes, frozenset())
    return tree if changed is None else changed


def without(tree: Node, selectors: str | Iterable[str]) -> Node:
    """Give a tree with the selected nodes taken out; the names of the others stay.

    Raises TreeError when a selector fits nothing, or names the root.
    """
    paths = [path for path, _ in walk(tree)]
    faults: list[Fault] = []
    chosen = [selectors] if isinstance(selectors, str) else list(selectors)
    gone = {path for selector in chosen for path in _selected(selector, paths, faults)}
    fixed = {paths[0]: "the root cannot be taken out", **_fixed(tree)}
    faults += [Fault(path, problem) for path, problem in fixed.items() if path in gone]
    if faults:
        raise TreeError(faults)
    changed = _rebuild(tree, root_path(tree), {}, frozenset(gone))
    return tree if changed is None else changed


def _fixed(tree: Node) -> dict[str, str]:
    """Give what cannot be taken out without what is around it, and why."""
    return {
        below: f"the {node.kind} around it cannot be without it; take out {path}"
        for path, node in walk(tree)
        if isinstance(node, Gate | Loop)
        for below, _ in children(node, path)
    }


def _selected(selector: str, paths: list[str], faults: list[Fault]) -> list[str]:
    try:
        return select(selector, paths)
    except LookupError as error:
        with contextlib.suppress(LookupError):
            return select(of_first_iterations(selector), paths)
        faults.append(Fault("", str(error.args[0])))
        return []


def _mapping_problem(fields: Any) -> str | None:
    if isinstance(fields, Mapping):
        return None
    return f"what to set is a mapping of fields, not {fields!r}"


def _field_faults(node: Node, path: str, fields: Mapping[str, Any]) -> list[Fault]:
    kept = ("name", "nodes", "node")
    allowed = [f.name for f in dataclasses.fields(node) if f.name not in kept]
    return [
        Fault(
            path,
            f"a {node.kind} has no field {name!r} to set{nearest(name, allowed)}; "
            f"there are: {', '.join(allowed)}",
        )
        for name in fields
        if name not in allowed
    ]


def _value_faults(node: Node, path: str, changes: Mapping[str, Mapping[str, Any]]) -> list[Fault]:
    try:
        dataclasses.replace(node, **changes.get(path, {}))
    except TreeError as error:
        return [Fault(path, fault.problem) for fault in error.faults]
    return []


def _rebuild(
    node: Node, path: str, changes: Mapping[str, Mapping[str, Any]], gone: frozenset[str]
) -> Node | None:
    """Give the changed node, or None where nothing below it changes."""
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
    """Give the node its positional name for good, so that siblings may go and paths stay."""
    return node if node.name == name else dataclasses.replace(node, name=name)
