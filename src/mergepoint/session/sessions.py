"""Sessions: where sessions are kept, each under its id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from mergepoint.core.errors import SessionError
from mergepoint.core.path import nearest
from mergepoint.record.redact import Redact
from mergepoint.session.beside import Beside
from mergepoint.session.entry import Entry, SessionHeader
from mergepoint.session.log import SessionLog
from mergepoint.session.memory import SessionMemory
from mergepoint.session.message import SessionMessage

LOOK = 8
"""Entries at the beginning among which a session's title is looked for."""
_TITLE = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBrief:
    """A session in a list. `title` is how it began; `problem` says why it cannot be read."""

    session_id: str
    created_at: datetime | None = None
    updated_at: datetime | None = None
    title: str = ""
    problem: str = ""


class Sessions(Protocol):
    """Keeps sessions. Each method raises SessionError, with the way out, when it cannot."""

    @property
    def redact(self) -> Redact | None:
        """Give the hook that changes texts as they come in."""
        ...

    def create(self, session_id: str | None = None) -> SessionMemory:
        """Begin a session. Raises SessionError for an id that was used before, or is none."""
        ...

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Go on with a session; with `create` begin it where there is none.

        Raises SessionError for one that cannot be read: it is never taken for an empty one.
        """
        ...

    def has(self, session_id: str) -> bool:
        """Say whether there is a session, also one that cannot be read.

        Raises SessionError for an id that is none.
        """
        ...

    def begin(self, header: SessionHeader, entries: Iterable[Entry]) -> SessionMemory:
        """Begin a session with what it holds already, all or nothing, as an import does."""
        ...

    def log(self, session_id: str) -> SessionLog:
        """Give the log of a session, there or not. Raises SessionError for an id that is none."""
        ...

    def beside(self, name: str, session_id: str | None = None) -> Beside:
        """Give the rows that an application keeps beside a session, or beside all of them."""
        ...

    def sessions(self) -> Sequence[SessionBrief]:
        """List the sessions, the one that was written last first."""
        ...

    def delete(self, session_id: str) -> None:
        """Take a session away with the journals of its runs; there is no way back.

        Raises SessionError while a turn of it is running.
        """
        ...


def brief_of(header: SessionHeader, first: Iterable[Entry], last: Entry | None) -> SessionBrief:
    """Give a session's line in a list, of its first entries and its last."""
    said = (one for one in first if isinstance(one, SessionMessage) and one.role == "user")
    words = " ".join(one.content.split()) if (one := next(said, None)) else ""
    return SessionBrief(
        session_id=header.session_id,
        created_at=header.created_at,
        updated_at=last.created_at if last else header.created_at,
        title=words if len(words) <= _TITLE else f"{words[: _TITLE - 1]}…",
    )


def newest_first(briefs: Iterable[SessionBrief]) -> list[SessionBrief]:
    """Give a list in its order: written last first, those that cannot be read at the end."""
    return sorted(
        briefs,
        key=lambda one: (one.updated_at.timestamp() if one.updated_at else -1.0, one.session_id),
        reverse=True,
    )


def unknown_session(place: object, session_id: str, known: Iterable[str]) -> SessionError:
    """Give the error for a session that is not there."""
    known = tuple(known)
    there = f"there are: {', '.join(known[:5])}" if known else "there are none yet"
    return SessionError(
        f"there is no session {session_id!r} in {place}{nearest(session_id, known)}; {there}"
    )


def known_session(place: object, session_id: str) -> SessionError:
    """Give the error for a new session whose id was used before."""
    return SessionError(
        f"there is a session {session_id!r} in {place} already; open it to go on with it, or give "
        "the new one another id"
    )
