"""Ids of sessions: they come from clients and name folders, so only safe ones are taken."""

from __future__ import annotations

import re
import uuid

from mergepoint.core.errors import SessionError

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def new_session_id() -> str:
    """Give an id that nobody has: a random UUID (RFC 9562, version 4)."""
    return str(uuid.uuid4())


def checked_session_id(given: object) -> str:
    """Give a session's id: a UUID, or another word of letters, digits, `-` and `_`.

    Raises SessionError for anything else. No such id leaves its folder, hides in it, or holds the
    `.` that comes before the number of a turn in the ids of runs.
    """
    if isinstance(given, str) and _SAFE.fullmatch(given):
        return given
    shown = ascii(given) if len(str(given)) <= 100 else f"one of {len(str(given)):,} characters"
    raise SessionError(
        f"no id for a session: {shown}. Give a UUID, or 1 to 100 letters from a to z, digits, '-' "
        "and '_', the first of them a letter or digit"
    )
