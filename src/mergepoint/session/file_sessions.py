"""FileSessions: a folder with a folder for each session."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from mergepoint.core.errors import SessionError
from mergepoint.record.file_store import JOURNAL
from mergepoint.record.hold import holding
from mergepoint.record.lines import encode
from mergepoint.record.redact import Redact
from mergepoint.record.store import Sync, checked_sync
from mergepoint.record.whole import flush_folder, write_whole
from mergepoint.session.beside import checked_name
from mergepoint.session.entry import Entry, SessionHeader, entry_to_plain
from mergepoint.session.file_beside import FileBeside
from mergepoint.session.file_log import FileLog
from mergepoint.session.file_mending import SNAPSHOT, told
from mergepoint.session.log import PATIENCE, as_session_errors
from mergepoint.session.memory import SessionMemory
from mergepoint.session.session_id import checked_session_id, new_session_id
from mergepoint.session.sessions import (
    LOOK,
    SessionBrief,
    brief_of,
    known_session,
    newest_first,
    unknown_session,
)

_LOCK = ".create.lock"


class FileSessions:
    """Keeps each session in `<folder>/<session id>/`; see FileLog for what is there.

    With `sync="edges"` the file is flushed with each message, with "record" for steps too.
    """

    def __init__(
        self, folder: Path | str, *, sync: Sync = "edges", redact: Redact | None = None
    ) -> None:
        self.folder = Path(folder)
        self.sync = checked_sync(sync)
        self.redact = redact

    def create(self, session_id: str | None = None) -> SessionMemory:
        """Begin a session, in a folder that is made if it is missing."""
        session_id = checked_session_id(new_session_id() if session_id is None else session_id)
        return self.begin(SessionHeader(session_id=session_id, created_at=datetime.now(UTC)))

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Go on with a session; with `create` begin it where there is none."""
        log = self.log(session_id)
        if log.journal.exists():
            return SessionMemory(log)
        if (log.folder / SNAPSHOT).exists():
            raise SessionError(
                f"{log.journal} is missing, and {SNAPSHOT} is there: restore the journal, or read "
                "the snapshot in as another session with "
                "mergepoint.session.import_session.import_session"
            )
        if not create:
            raise unknown_session(self, session_id, (one.name for one in self._folders()))
        try:
            return self.create(session_id)
        except SessionError:
            if not log.journal.exists():
                raise
            return SessionMemory(log)  # another began it at the same moment

    def has(self, session_id: str) -> bool:
        """Say whether there is a session, also one that cannot be read."""
        log = self.log(session_id)
        return log.journal.exists() or (log.folder / SNAPSHOT).exists()

    def begin(self, header: SessionHeader, entries: Iterable[Entry] = ()) -> SessionMemory:
        """Begin a session with what it holds already: all of it is there, or nothing."""
        log = self.log(header.session_id)
        with as_session_errors():
            plain = [header.to_plain(), *map(entry_to_plain, entries)]
            data = b"".join(map(encode, plain))
        made = [folder for folder in log.journal.parents if not folder.exists()]
        with told(log.journal, "create"):
            log.folder.mkdir(parents=True, exist_ok=True)
            with (
                as_session_errors(),
                holding(log.folder / _LOCK, what="the session", patience=PATIENCE),
            ):
                if log.journal.exists():
                    raise known_session(self, header.session_id)
                write_whole(log.journal, data)
            for parent in {one.parent for one in made}:
                flush_folder(parent)
        return SessionMemory(log)

    def sessions(self) -> Sequence[SessionBrief]:
        """List the sessions, the one that was written last first."""
        return newest_first(self._brief(folder.name) for folder in self._folders())

    def delete(self, session_id: str) -> None:
        """Take a session away with the journals of its runs; there is no way back."""
        log = self.log(session_id)
        if not log.folder.exists():
            raise unknown_session(self, session_id, (one.name for one in self._folders()))
        gone = self.folder / f".deleted-{session_id}-{secrets.token_hex(4)}"
        with told(log.folder, "delete"), log.turn():
            log.folder.rename(gone)
        with told(gone, "delete"):
            shutil.rmtree(gone)

    def log(self, session_id: str) -> FileLog:
        """Give the log of a session. Raises SessionError for an id that is none."""
        folder = self.folder / checked_session_id(session_id)
        return FileLog(folder, sync=self.sync, redact=self.redact)

    def beside(self, name: str, session_id: str | None = None) -> FileBeside:
        """Give the rows of an application, in `<session>/<name>.jsonl` or `.<name>.jsonl`."""
        name = checked_name(name)
        if session_id is None:
            return FileBeside(self.folder / f".{name}.jsonl")
        home = self.folder / checked_session_id(session_id)
        return FileBeside(home / f"{name}.jsonl", home=home)

    def __str__(self) -> str:
        return str(self.folder)

    def _folders(self) -> Iterator[Path]:
        for journal in self.folder.glob(f"*/{JOURNAL}"):
            if not journal.parent.name.startswith("."):
                yield journal.parent

    def _brief(self, session_id: str) -> SessionBrief:
        try:
            log = self.log(session_id)
            header, mark = log.begin()
            first = log.first(mark, LOOK)
            return brief_of(header, first, log.last(mark))
        except SessionError as error:
            return SessionBrief(session_id=session_id, problem=str(error))
