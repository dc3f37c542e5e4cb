"""The fingerprint of a call's request, by which its recorded answer is found."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from json.encoder import encode_basestring_ascii
from operator import is_
from typing import Any, Protocol

from langchain_core.messages import BaseMessage

# Consecutive steps send the whole conversation each time. To hash all of it again would make each
# step more expensive than the one before, so the digest continues from the last conversation.


class Hash(Protocol):
    """The methods of a hash that a digest uses, as those of hashlib have them."""

    def update(self, data: bytes, /) -> None:
        """Add data."""
        ...

    def copy(self) -> Hash:
        """Return a copy that continues from here."""
        ...

    def hexdigest(self) -> str:
        """Return the digest as text."""
        ...

    def digest(self) -> bytes:
        """Return the digest."""
        ...


class IncrementalDigest:
    """The last conversation that was hashed, with the hash at each place where one ended.

    Messages are compared by identity: the same object at the same place counts as known. If two
    conversations diverge, as at the exit of a block, the next one continues from the last end in
    their common part.
    """

    def __init__(self, start: Hash) -> None:
        self._messages: list[Any] = []
        self._ends: list[tuple[int, Hash]] = [(0, start)]

    def follow(self, messages: Sequence[Any], digest: Callable[[Any], bytes]) -> Hash:
        """Return a hash that has taken in the start and the digest of every message, in order."""
        shared = min(len(self._messages), len(messages))
        # map() ends with the shorter list, so a longer conversation with the same start continues.
        if not all(map(is_, self._messages, messages)):
            shared = [*map(is_, self._messages, messages)].index(False)
        while self._ends[-1][0] > shared:
            self._ends.pop()
        known, found = self._ends[-1]
        whole = found.copy()
        new = messages[known:]
        if new:
            for message in new:
                whole.update(digest(message))
            self._ends.append((len(messages), whole.copy()))
        self._messages[known:] = new
        return whole


# Request: a digest of everything that decides a call, so that answers are found by what was
# asked.
#
# Never by position and never by time: a step that is asked something else is asked anew. Ids and
# metadata of messages are no part of it, so a renamed step asks the same.


# Saved journals contain these digests: with another hash or encoding no recorded answer is found.
_hash = partial(hashlib.blake2b, digest_size=16)
_TRAILS = 16  # beginnings of requests whose conversations are remembered


class Digests:
    """Digests of messages, each computed once, and of requests, each from its first new message.

    A message is known by its identity, and referenced so that no other object can take that
    identity. With `seen`, a message counts in the form that this function returns.
    """

    def __init__(self, seen: Callable[[Any], Any] | None = None) -> None:
        self._seen = seen
        self._known: dict[int, tuple[BaseMessage, bytes]] = {}
        self._trails: OrderedDict[bytes, IncrementalDigest] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, message: BaseMessage) -> bytes:
        """Return the digest of a message's type, name, content and tool calls."""
        known = self._known.get(id(message))
        if known is None:
            digest = _digest_of(message, self._seen)
            known = self._known[id(message)] = (message, digest)
        return known[1]

    def request(self, setting: bytes, messages: Sequence[BaseMessage], *, lead: int = 0) -> str:
        """Return the digest of a call: its setting and every message in order.

        `lead` is the number of messages at the front that are created for each call. It changes no
        digest; a conversation is recognized from the message after them.
        """
        start = b"".join((setting, *map(self.of, messages[:lead])))
        behind = messages[lead:]
        with self._lock:
            trail = self._trails.get(start)
            if trail is None:
                trail = self._trails[start] = IncrementalDigest(_hash(start))
                if len(self._trails) > _TRAILS:
                    self._trails.popitem(last=False)
            self._trails.move_to_end(start)
            whole = trail.follow(behind[:-1], self.of)
        for prompt in behind[-1:]:
            whole.update(self.of(prompt))
        return whole.hexdigest()

    def once(self, setting: bytes, messages: Sequence[BaseMessage]) -> str:
        """Return the same as `request`, for messages that may change later: nothing is cached."""
        whole = _hash(setting)
        for message in messages:
            whole.update(_digest_of(message, self._seen))
        return whole.hexdigest()

    def state(self, messages: Iterable[BaseMessage], outputs: Mapping[str, Any]) -> str:
        """Return the digest of a state: the output at a gate, or the input of a Call."""
        whole = _hash(_digest(dict(outputs)))
        for message in messages:
            whole.update(self.of(message))
        return whole.hexdigest()


def call_digest(name: str, version: str, given: Any) -> str:
    """Return the digest of a Call: its target and its input."""
    return _digest(["call", name, version, given]).hex()


def field_digests(fields: Mapping[str, Any]) -> str:
    """Return a digest per field, as `name:digest` words, so that a difference can be named."""
    return " ".join(f"{name}:{_digest(value).hex()[:16]}" for name, value in fields.items())


def differing_fields(before: str, now: str) -> list[str]:
    """Return the names of the fields whose digests differ, in the order of `now`."""
    known = dict(word.split(":", 1) for word in before.split() if ":" in word)
    found = dict(word.split(":", 1) for word in now.split() if ":" in word)
    return [name for name in {**found, **known} if found.get(name) != known.get(name)]


def setting_digest(
    model: str, params: Mapping[str, Any], view: str, schema: Mapping[str, Any] | None
) -> bytes:
    """Return the digest of the settings that all calls of a step share.

    A parameter that is not JSON counts by the name of its type, never by its repr, which would
    contain addresses that change from run to run.
    """
    settings = _ENCODER.encode([model, dict(params), view, schema])
    return _hash(settings.encode()).digest()


def _digest_of(message: BaseMessage, seen: Callable[[Any], Any] | None) -> bytes:
    fields = vars(message)  # a missing attribute of a pydantic model is found out slowly
    kind, name, content = message.type, message.name, message.content
    calls, answered = fields.get("tool_calls") or None, fields.get("tool_call_id")
    if seen is None and type(content) is str and name is calls is answered is None:
        # What `_digest` returns for a message that is text alone, at a fraction of its cost.
        text = f'["{kind}", null, {encode_basestring_ascii(content)}, null, null]'
        return _hash(text.encode()).digest()
    said = [kind, name, content, calls, answered]
    return _digest(said if seen is None else seen(said))


def _digest(value: Any) -> bytes:
    return _hash(_ENCODER.encode(value).encode()).digest()


def _by_type(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


_ENCODER = json.JSONEncoder(sort_keys=True, default=_by_type)
