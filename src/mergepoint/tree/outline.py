"""Outline: a tree's shape as plain data, enough to replay its merges without its prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from mergepoint.core.errors import ReplayMiss
from mergepoint.tree.block import Block
from mergepoint.tree.budget import Budget
from mergepoint.tree.call import Call
from mergepoint.tree.context import PromptContext
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, children, root_path
from mergepoint.tree.step import Step


class _Structured(BaseModel):
    """Stands for any schema in a tree made from an outline."""


def untold(context: PromptContext) -> bool:
    """Stand for an `until` that was a function: an outline does not hold what it says."""
    raise ReplayMiss(f"an outline does not hold what until says at {context.path}")


def nothing(context: PromptContext) -> None:
    """Stand for the target of a Call, which an outline does not hold."""


def outline(node: Node, path: str | None = None) -> dict[str, Any]:
    """Give path, kind, merge mode and capture of a node and of everything below it, as JSON."""
    path = root_path(node) if path is None else path
    shape: dict[str, Any] = {"path": path, "kind": node.kind, "merge": node.merge}
    if node.capture_key is not None:
        shape["capture_key"] = node.capture_key
    if isinstance(node, Step) and node.schema is not None:
        shape["structured"] = True
    if isinstance(node, Step | Call):
        reads = node.reads
        if reads is not None and reads.keys:
            shape["reads"] = list(reads.keys)
        return shape
    if isinstance(node, Block) and node.parallel:
        shape["parallel"] = True
    budget = getattr(node, "budget", None)
    if isinstance(budget, Budget) and budget.on_exhausted == "keep":
        shape["keeps"] = True
    if isinstance(node, Loop):
        shape["until"] = node.until if isinstance(node.until, str) else None
        shape["max_iterations"] = node.max_iterations
        shape["on_exhausted"] = node.on_exhausted
        if node.may_skip:
            shape["may_skip"] = True
    shape["nodes"] = [outline(child, at) for at, child in children(node, path)]
    return shape


def from_outline(shape: Mapping[str, Any]) -> Node:
    """Give a tree of that shape, whose prompts hold nothing."""
    name = shape["path"].rpartition("/")[2]
    fields = {"name": name, "merge": shape["merge"], "capture_key": shape.get("capture_key")}
    kind = shape["kind"]
    if kind == Step.kind:
        schema = _Structured if shape.get("structured") else None
        return Step("(not part of an outline)", schema=schema, **fields)
    if kind == Call.kind:
        return Call(nothing, **fields)
    nodes = [from_outline(child) for child in shape["nodes"]]
    if kind == Gate.kind:
        return Gate(nodes[0], **fields)
    if kind == Loop.kind:
        (body,) = nodes
        return Loop(
            body.nodes if isinstance(body, Block) else (),
            until=shape["until"] or untold,
            max_iterations=shape["max_iterations"],
            on_exhausted=shape["on_exhausted"],
            may_skip=shape.get("may_skip", False),
            **fields,
        )
    return Block(nodes, parallel=shape.get("parallel", False), **fields)


def leaf_count(shape: Mapping[str, Any]) -> int | None:
    """Give how many nodes that hold no others a run comes through, None where a loop is in it."""
    counts = [leaf_count(inner) for inner in shape.get("nodes", ())]
    if shape["kind"] == Loop.kind or None in counts:
        return None
    return sum(count or 0 for count in counts) if "nodes" in shape else 1


def leaf_paths(shape: Mapping[str, Any]) -> Iterator[str]:
    """Give the paths of the nodes that hold no others, in the order of the tree."""
    if "nodes" not in shape:
        yield str(shape["path"])
    for inner in shape.get("nodes", ()):
        yield from leaf_paths(inner)
