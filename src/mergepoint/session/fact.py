"""Fact: something to remember, and the turn that it came from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that is remembered beyond the conversation that is sent.

    `turn` is where it came from, `source` the id of the message, where there is one.
    """

    id: str
    content: str
    turn: int
    created_at: datetime
    source: str = ""
    changed: tuple[str, ...] = ()


def fact_id(session_id: str, content: str) -> str:
    """Give the id of a fact: the same for the same words, so that none is kept twice."""
    words = " ".join(content.casefold().split()).rstrip(".!")
    digest = hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
    return f"{session_id}/fact/{digest}"
