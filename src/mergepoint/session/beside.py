"""Beside: what an application keeps next to a session, and that is no part of the conversation.

A user interface has rows of its own: who began a conversation, what it is called, what was thought
of an answer. They are kept where the session is, and go with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from mergepoint.core.errors import SessionError

FORMAT: Final = "mergepoint.beside/1"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

Row = Mapping[str, Any]


class Beside(Protocol):
    """Rows of JSON data that are appended and never changed. Each method raises SessionError."""

    def rows(self) -> Sequence[dict[str, Any]]:
        """Give all rows in the order in which they were appended; none where none were."""
        ...

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows, all of them or none; what was added outlives a kill and a loss of power.

        Raises SessionError for a session that is not there (any more).
        """
        ...


def checked_name(name: str) -> str:
    """Give the name of an application. Raises SessionError for one that names no file."""
    if _NAME.fullmatch(name) and name != "journal":
        return name
    raise SessionError(
        f"{name!r} names no application; give 1 to 40 of a to z, digits and '_', but not 'journal'"
    )


def checked_format(place: str, found: object) -> None:
    """Raise SessionError for rows of a newer version, and for what are none."""
    if found != FORMAT:
        raise SessionError(
            f"{place} is of format {found!r}, this version reads {FORMAT}: update mergepoint"
        )
