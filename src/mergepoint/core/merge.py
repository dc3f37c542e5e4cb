"""The merge: the one expression that yields a new parent.

A node was given a base and made something on a copy of it. Its merge mode says what is kept:
in git's words, `all_messages` is a fast-forward, `last_response` a squash, and `none` drops the
branch. Modes govern messages only; what was captured into outputs survives every mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

from mergepoint.core.errors import MergeError
from mergepoint.core.state import MessageLike, State

MergeMode = Literal["all_messages", "last_response", "none"]
MERGE_MODES: tuple[str, ...] = get_args(MergeMode)

NO_RESPONSE = "last_response requested but no assistant output exists"

M = TypeVar("M", bound=MessageLike)


def mode_problem(mode: object) -> str | None:
    """Say what is wrong with a merge mode, or None."""
    if mode in MERGE_MODES:
        return None
    return f"merge={mode!r} is no merge mode; allowed are {', '.join(map(repr, MERGE_MODES))}"


def last_response(messages: Sequence[M]) -> M | None:
    """Give the last assistant message, or None."""
    for message in reversed(messages):
        if message.type == "ai":
            return message
    return None


def keep(mode: MergeMode, made: State[M]) -> State[M]:
    """Give what the merge mode lets out of what a node made.

    Raises MergeError for `last_response` where no assistant message was made.
    """
    if mode == "all_messages":
        return made
    if mode == "none":
        return State((), made.outputs)
    response = last_response(made.messages)
    if response is None:
        raise MergeError(NO_RESPONSE)
    return State((response,), made.outputs)


def merge(parent: State[M], mode: MergeMode, made: State[M]) -> State[M]:
    """Give the parent after a node's exit: `parent + keep(mode, made)`."""
    return parent + keep(mode, made)
