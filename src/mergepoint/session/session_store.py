"""The protocol of a store of sessions, each under its id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from mergepoint.core.errors import SessionError
from mergepoint.core.paths import nearest
from mergepoint.journal.redact import Redact
from mergepoint.session.entries import Entry, SessionHeader, SessionMessage
from mergepoint.session.session_log import SessionLog, Sidecar
from mergepoint.session.session_memory import SessionMemory

LOOK = 8
"""The number of first entries that are searched for a session's title."""
_TITLE = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBrief:
    """A session in a list. `title` is its first message; `problem` says why it is unreadable."""

    session_id: str
    created_at: datetime | None = None
    updated_at: datetime | None = None
    title: str = ""
    problem: str = ""


class Sessions(Protocol):
    """A store of sessions. Each method raises SessionError, with the fix, if it fails."""

    @property
    def redact(self) -> Redact | None:
        """Return the hook that changes texts on arrival."""
        ...

    def create(self, session_id: str | None = None) -> SessionMemory:
        """Create a session. Raises SessionError for an id that is taken or invalid."""
        ...

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Open a session; with `create`, create it if it does not exist.

        Raises SessionError for an unreadable session, which is never taken for an empty one.
        """
        ...

    def has(self, session_id: str) -> bool:
        """Return whether a session exists, even if it is unreadable.

        Raises SessionError for an invalid id.
        """
        ...

    def begin(self, header: SessionHeader, entries: Iterable[Entry]) -> SessionMemory:
        """Create a session with entries, all or none, as an import does."""
        ...

    def log(self, session_id: str) -> SessionLog:
        """Return the log of a session, even a missing one. Raises SessionError for a bad id."""
        ...

    def beside(self, name: str, session_id: str | None = None) -> Sidecar:
        """Return the rows of an application for one session, or for all of them."""
        ...

    def sessions(self) -> Sequence[SessionBrief]:
        """List the sessions, the last written first."""
        ...

    def delete(self, session_id: str) -> None:
        """Delete a session with the journals of its runs; this cannot be undone.

        Raises SessionError while a turn of it is running.
        """
        ...


def brief_of(header: SessionHeader, first: Iterable[Entry], last: Entry | None) -> SessionBrief:
    """Return a session's line in a list, from its first entries and its last."""
    said = (one for one in first if isinstance(one, SessionMessage) and one.role == "user")
    words = " ".join(one.content.split()) if (one := next(said, None)) else ""
    return SessionBrief(
        session_id=header.session_id,
        created_at=header.created_at,
        updated_at=last.created_at if last else header.created_at,
        title=words if len(words) <= _TITLE else f"{words[: _TITLE - 1]}…",
    )


def newest_first(briefs: Iterable[SessionBrief]) -> list[SessionBrief]:
    """Return a list in its order: the last written first, unreadable ones at the end."""
    return sorted(
        briefs,
        key=lambda one: (one.updated_at.timestamp() if one.updated_at else -1.0, one.session_id),
        reverse=True,
    )


def unknown_session(place: object, session_id: str, known: Iterable[str]) -> SessionError:
    """Return the error for a session that does not exist."""
    known = tuple(known)
    there = f"there are: {', '.join(known[:5])}" if known else "there are none yet"
    return SessionError(
        f"there is no session {session_id!r} in {place}{nearest(session_id, known)}; {there}"
    )


def known_session(place: object, session_id: str) -> SessionError:
    """Return the error for a new session whose id is taken."""
    return SessionError(
        f"there is a session {session_id!r} in {place} already; open it to go on with it, or give "
        "the new one another id"
    )
