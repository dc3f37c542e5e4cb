"""Outcome: what came out of a Call, as a value for outputs and as messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import BaseModel

from mergepoint.core.errors import StepError
from mergepoint.core.merge import last_response
from mergepoint.tree.template import as_text


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result as JSON data, and the messages that were made of it."""

    value: Any
    messages: tuple[BaseMessage, ...]

    @property
    def text(self) -> str:
        """Give the text of the last response, else of the value."""
        response = last_response(self.messages)
        if response is not None:
            return str(response.text)
        return "" if self.value is None else as_text(self.value)


def outcome_of(result: Any, base: Sequence[BaseMessage], *, speaks: bool) -> Outcome:
    """Give what a result comes to; `speaks` says that it is to make messages.

    Raises StepError for a result that is no plain data, for one without text where a message is
    asked for, and for messages that are not new ones.
    """
    messages, rest = _messages_in(result)
    if messages is None:
        value = _plain(rest)
        if not speaks:
            return Outcome(value, ())
        text = "" if value is None else as_text(value)
        if not text.strip():
            raise StepError("the call's result is blank, and its merge asks for a message")
        return Outcome(value, (AIMessage(content=text),))
    new = _new(messages, base)
    response = last_response(new)
    said = None if response is None else str(response.text)
    value = _plain(rest) if rest else said
    return Outcome(value, tuple(new) if speaks else ())


def _messages_in(result: Any) -> tuple[list[BaseMessage] | None, Any]:
    """Give the messages of a result, None where it has none; and what else it holds."""
    if isinstance(result, BaseMessage):
        return [result], None
    if isinstance(result, list) and result and all(isinstance(m, BaseMessage) for m in result):
        return result, None
    if isinstance(result, Mapping) and isinstance(result.get("messages"), list):
        rest = {key: value for key, value in result.items() if key != "messages"}
        found = result["messages"]
        if all(isinstance(message, BaseMessage) for message in found):
            return found, {key: value for key, value in rest.items() if value not in (None, {}, [])}
    return None, result


def _new(messages: list[BaseMessage], base: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Give the messages without a leading copy of the base."""
    leading = messages[: len(base)]
    copied = bool(base) and [_said(one) for one in leading] == [_said(one) for one in base]
    new = messages[len(base) :] if copied else messages
    known = {message.id for message in base if message.id}
    if any(message.id in known for message in new):
        raise StepError(
            "the call gave back messages of the conversation it was given, changed or in another "
            "order; return new messages only, or the whole conversation with new ones at its end"
        )
    return new


def _said(message: BaseMessage) -> tuple[str, Any]:
    return message.type, message.content


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_dumped))
    except (TypeError, ValueError) as error:
        raise StepError(
            f"a Call's result is plain data, as JSON holds it, or messages; {error}. Return text, "
            "numbers, lists and mappings of them"
        ) from error


def _dumped(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"it holds a {type(value).__name__}")
