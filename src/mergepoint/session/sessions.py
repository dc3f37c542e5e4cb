"""Sessions: the base of their stores, for what files and databases have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mergepoint.core.errors import SessionError
from mergepoint.core.paths import nearest
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import Sync, checked_sync
from mergepoint.session.entries import (
    Entry,
    SessionHeader,
    SessionMessage,
    checked_session_id,
    new_session_id,
)
from mergepoint.session.session_log import SessionLog, Sidecar
from mergepoint.session.session_memory import SessionMemory

_TITLE_ENTRIES = 8  # the first entries, in which the title of a session is searched
_TITLE_LENGTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBrief:
    """A session in a list. `title` is its first message; `problem` says why it is unreadable."""

    session_id: str
    created_at: datetime | None = None
    updated_at: datetime | None = None
    title: str = ""
    problem: str = ""


class Sessions(ABC):
    """A store of sessions, each under its id. Its methods raise SessionError, with the fix.

    Args:
        sync: When writes are flushed. With "edges", each message is flushed; with "record", working
            steps are too. PostgreSQL flushes as its server is configured.
        redact: A hook that changes texts on arrival.
    """

    def __init__(self, *, sync: Sync = "edges", redact: Redact | None = None) -> None:
        self.sync = checked_sync(sync)
        self.redact = redact

    def create(self, session_id: str | None = None) -> SessionMemory:
        """Create a session, and its place if it is missing.

        Raises SessionError for an id that is taken or invalid.
        """
        session_id = checked_session_id(new_session_id() if session_id is None else session_id)
        return self.begin(SessionHeader(session_id=session_id, created_at=datetime.now(UTC)))

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Open a session; with `create`, create it if it does not exist.

        Raises SessionError for an unreadable session, which is never taken for an empty one.
        """
        if not self.has(session_id):
            if not create:
                raise self._unknown(session_id)
            try:
                return self.create(session_id)
            except SessionError:  # unless another process has created it concurrently
                if not self.has(session_id):
                    raise
        return SessionMemory(self.log(session_id))

    def has(self, session_id: str) -> bool:
        """Return whether a session exists, even if it is unreadable.

        Raises SessionError for an invalid id.
        """
        return self.log(session_id).exists()

    def begin(self, header: SessionHeader, entries: Iterable[Entry] = ()) -> SessionMemory:
        """Create a session with entries, all or none, as an import does."""
        log = self.log(header.session_id)
        if not log.create(header, entries):
            raise SessionError(
                f"there is a session {header.session_id!r} in {self} already; open it, or "
                "use another id for the new one"
            )
        return SessionMemory(log)

    def sessions(self) -> Sequence[SessionBrief]:
        """List the sessions, the last written first and unreadable ones at the end."""
        return sorted(
            map(self._brief, self._ids()),
            key=lambda one: (
                one.updated_at.timestamp() if one.updated_at else -1.0,
                one.session_id,
            ),
            reverse=True,
        )

    @abstractmethod
    def log(self, session_id: str) -> SessionLog:
        """Return the log of a session, even a missing one. Raises SessionError for a bad id."""

    @abstractmethod
    def beside(self, name: str, session_id: str | None = None) -> Sidecar:
        """Return the rows of an application for one session, or for all of them."""

    @abstractmethod
    def delete(self, session_id: str) -> None:
        """Delete a session with the journals of its runs; this cannot be undone.

        Raises SessionError while a turn of it is running.
        """

    @abstractmethod
    def _ids(self) -> Iterable[str]:
        """Return the ids of all sessions."""

    def _unknown(self, session_id: str) -> SessionError:
        known = tuple(self._ids())
        there = f"sessions: {', '.join(known[:5])}" if known else "there are none yet"
        return SessionError(
            f"there is no session {session_id!r} in {self}{nearest(session_id, known)}; {there}"
        )

    def _brief(self, session_id: str) -> SessionBrief:
        try:
            log = self.log(session_id)
            header, mark = log.begin()
            first, _ = log.since(mark, most=_TITLE_ENTRIES)
            # Without entries, the last line of a file is the header, which is no entry.
            last = log.last() if first else None
        except SessionError as error:
            return SessionBrief(session_id=session_id, problem=str(error))
        return SessionBrief(
            session_id=header.session_id,
            created_at=header.created_at,
            updated_at=last.created_at if last else header.created_at,
            title=_title(first),
        )


def _title(entries: Iterable[Entry]) -> str:
    """Return the first message of a user, on one line and shortened."""
    for entry in entries:
        if isinstance(entry, SessionMessage) and entry.role == "user":
            text = " ".join(entry.content.split())
            return text if len(text) <= _TITLE_LENGTH else f"{text[: _TITLE_LENGTH - 1]}…"
    return ""
