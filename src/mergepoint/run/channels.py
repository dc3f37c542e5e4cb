"""Channels: a container's state as LangGraph carries it, and how it is read and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import StreamMode

from mergepoint.core.state import State
from mergepoint.tree.fold import (
    Messages,
    locate_node,
)
from mergepoint.tree.node import Node

EXIT = "__merge__"
DECIDE = "__decide__"
UNTIL = "__until__"
FAILED_AT = "failed_at"

# `invoke` listens to updates too, for interrupts; a nested graph raises those by itself.
VALUES: StreamMode = "values"

Channels = dict[str, Any]


def view_in(state: Mapping[str, Any]) -> Messages:
    """Give what a node of a block sees: the base and the work on it."""
    messages, outputs = _seen(state)
    return State(tuple(messages), MappingProxyType(outputs))


def _seen(state: Mapping[str, Any]) -> tuple[list[BaseMessage], dict[str, Any]]:
    messages, work = state["messages"], state.get("work")
    outputs, captures = state["outputs"], state.get("captures")
    return (
        [*messages, *work] if work else messages,
        {**outputs, **captures} if captures else outputs,
    )


def delta(kept: Messages) -> Channels:
    """Give what was kept as writes to the channels of a block."""
    written: Channels = {}
    if kept.messages:
        written["work"] = list(kept.messages)
    if kept.outputs:
        written["captures"] = dict(kept.outputs)
    return written


def kept_in(written: Mapping[str, Any] | None) -> Messages:
    """Give back as a state what `delta` wrote."""
    if not written:
        return State()
    return State.of(written.get("work") or (), written.get("captures") or {})


@contextmanager
def located(node: Node, path: str) -> Iterator[None]:
    """Write the path on errors that pass; the engine's own signals go through untouched."""
    try:
        yield
    except GraphBubbleUp:
        raise
    except Exception as error:
        locate_node(error, node, path)
        raise


def base_for(state: Mapping[str, Any]) -> Channels:
    """Give the base that a block inside of this state is given."""
    messages, outputs = _seen(state)
    return {"messages": messages, "outputs": outputs, "facts": state["facts"]}
