"""State: a sequence that only grows and a map, with `+`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar


class MessageLike(Protocol):
    """What the law asks of a message: its type, "ai" for an assistant's."""

    @property
    def type(self) -> str:
        """Give the message's type."""
        ...


M = TypeVar("M", bound=MessageLike)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class State(Generic[M]):
    """Messages and outputs. A state and what is added to it have the same type.

    `+` is associative and `State()` is its neutral element, so nothing is ever copied deeply or
    compared to find out what changed. On the right wins where both hold an output.
    """

    messages: tuple[M, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    @classmethod
    def of(cls, messages: Iterable[M] = (), outputs: Mapping[str, Any] | None = None) -> State[M]:
        """Give a state of these messages and outputs, sealed against later writes."""
        return cls(tuple(messages), MappingProxyType(dict(outputs)) if outputs else _NOTHING)

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
    """Give a copy; of a sealed dict it is the dict's own, where `dict()` would ask key by key."""
    return outputs.copy() if isinstance(outputs, MappingProxyType) else dict(outputs)
