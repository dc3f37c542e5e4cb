"""The store of sessions at a place: in files, or in a database; and repairing a session."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from mergepoint.core.errors import SessionError
from mergepoint.journal.checked_lines import JournalError, decode, file_errors, file_lock
from mergepoint.journal.file_journal import JOURNAL, FileStore
from mergepoint.journal.line_logs import FileLog, LogLine, Mark
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import Sync
from mergepoint.session.entries import (
    Entry,
    SessionHeader,
    SessionMessage,
    checked_session_id,
)
from mergepoint.session.history import SessionState
from mergepoint.session.session_log import (
    REPAIR,
    LockedLog,
    SessionLog,
    Sidecar,
    as_session_errors,
    check_sidecar_name,
    entry_at,
    header_at,
)
from mergepoint.session.session_memory import SessionMemory, Sessions, Snapshot

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


@dataclass(frozen=True, slots=True)
class Flaw:
    """One problem: where, and what. With `loses`, a repair omits the line."""

    where: str
    what: str
    loses: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Examined:
    """The valid entries of a session's log, and all problems.

    `ends` contains the offset after each valid entry, in order.
    """

    header: SessionHeader | None
    entries: tuple[Entry, ...]
    ends: tuple[int, ...]
    flaws: tuple[Flaw, ...]

    def past(self, header: SessionHeader, *, most: int | None = None) -> SessionState:
        """Return the state after the valid entries, or after the first `most` of them."""
        past = SessionState(header)
        past.take(self.entries[:most])
        return past


def check_session(session_id: str, *, sessions: Path | str | Sessions = "sessions") -> list[Flaw]:
    """Return all problems of a session: of its lines, and of the snapshot.

    Raises SessionError for a newer format, and if the session does not exist.
    """
    log = sessions_at(sessions).log(session_id)
    with log.locked(flush=True) as locked:
        found = examined(log.place, session_id, locked.lines())
        return [*found.flaws, *_flaws_of_snapshot(locked, found)]


def examined(place: str, session_id: str, lines: Sequence[LogLine]) -> Examined:
    """Check every line, including those after a damaged one.

    Raises SessionError for a header of a newer format or of another session.
    """
    flaws: list[Flaw] = []
    header = _header(place, session_id, lines[0] if lines else LogLine("line 1", None), flaws)
    entries: dict[str, Entry] = {}
    ends: list[int] = []
    end = len(lines[0].data or b"") if lines else 0
    for line in lines[1:]:
        end += len(line.data or b"")
        entry = _entry(place, line, flaws)
        # The first counts: a later line with its id is a copy, which others have never read.
        if entry is not None and entry.id in entries:
            flaws.append(Flaw(line.where, f"a second entry with the id {entry.id!r}", loses=True))
        elif entry is not None:
            entries[entry.id] = entry
            ends.append(end)
    return Examined(header, tuple(entries.values()), tuple(ends), tuple(flaws))


def _header(place: str, session_id: str, line: LogLine, flaws: list[Flaw]) -> SessionHeader | None:
    try:
        plain = decode(line.data or b"")
    except (ValueError, RecursionError) as error:
        flaws.append(Flaw(line.where, f"the header, {error}; a repair writes a new one"))
        return None
    return header_at(place, session_id, plain)


def _entry(place: str, line: LogLine, flaws: list[Flaw]) -> Entry | None:
    if line.data is None:
        flaws.append(Flaw(line.where, "it is missing", loses=True))
    elif not line.data.endswith(b"\n"):
        rest = f"{len(line.data)} bytes of an unfinished write; the next write cuts them off"
        flaws.append(Flaw(line.where, rest))
    else:
        try:
            return entry_at(place, line.where, decode(line.data))
        except (ValueError, RecursionError) as error:
            what = f"{error}; it was changed after it was written"
            flaws.append(Flaw(line.where, what, loses=True))
        except JournalError as error:
            what = str(error).removeprefix(f"{place}, {line.where} ")
            flaws.append(Flaw(line.where, what, loses=True))
    return None


def _flaws_of_snapshot(locked: LockedLog, found: Examined) -> Iterator[Flaw]:
    """Compare the snapshot with the journal, if the journal is valid."""
    there = locked.snapshot()
    if there is None or found.header is None or any(flaw.loses for flaw in found.flaws):
        return
    position, text = there
    fix = "a repair writes it again"
    number = sum(end <= position for end in found.ends)
    mark = Mark(position, 1 + number, b"")
    # As its writer computed it: from the entries up to the position in its first line.
    expected = Snapshot().recent(found.past(found.header, most=number), mark)
    if text != expected:
        yield Flaw("the snapshot", f"it differs from the journal; {fix}")
    elif any(
        isinstance(entry, SessionMessage) and entry.role == "assistant"
        for entry in found.entries[number:]
    ):
        yield Flaw("the snapshot", f"an answer that came after it is not in it; {fix}")


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair: entries that were kept, problems, and the copy of the old log.

    `copy` is empty if nothing was omitted.
    """

    kept: int
    flaws: tuple[Flaw, ...]
    copy: str = ""


def repair_session(session_id: str, *, sessions: Path | str | Sessions = "sessions") -> Repaired:
    """Rewrite a session without its unreadable lines, and write its snapshot.

    Each line has its own checksum, so those after a damaged one are kept. Programs that have the
    session open must open it again. An unreadable header is replaced by a new one. If nothing is
    damaged, only the snapshot is written.

    Raises SessionError for a session of a newer format, and if writing fails.
    """
    log = sessions_at(sessions).log(session_id)
    with log.locked(flush=True) as locked:
        found = examined(log.place, session_id, locked.lines())
        # The time of a lost header is that of the first entry.
        began = min((entry.created_at for entry in found.entries), default=datetime.now(UTC))
        header = found.header or SessionHeader(session_id=session_id, created_at=began)
        if found.header is None or any(flaw.loses for flaw in found.flaws):
            # Counted in the header: programs that have the session open compare its bytes, and
            # notice that their position no longer counts.
            header = replace(header, repaired=header.repaired + 1)
            copy, mark = locked.replace(header, found.entries)
        else:
            copy, mark = "", locked.end()
        past = found.past(header)
        locked.write_snapshot(lambda: Snapshot().recent(past, mark))
    return Repaired(len(found.entries), found.flaws, copy)
