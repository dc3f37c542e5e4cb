"""Trees: how a param names a conversation tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mergepoint.core.errors import MergepointError, TreeError
from mergepoint.core.path import nearest
from mergepoint.tree.check import check
from mergepoint.tree.gate import Gate
from mergepoint.tree.kinds import is_node
from mergepoint.tree.node import Node, root_path, walk
from mergepoint.tree.outline import outline
from mergepoint.tree.strict_yaml import dump
from mergepoint.tree.target import graph_names, resolve_target
from mergepoint.tree.yaml import from_yaml, load_yaml, to_yaml

_FILE = re.compile(r"[^\n]+\.ya?ml")
_CODE = re.compile(r"[^\n]+\.py(:\w*)?|[\w.]+:\w+")
_NAME = re.compile(r"[A-Za-z]\w*")
_FORMS = "a graph that comes along (mergepoint list), a .yaml file, or YAML as text or as it stands"


def tree_of(given: Any) -> Node:
    """Give the tree: itself, a graph that comes along, a file of YAML, or YAML as text or as data.

    No code of others is loaded: a recipe may have been written by somebody else. Raises ValueError
    that lists its faults; gates are one, since nobody is there to answer.
    """
    try:
        tree = _found(given)
    except MergepointError as error:
        raise ValueError(str(error)) from error
    except OSError as error:
        raise ValueError(f"the file {given!r} cannot be read: {error}") from error
    if faults := [*map(str, check(tree)), *_gates(tree)]:
        raise ValueError("; ".join(faults))
    return tree


def tree_on_wire(tree: Node) -> Any:
    """Give a tree as YAML; one that has no text form as its outline."""
    try:
        return to_yaml(tree)
    except TreeError:
        return outline(tree)


def captures(tree: Node) -> list[str]:
    """Give the keys that a tree writes, in order."""
    found = (node.capture_key for _, node in walk(tree, root_path(tree)))
    return list(dict.fromkeys(key for key in found if key is not None))


def _found(given: Any) -> Node:
    if is_node(given):
        tree: Node = given
        return tree
    if isinstance(given, Mapping):
        return from_yaml(dump(dict(given)))
    if not isinstance(given, str):
        raise ValueError(f"a tree is a node, or {_FORMS}")
    text = given.strip()
    if _FILE.fullmatch(text):
        return load_yaml(Path(text))
    if _CODE.fullmatch(text):
        raise ValueError(f"{text!r}: a recipe loads no Python; in YAML a tree is {_FORMS}")
    return _graph(text) if _NAME.fullmatch(text) else from_yaml(given)


def _graph(name: str) -> Node:
    known = graph_names()
    if name not in known:
        raise ValueError(f"there is no graph {name!r}{nearest(name, known)}; a tree is {_FORMS}")
    return resolve_target(name).tree


def _gates(tree: Node) -> Iterator[str]:
    for path, node in walk(tree, root_path(tree)):
        if isinstance(node, Gate):
            yield f"{path}: a gate has nobody to answer it in a stream; take it out"
