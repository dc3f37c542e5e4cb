"""Unrolled: an outline in which each loop has the iterations that a run went through."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mergepoint.core.path import SEPARATOR, iteration_name, join
from mergepoint.tree.loop import Loop

Shape = Mapping[str, Any]
"""A node of an outline."""


def unrolled(shape: Shape, paths: Collection[str]) -> Shape:
    """Give an outline with as many iterations in each loop as there are paths of, at least one.

    A loop that may be skipped has none where there are none.
    """
    if "nodes" not in shape:
        return shape
    nodes = list(shape["nodes"])
    if shape["kind"] == Loop.kind:
        (body,) = nodes
        nodes = [_moved(body, body["path"], at) for at in _rounds(shape, paths)]
    return {**shape, "nodes": [unrolled(node, paths) for node in nodes]}


def _rounds(loop: Shape, paths: Collection[str]) -> Iterator[str]:
    number = 1
    while True:
        at = join(loop["path"], iteration_name(number))
        may_end = number > 1 or loop.get("may_skip", False)
        if may_end and not any(path.startswith(at + SEPARATOR) for path in paths):
            return
        yield at
        number += 1


def _moved(shape: Shape, before: str, after: str) -> Shape:
    moved = {**shape, "path": after + shape["path"].removeprefix(before)}
    if "nodes" in shape:
        moved["nodes"] = [_moved(node, before, after) for node in shape["nodes"]]
    return moved
