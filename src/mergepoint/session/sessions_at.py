"""sessions_at: what keeps sessions at a place; open_session: one of them."""

from __future__ import annotations

from pathlib import Path

from mergepoint.record.redact import Redact
from mergepoint.session.file_sessions import FileSessions
from mergepoint.session.memory import SessionMemory
from mergepoint.session.sessions import Sessions


def sessions_at(place: Path | str | Sessions, *, redact: Redact | None = None) -> Sessions:
    """Give what keeps sessions at a place: a folder, or a database where the text has `://` in it.

    What keeps sessions is given back as it is.
    """
    if isinstance(place, str) and "://" in place:
        from mergepoint.session.sql_sessions import SqlSessions  # SQLAlchemy need not be installed

        return SqlSessions(place, redact=redact)
    if isinstance(place, str | Path):
        return FileSessions(place, redact=redact)
    return place


def open_session(
    session_id: str | None = None, *, sessions: Path | str | Sessions = "sessions"
) -> SessionMemory:
    """Open a session, and begin it where there is none; without an id begin a new one.

    `sessions` is a folder, the URL of a database, or what keeps sessions. Raises SessionError for
    an id that is none, and for a session that cannot be read.
    """
    place = sessions_at(sessions)
    return place.create() if session_id is None else place.open(session_id, create=True)
