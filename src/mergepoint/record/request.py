"""Request: a digest of everything that decides a call, so that answers are found by what was asked.

Never by position and never by time: a step that is asked something else is asked anew. Ids and
metadata of messages are no part of it, so a renamed step asks the same.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint.record.trail import Hash, Trail

_SIZE = 16
_TRAILS = 16  # beginnings of requests whose conversations are remembered


class Digests:
    """Digests of messages, each worked out once, and of requests, each from where it is new.

    A message is known by its identity as an object, and held so that the identity stays its own.
    With `seen` what a message says counts in the form that this function gives it.
    """

    def __init__(self, seen: Callable[[Any], Any] | None = None) -> None:
        self._seen = seen
        self._known: dict[int, tuple[BaseMessage, bytes]] = {}
        self._trails: OrderedDict[bytes, Trail] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, message: BaseMessage) -> bytes:
        """Give the digest of a message's type, name, content and tool calls."""
        known = self._known.get(id(message))
        if known is None:
            said = _said(message)
            if self._seen is None:
                digest = _digest_of_text(said) or _digest(said)
            else:
                digest = _digest(self._seen(said))
            known = self._known[id(message)] = (message, digest)
        return known[1]

    def request(self, setting: bytes, messages: Sequence[BaseMessage], *, lead: int = 0) -> str:
        """Give the digest of a call: its setting and every message it is given, in order.

        `lead` counts the messages at the front that are made anew for each call. It changes no
        digest: what comes behind them is where a conversation is known again.
        """
        start = b"".join((setting, *map(self.of, messages[:lead])))
        behind = messages[lead:]
        with self._lock:
            whole = self._trail(start).follow(behind[:-1], self.of)
        for prompt in behind[-1:]:
            whole.update(self.of(prompt))
        return whole.hexdigest()

    def once(self, setting: bytes, messages: Sequence[BaseMessage]) -> str:
        """Give what `request` gives, for messages that others may change: none of it is kept."""
        return Digests(self._seen).request(setting, messages)

    def state(self, messages: Iterable[BaseMessage], outputs: Mapping[str, Any]) -> str:
        """Give the digest of a state: what a gate holds back, or what a Call may look at."""
        whole = _hash(_digest(dict(outputs)))
        for message in messages:
            whole.update(self.of(message))
        return whole.hexdigest()

    def _trail(self, start: bytes) -> Trail:
        trail = self._trails.get(start)
        if trail is None:
            trail = self._trails[start] = Trail(_hash(start))
            if len(self._trails) > _TRAILS:
                self._trails.popitem(last=False)
        self._trails.move_to_end(start)
        return trail


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
    fields = vars(message)  # a missing attribute of a pydantic model is found out slowly
    return [
        message.type,
        message.name,
        message.content,
        fields.get("tool_calls") or None,
        fields.get("tool_call_id"),
    ]


def _digest_of_text(said: list[Any]) -> bytes | None:
    """Give what `_digest` gives of a message that is text alone, at a fraction of its cost."""
    kind, name, content, calls, answered = said
    if type(content) is not str or not (name is calls is answered is None):
        return None
    return _hash(
        f'["{kind}", null, {encode_basestring_ascii(content)}, null, null]'.encode()
    ).digest()


def _digest(value: Any) -> bytes:
    return _hash(_ENCODER.encode(value).encode()).digest()


def _hash(start: bytes) -> Hash:
    return hashlib.blake2b(start, digest_size=_SIZE)


def _by_type(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


_ENCODER = json.JSONEncoder(sort_keys=True, default=_by_type)
