"""Seen: a digest of what a function of a random tree is given, so that a wrong view shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint.testing.answers import line


class ToldToFail(Exception):
    """What a function of a random tree raises when it is told to."""


def digest(path: str, messages: Iterable[BaseMessage], outputs: Mapping[str, Any]) -> str:
    """Give eight hexadecimal digits of a path, of messages and of outputs."""
    told = json.dumps(
        [path, [line(message) for message in messages], dict(outputs)], sort_keys=True
    )
    return hashlib.blake2b(told.encode(), digest_size=4).hexdigest()


def spoil(messages: Iterable[BaseMessage], values: Iterable[Any]) -> None:
    """Try to change what was given."""
    for message in messages:
        message.content = "spoiled"
        message.id = "spoiled"
    for value in values:
        if isinstance(value, list):
            value.append("spoiled")
