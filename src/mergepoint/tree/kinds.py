"""Kinds: what counts as a node, told apart without importing the nodes."""

from __future__ import annotations

from typing import Any, Final

KINDS: Final = ("step", "call", "gate", "block", "loop")


def is_node(value: Any) -> bool:
    """Say whether a value is a node of a tree."""
    return getattr(type(value), "kind", None) in KINDS


def not_a_node(value: Any) -> str:
    """Say what stands in a node's place, and the way out."""
    found = type(value).__name__
    hint = "a function in Call(...)" if callable(value) else "a prompt in Step(...)"
    return f"{found}, not a Step, Call, Gate, Block or Loop; wrap {hint}"
