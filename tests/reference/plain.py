"""From a tree of the library to the plain data of the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mergepoint.testing.tree_functions import (
    TOOLS,
    DataFunction,
    DecisionFunction,
    EchoRunnable,
    PartsPrompt,
    StopRule,
)
from mergepoint.tree.leaves import Call
from mergepoint.tree.nodes import REQUIRED, Block, Gate, Loop, Node
from mergepoint.tree.prompts import Template


def plain(node: Node) -> dict[str, Any]:
    """Return a tree as plain data.

    Raises TypeError for a prompt whose meaning cannot be seen, such as any other function.
    """
    shared: dict[str, Any] = {
        "kind": node.kind,
        "name": node.name,
        "merge": node.merge,
        "capture_key": node.capture_key,
    }
    if isinstance(node, Block):
        inputs = [
            [given.name] if given.default is REQUIRED else [given.name, given.default]
            for given in node.declared_inputs
        ]
        children = [plain(child) for child in node.nodes]
        return {**shared, "parallel": node.parallel, "inputs": inputs, "children": children}
    if isinstance(node, Loop):
        inside = [plain(child) for child in node.nodes]
        shared["reads"] = [node.until] if isinstance(node.until, str) else ["*"]
        about = {"until": plain_until(node.until), "most": node.max_iterations}
        about |= {"keeps": node.on_exhausted == "keep", "skips": node.may_skip}
        return {**shared, **about, "children": inside}
    if isinstance(node, Gate):
        if not isinstance(node.decide, DecisionFunction):
            raise TypeError("the reference cannot foresee who decides; use DecisionFunction")
        about = {"question": node.question, "words": list(node.decide.words)}
        about |= {"stops": node.on_reject == "stop"}
        return {**shared, **about, "child": plain(node.node)}
    shared["reads"] = ["*"] if node.reads is None else list(node.reads.keys)
    if isinstance(node, Call):
        return {**shared, "target": plain_target(node.target), "args": plain_args(node.args)}
    system = None if node.system is None else plain_text(node.system)
    texts = {"prompt": plain_text(node.prompt), "system": system}
    tools = {"tools": plain_tools(node.tools), "rounds": node.max_tool_rounds}
    more = tools if node.tools else {}
    return {**shared, **texts, "structured": node.schema is not None, **more}


def plain_tools(tools: Sequence[Any]) -> list[str]:
    """Return the names of a step's tools. Raises TypeError for one that cannot be foreseen."""
    if unknown := [tool for tool in tools if tool not in TOOLS.values()]:
        raise TypeError(f"the reference cannot foresee the tool {unknown[0]!r}; use those of TOOLS")
    return [tool.__name__ for tool in tools]


def plain_text(text: object) -> dict[str, Any]:
    """Return a prompt or a system message as plain data."""
    if isinstance(text, str):
        return {"kind": "literal", "text": text}
    if isinstance(text, Template):
        return {"kind": "template", "text": text.text, "defaults": dict(text.defaults)}
    if isinstance(text, PartsPrompt):
        return {
            "kind": "function",
            "parts": [list(part) for part in text.parts],
            "defaults": dict(text.defaults),
            "declared": text.declared,
        }
    raise TypeError(f"the reference cannot read a {type(text).__name__}; use PartsPrompt")


def plain_until(until: object) -> dict[str, Any]:
    """Return when a loop ends as plain data."""
    if isinstance(until, str):
        return {"key": until}
    if isinstance(until, StopRule):
        return {"of": until.of, "count": until.count, "under": until.key}
    raise TypeError(f"the reference cannot read a {type(until).__name__}; use StopRule")


def plain_target(target: object) -> dict[str, Any]:
    """Return what a Call calls as plain data."""
    if isinstance(target, EchoRunnable):
        return {"form": target.form, "asks": target.asks}
    if isinstance(target, DataFunction):
        return {
            "gives": target.gives,
            "keys": list(target.keys),
            "defaults": dict(target.defaults),
            "counter": target.counter,
            "declared": target.declared,
        }
    raise TypeError(
        f"the reference cannot foresee a {type(target).__name__}; use DataFunction or EchoRunnable"
    )


def plain_args(args: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a Call's arguments as plain data."""
    if args is None:
        return None
    return {
        name: plain_text(arg) if isinstance(arg, Template) else {"kind": "value", "value": arg}
        for name, arg in args.items()
    }
