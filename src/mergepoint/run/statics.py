"""Statics: what is fixed in a tree's calls before any of them is made, and what changed in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import Fault
from mergepoint.record.header import RunHeader
from mergepoint.record.request import call_digest
from mergepoint.run.calls import Calls
from mergepoint.tree.call import Call
from mergepoint.tree.node import Node, walk
from mergepoint.tree.outline import outline
from mergepoint.tree.step import Step
from mergepoint.tree.template import Template


def changes(header: RunHeader, tree: Node, path: str, calls: Calls) -> list[Fault]:
    """Give what differs between a tree and the one that a run began with, by path."""
    now, before = statics(tree, path, calls), header.requests
    way_out = "; begin a new run that reuses what still fits (--reuse)"
    faults = [
        Fault(path, f"is another step than the run began with{way_out}")
        for path in now
        if path in before and now[path] != before[path]
    ]
    faults += [Fault(path, f"is new since the run began{way_out}") for path in now.keys() - before]
    faults += [Fault(path, f"is gone since the run began{way_out}") for path in before - now.keys()]
    if not faults and outline(tree, path) != header.tree:
        faults.append(Fault(path, f"merges or captures differ{way_out}"))
    return faults


def statics(tree: Node, path: str, calls: Calls) -> dict[str, str]:
    """Give a digest of what is static in each step: its texts, and how its model is called.

    A prompt function counts by its qualified name: what it says is seen only when it is called.
    """
    return {
        at: _digest(node, calls.setting(node, at))
        if isinstance(node, Step)
        else call_digest(node.label, node.version, _args(node))
        for at, node in walk(tree, path)
        if isinstance(node, Step | Call)
    }


def _args(call: Call) -> Any:
    return None if call.args is None else {name: _value(arg) for name, arg in call.args.items()}


def _value(arg: Any) -> Any:
    return _source(arg) if isinstance(arg, Template) else arg


def _digest(step: Step, setting: bytes) -> str:
    examples = [
        [example.type, example.content] if isinstance(example, BaseMessage) else list(example)
        for example in step.examples
    ]
    said: list[Any] = [setting.hex(), _source(step.prompt), _source(step.system), examples]
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()


def _source(text: str | Template | Callable[..., Any] | None) -> Any:
    if isinstance(text, Template):
        return {"template": text.text, "defaults": dict(text.defaults)}
    if text is None or isinstance(text, str):
        return text
    kind: Any = text if hasattr(text, "__qualname__") else type(text)
    return {"function": f"{kind.__module__}.{kind.__qualname__}"}
