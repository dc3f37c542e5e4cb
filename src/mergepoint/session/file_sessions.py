"""Sessions in files, and the store of sessions at a place."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from mergepoint.core.errors import SessionError
from mergepoint.journal.checked_lines import file_errors
from mergepoint.journal.file_journal import JOURNAL, FileStore
from mergepoint.journal.file_locks import file_lock
from mergepoint.journal.line_logs import FileLog
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import Sync
from mergepoint.session.entries import checked_session_id
from mergepoint.session.session_log import (
    REPAIR,
    SessionLog,
    Sidecar,
    as_session_errors,
    check_sidecar_name,
)
from mergepoint.session.session_memory import SessionMemory
from mergepoint.session.session_store import Sessions

SNAPSHOT = "session.yaml"
RUNS = "runs"
_TURN = "turn.lock"


class FileSessions(Sessions):
    """A store that keeps each session in `<folder>/<session id>/`.

    A session has its log, `journal.jsonl`, its snapshot, `session.yaml`, the journals of its runs,
    and files of rows that applications append. See Sessions for `sync` and `redact`.
    """

    def __init__(
        self, folder: Path | str, *, sync: Sync = "edges", redact: Redact | None = None
    ) -> None:
        super().__init__(sync=sync, redact=redact)
        self.folder = Path(folder)

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Open a session; with `create`, create it if it does not exist."""
        folder = self._folder(session_id)
        # A lost journal is no reason to begin an empty session with the same id.
        if (folder / SNAPSHOT).exists() and not (folder / JOURNAL).exists():
            raise SessionError(
                f"{folder / JOURNAL} is missing, and {SNAPSHOT} is there: restore the journal, or "
                "import the snapshot as another session with mergepoint.session.import_session"
            )
        return super().open(session_id, create=create)

    def has(self, session_id: str) -> bool:
        """Return whether a session exists, even if it is unreadable."""
        # A snapshot without a journal is a damaged session, not a missing one.
        return super().has(session_id) or (self._folder(session_id) / SNAPSHOT).exists()

    def delete(self, session_id: str) -> None:
        """Delete a session with the journals of its runs; this cannot be undone."""
        folder = self._folder(session_id)
        if not folder.exists():
            raise self._unknown(session_id)
        deleted = self.folder / f".deleted-{session_id}-{secrets.token_hex(4)}"
        with as_session_errors():
            # Renamed first: a crash leaves a hidden folder, not half a session.
            with file_errors("delete", folder), self.log(session_id).turn():
                folder.rename(deleted)
            with file_errors("delete", deleted):
                shutil.rmtree(deleted)

    def log(self, session_id: str) -> SessionLog:
        """Return the log of a session. Raises SessionError for an invalid id."""
        folder = self._folder(session_id)
        return SessionLog(
            session_id,
            FileLog(
                folder / JOURNAL,
                what="the session",
                remedy=REPAIR,
                flush=self.sync == "record",
            ),
            redact=self.redact,
            runs=FileStore(folder / RUNS, sync=self.sync, redact=self.redact),
            lock_turn=partial(_lock_turn, folder / _TURN),
            snapshot=folder / SNAPSHOT,
        )

    def beside(self, name: str, session_id: str | None = None) -> Sidecar:
        """Return the rows of an application, in `<session>/<name>.jsonl` or `.<name>.jsonl`."""
        name = check_sidecar_name(name)
        owner = None if session_id is None else self._folder(session_id)
        path = self.folder / f".{name}.jsonl" if owner is None else owner / f"{name}.jsonl"
        # Rows may name people, so only the user who runs the application reads a new file.
        return Sidecar(
            FileLog(
                path,
                what="the file",
                remedy="restore it from a backup",
                owner=owner,
                permissions=0o600,
            )
        )

    def __str__(self) -> str:
        return str(self.folder)

    def _folder(self, session_id: str) -> Path:
        return self.folder / checked_session_id(session_id)

    def _ids(self) -> Iterator[str]:
        for journal in self.folder.glob(f"*/{JOURNAL}"):
            # `*` of pathlib matches hidden folders too, which an interrupted deletion leaves.
            if not journal.parent.name.startswith("."):
                yield journal.parent.name


@contextmanager
def _lock_turn(path: Path) -> Iterator[None]:
    with file_errors("lock", path), file_lock(path, what="a turn of this session"):
        yield


def sessions_at(place: Path | str | Sessions, *, redact: Redact | None = None) -> Sessions:
    """Return the store of sessions at a place: a folder, or a database if it contains `://`.

    A store is returned unchanged.
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
    """Open a session, creating it if it does not exist; without an id, create a new one.

    `sessions` is a folder, the URL of a database, or a store. Raises SessionError for an invalid
    id, and for a session that cannot be read.
    """
    place = sessions_at(sessions)
    return place.create() if session_id is None else place.open(session_id, create=True)
