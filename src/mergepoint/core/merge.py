"""The state of a conversation, and the merge: the only place where the state changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

from mergepoint.core.errors import MergeError
from mergepoint.core.frozen_json import NOTHING


class MessageLike(Protocol):
    """A message, as far as merging uses it: its type, which is "ai" for an assistant's."""

    @property
    def type(self) -> str:
        """Return the message's type."""
        ...


M = TypeVar("M", bound=MessageLike)


@dataclass(frozen=True)
class State(Generic[M]):
    """Messages and outputs. A state and the addition to it have the same type.

    `+` is associative and `State()` is its neutral element, so nothing is ever copied deeply or
    compared to find the differences. If both sides have an output, the right one wins.
    """

    messages: tuple[M, ...] = ()
    outputs: Mapping[str, Any] = NOTHING

    @classmethod
    def of(cls, messages: Iterable[M] = (), outputs: Mapping[str, Any] | None = None) -> State[M]:
        """Return a state of these messages and outputs, sealed against later writes."""
        return cls(tuple(messages), MappingProxyType(dict(outputs)) if outputs else NOTHING)

    def __add__(self, made: State[M]) -> State[M]:
        if not self.outputs:
            outputs = made.outputs
        elif not made.outputs:
            outputs = self.outputs
        else:
            both = _copy(self.outputs)
            both.update(made.outputs)
            outputs = MappingProxyType(both)
        if not self.messages:
            return State(made.messages, outputs)
        if not made.messages:
            return State(self.messages, outputs)
        return State(self.messages + made.messages, outputs)


def _copy(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy. A mapping proxy copies its dict at once; `dict(proxy)` would go key by key."""
    return outputs.copy() if isinstance(outputs, MappingProxyType) else dict(outputs)


# Merge modes in git's words: a node works on a branch, its copy of the base state.
# `all_messages` is a fast-forward, `last_response` a squash, and `none` drops the branch. Modes
# govern messages only; outputs that were captured survive every mode.


MergeMode = Literal["all_messages", "last_response", "none"]
MERGE_MODES: tuple[str, ...] = get_args(MergeMode)

NO_RESPONSE = "last_response requested but no assistant output exists"


def mode_problem(mode: object, kind: str) -> str | None:
    """Return what is wrong with the merge mode of a kind of node, or None."""
    if mode in MERGE_MODES:
        return None
    allowed = ", ".join(map(repr, MERGE_MODES))
    return f"Invalid {kind} merge mode: merge={mode!r}; allowed are {allowed}"


def last_response(messages: Sequence[M]) -> M | None:
    """Return the last assistant message, or None."""
    for message in reversed(messages):
        # By `type` and not by class: sessions merge messages of their own class. A chunk of a
        # stream has another type, so answers become messages before they are merged.
        if message.type == "ai":
            return message
    return None


def keep(mode: MergeMode, made: State[M]) -> State[M]:
    """Return the part of a node's result that its merge mode passes on to the parent.

    Raises:
        MergeError: The mode is `last_response`, and there is no assistant message.
    """
    if mode == "all_messages":
        return made
    if mode == "none":
        return State((), made.outputs)
    response = last_response(made.messages)
    if response is None:
        raise MergeError(NO_RESPONSE)
    # Not `(response,)`: the replay of a page stores messages in another kind of sequence.
    alone = made.messages[:0] + (response,)  # noqa: RUF005
    return State(alone, made.outputs)


def merge(parent: State[M], mode: MergeMode, made: State[M]) -> State[M]:
    """Return the parent after a node's exit: `parent + keep(mode, made)`."""
    kept = keep(mode, made)
    return parent + kept if parent.messages or parent.outputs else kept
