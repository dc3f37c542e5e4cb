"""CallRecord: one call of a model or function, or one decision: what it was given, what it made."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint.core.path import join
from mergepoint.core.state import State
from mergepoint.core.swift import swift
from mergepoint.record.blank import ASSISTANT, USER
from mergepoint.tree.fold import Messages
from mergepoint.tree.step import Content

Source = Literal["live", "replayed"]
Kind = Literal["step", "call", "gate", "inner", "left_out"]


@swift
@dataclass(frozen=True, slots=True)
class CallKey:
    """Which call: the run, the host graph's prefix, and the path from the tree's root."""

    run: str
    host: str
    path: str

    @property
    def full_path(self) -> str:
        """Give the path with the host's prefix."""
        return join(self.host, self.path)


@swift
@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call of a model, answered or failed.

    It holds what is new: the prompt, the messages that belong to this call only (`lead`), the
    whole answer. The rest of what the call saw, `context` messages, follows from the merges
    before it (see `mergepoint.record.replay`). `request` is the digest of all that was asked,
    where the run keeps a journal on disk. Times are seconds since the epoch, `cost` is in USD,
    None where no price is known. `attempt` counts from 1 inside of one execution of a step.

    `kind` says what was called: a step's model, a Call (its result is `value`, its `messages` are
    those it made), a Gate, or a model inside of a Call, which has no place in the tree (`inner`).
    Of those, calls that ask the same in one execution are told apart by `sample`, from 0 on. A Gate
    has two records where nobody was there to answer: its question, with the `messages` and
    `outputs` that would be kept and no `value`; and its decision, the `value`. A call that was
    `left_out` was never made: a budget did not suffice, and a node around it went on without it
    (see `mergepoint.record.left_out`). `masked` names what was hidden when the record was written.
    """

    key: CallKey
    prompt: Content
    lead: tuple[BaseMessage, ...] = ()
    context: int = 0
    response: str = ""
    message: AIMessage | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    model: str = ""
    view: str = "as_is"
    started: float = 0.0
    ended: float = 0.0
    attempt: int = 1
    source: Source = "live"
    request: str = ""
    error: Mapping[str, Any] | None = None
    kind: Kind = "step"
    value: Any = None
    messages: tuple[BaseMessage, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    cost: float | None = None
    masked: tuple[str, ...] = ()
    sample: int = 0

    @property
    def path(self) -> str:
        """Give the path from the tree's root."""
        return self.key.path

    @property
    def answered(self) -> bool:
        """Say whether there is an answer that could be used, or a decision."""
        return self.error is None and not self.asks

    @property
    def asks(self) -> bool:
        """Say whether it is the question of a gate, and not the decision."""
        return self.kind == "gate" and self.value is None

    @property
    def failed(self) -> bool:
        """Say whether the call was made and failed."""
        return self.error is not None and self.kind != "left_out"

    @property
    def settled(self) -> bool:
        """Say whether it tells what came of a call: an answer, a decision, or that it was left out.

        A resume takes that from the record, and does not ask again.
        """
        return self.answered or self.kind == "left_out"

    @property
    def at_edge(self) -> bool:
        """Say whether it is flushed in any case: a failed call, what a gate asks, a decision."""
        return not self.answered or self.kind == "gate"

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """Give the provider's token counts, or None where it gave none."""
        found = self.message.usage_metadata if self.message is not None else None
        return dict(found) if found else None

    def made(self, capture_key: str | None = None) -> Messages:
        """Give what an answered call made: messages that are fresh, with ids of this path.

        A step made two messages, a Call its own and, under the key, its result.
        """
        if self.kind == "call":
            captured = {} if capture_key is None else {capture_key: self.value}
            return State.of(call_messages(self.key, self.messages), captured)
        return State(
            (prompt_message(self.key, self.prompt), response_message(self.key, self.response))
        )


def prompt_message(key: CallKey, prompt: Content) -> HumanMessage:
    """Give the user message of a call, with the id `<run>/<path>/0`."""
    message_id = f"{key.run}/{key.full_path}/0"
    if type(prompt) is str:
        return USER.filled(prompt, message_id)
    return HumanMessage(content=prompt, id=message_id)


def response_message(key: CallKey, response: str) -> AIMessage:
    """Give the assistant message of a call, with the id `<run>/<path>/1`."""
    return ASSISTANT.filled(response, response_id(key))


def call_messages(key: CallKey, messages: Iterable[BaseMessage]) -> tuple[BaseMessage, ...]:
    """Give the messages that a Call made, with the ids `<run>/<path>/0` and on."""
    return tuple(
        message.model_copy(update={"id": f"{key.run}/{key.full_path}/{number}"}, deep=True)
        for number, message in enumerate(messages)
    )


def response_id(key: CallKey) -> str:
    """Give the id of the message that a call's answer becomes."""
    return f"{key.run}/{key.full_path}/1"


def now() -> float:
    """Give the time in seconds since the epoch, in the microseconds that a transcript keeps."""
    return time.time_ns() // 1000 / 1_000_000


def error_of(error: BaseException) -> dict[str, str]:
    """Give an error's type and message as plain data."""
    return {"type": type(error).__name__, "message": str(error)}
