"""Request: a digest of everything that decides a call, so that answers are found by what was asked.

Never by position and never by time: a step that is asked something else is asked anew. Ids and
metadata of messages are no part of it, so a renamed step asks the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from langchain_core.messages import BaseMessage

_SIZE = 16


class Digests:
    """Digests of messages, each worked out once.

    A message is known by its identity as an object, and held so that the identity stays its own.
    With `seen` what a message says counts in the form that this function gives it.
    """

    def __init__(self, seen: Callable[[Any], Any] | None = None) -> None:
        self._seen = seen
        self._known: dict[int, tuple[BaseMessage, bytes]] = {}

    def of(self, message: BaseMessage) -> bytes:
        """Give the digest of a message's type, name, content and tool calls."""
        known = self._known.get(id(message))
        if known is None:
            said = _said(message)
            said = said if self._seen is None else self._seen(said)
            known = self._known[id(message)] = (message, _digest(said))
        return known[1]

    def request(self, setting: bytes, messages: Iterable[BaseMessage]) -> str:
        """Give the digest of a call: its setting and every message it is given, in order."""
        whole = hashlib.blake2b(setting, digest_size=_SIZE)
        known = self._known
        for message in messages:
            found = known.get(id(message))
            whole.update(found[1] if found is not None else self.of(message))
        return whole.hexdigest()

    def once(self, setting: bytes, messages: Iterable[BaseMessage]) -> str:
        """Give what `request` gives, for messages that others may change: none of it is kept."""
        return Digests(self._seen).request(setting, messages)

    def state(self, messages: Iterable[BaseMessage], outputs: Mapping[str, Any]) -> str:
        """Give the digest of a state: what a gate holds back, or what a Call may look at."""
        return self.request(_digest(dict(outputs)), messages)


def call_digest(name: str, version: str, given: Any) -> str:
    """Give the digest of a Call: what is called, and what it is given."""
    return _digest(["call", name, version, given]).hex()


def setting_digest(
    model: str, params: Mapping[str, Any], view: str, schema: Mapping[str, Any] | None
) -> bytes:
    """Give the digest of what is the same in every call of a step.

    Parameters that JSON does not hold count by the name of their type, never by a repr: that
    would hold addresses, which change from run to run.
    """
    return _digest([model, dict(params), view, schema])


def _said(message: BaseMessage) -> list[Any]:
    return [
        message.type,
        message.name,
        message.content,
        getattr(message, "tool_calls", None) or None,
        getattr(message, "tool_call_id", None),
    ]


def _digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=_by_type)
    return hashlib.blake2b(text.encode(), digest_size=_SIZE).digest()


def _by_type(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
