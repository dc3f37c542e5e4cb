"""Stores of sessions, in files and in databases, and the repair of a damaged session."""

from __future__ import annotations

import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from mergepoint.core.errors import SessionError
from mergepoint.core.paths import nearest
from mergepoint.journal.checked_lines import JournalError, decode, file_errors, file_lock
from mergepoint.journal.file_journal import JOURNAL, FileStore
from mergepoint.journal.line_logs import FileLog, LogLine, Mark
from mergepoint.journal.redact import Redact
from mergepoint.journal.sql_database import (
    Database,
    LineTables,
    TableLog,
    lock_run,
    sql,
    write_transaction,
)
from mergepoint.journal.sql_journal import RUN_TABLES, SqlStore
from mergepoint.journal.stores import Sync, checked_sync
from mergepoint.session.entries import (
    Entry,
    SessionHeader,
    SessionMessage,
    checked_session_id,
    new_session_id,
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
from mergepoint.session.session_memory import SessionMemory, Snapshot

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


_METADATA = sql.MetaData()
SESSION_TABLES = LineTables(
    _METADATA,
    first="mergepoint_sessions",
    rest="mergepoint_session_entries",
    key="session_id",
)
# A sidecar is a log of its own: its key is `<session id>/<name>`, or `/<name>` for all sessions.
SIDECAR_TABLES = LineTables(
    _METADATA,
    first="mergepoint_session_sidecars",
    rest="mergepoint_session_rows",
    key="sidecar",
)


class SqlSessions(Sessions):
    """A store of sessions and their runs in a database, by its URL or an SQLAlchemy engine.

    The tables are created with the first session. See Sessions for `sync` and `redact`. Raises
    SessionError or MergepointError for the address of another kind of database.
    """

    def __init__(
        self,
        address: str | sql.URL | sql.Engine,
        *,
        sync: Sync = "edges",
        redact: Redact | None = None,
    ) -> None:
        super().__init__(sync=sync, redact=redact)
        with as_session_errors():
            self._database = Database(address, tables=_METADATA)
            self._runs = SqlStore(address, sync=sync, redact=redact)

    def delete(self, session_id: str) -> None:
        """Delete a session with the journals of its runs; this cannot be undone."""
        log, database = self.log(session_id), self._database
        if not log.exists():
            raise self._unknown(session_id)
        # Escaped, because ids may contain `_`, which matches any character in LIKE.
        sidecars = SIDECAR_TABLES.first.c.sidecar.startswith(f"{session_id}/", autoescape=True)
        with (
            log.turn(),
            as_session_errors(),
            database.connected() as connection,
            database.errors("delete from"),
            write_transaction(database, connection, flush=True) as commit,
        ):
            # The tables of runs are created with the first run, which this database may not have.
            if sql.inspect(connection).has_table(RUN_TABLES.first.name):
                RUN_TABLES.delete(connection, _runs_of(connection, session_id))
            found = connection.execute(SIDECAR_TABLES.keys(sidecars)).scalars().all()
            SIDECAR_TABLES.delete(connection, found)
            SESSION_TABLES.delete(connection, [session_id])
            commit()

    def log(self, session_id: str) -> SessionLog:
        """Return the log of a session. Raises SessionError for an invalid id."""
        lines = TableLog(
            self._database,
            SESSION_TABLES,
            checked_session_id(session_id),
            place=f"session {session_id!r}",
            remedy=REPAIR,
            flush=self.sync == "record",
        )
        return SessionLog(
            session_id,
            lines,
            redact=self.redact,
            runs=self._runs,
            lock_turn=lambda: self._lock_turn(session_id),
        )

    def beside(self, name: str, session_id: str | None = None) -> Sidecar:
        """Return the rows of an application, in the table `mergepoint_session_rows`."""
        name = check_sidecar_name(name)
        owner = None if session_id is None else (SESSION_TABLES, checked_session_id(session_id))
        lines = TableLog(
            self._database,
            SIDECAR_TABLES,
            f"{session_id or ''}/{name}",
            place=f"the rows of {name!r} for session {session_id!r}",
            remedy="restore it from a backup",
            owner=owner,
        )
        return Sidecar(lines)

    def __str__(self) -> str:
        return self._database.name

    def _ids(self) -> list[str]:
        with as_session_errors():
            if not self._database.exists():
                return []
            with self._database.connected() as connection, self._database.errors("read"):
                return list(connection.execute(SESSION_TABLES.keys()).scalars())

    @contextmanager
    def _lock_turn(self, session_id: str) -> Iterator[None]:
        # No run has this name: in the id of a turn's run, a number follows the session's id.
        lock = lock_run(self._database, f"{session_id}.turn", what="turn of a session")
        try:
            yield
        finally:
            lock.close(self._database)


def _runs_of(connection: sql.Connection, session_id: str) -> list[str]:
    run_id = RUN_TABLES.first.c.run_id
    query = RUN_TABLES.keys(run_id.startswith(f"{session_id}.", autoescape=True))
    # LIKE also finds the runs of a session whose id is this one, a dot and more.
    of_turns = re.compile(rf"{re.escape(session_id)}\.\d+(\..*)?")
    return [run for run in connection.execute(query).scalars() if of_turns.fullmatch(run)]


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
