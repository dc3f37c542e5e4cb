"""Sessions in files."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any

from mergepoint.core.errors import SessionError
from mergepoint.journal.file_journal import JOURNAL, FileStore
from mergepoint.journal.file_locks import (
    LockableFile,
    Replaced,
    file_lock,
    lock_file,
    open_lockable,
    unlock_file,
)
from mergepoint.journal.journal_check import save_damaged_copy
from mergepoint.journal.lines import (
    JournalError,
    decode,
    encode,
    flush_folder,
    read_lines,
    write_whole,
)
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import Sync, checked_sync
from mergepoint.session.entries import (
    Entry,
    SessionHeader,
    checked_session_id,
    entry_to_plain,
    new_session_id,
)
from mergepoint.session.session_log import (
    PATIENCE,
    REPAIR,
    ROWS_FORMAT,
    Appended,
    LogLine,
    Mark,
    Row,
    as_session_errors,
    checked_format,
    checked_name,
    entry_at,
    header_at,
)
from mergepoint.session.session_memory import SessionMemory
from mergepoint.session.session_store import (
    LOOK,
    SessionBrief,
    Sessions,
    brief_of,
    known_session,
    newest_first,
    unknown_session,
)

SNAPSHOT = "session.yaml"
_OF_BYTES = re.compile(r"\d+")


class LockedFileLog:
    """A session's file, locked for checks and repair."""

    def __init__(self, folder: Path, file: FileIO) -> None:
        self._journal = folder / JOURNAL
        self._snapshot = folder / SNAPSHOT
        self._file = file
        with file_errors(self._journal, "read"):
            self._data = file.readall()
        parts = self._data.split(b"\n")
        whole = [part + b"\n" for part in parts[:-1]]
        self.lines = [
            LogLine(f"line {number}", line)
            for number, line in enumerate([*whole, parts[-1]] if parts[-1] else whole, 1)
        ]

    def rewrite(self, header: SessionHeader, entries: Sequence[Entry]) -> str:
        """Rewrite the file, keep a copy of the old one, and return the copy's path."""
        lines = [header.to_plain(), *map(entry_to_plain, entries)]
        with as_session_errors(), file_errors(self._journal, "repair"):
            copy = save_damaged_copy(self._journal, self._data)
            self._data = b"".join(map(encode, lines))
            write_whole(self._journal, self._data)
        self.lines = [LogLine("", line) for line in self._data.splitlines(keepends=True)]
        return str(copy)

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Write the snapshot of all lines, and cut off an unfinished line."""
        end = self._data.rfind(b"\n") + 1
        if end < len(self._data):
            os.ftruncate(self._file.fileno(), end)
        write_snapshot(self._journal.parent, snapshot(Mark(end, 0, b"")))

    def snapshot(self) -> tuple[int, str] | None:
        """Return the number of bytes that the snapshot covers, and its text."""
        try:
            text = (self._snapshot).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return 0, ""
        found = _OF_BYTES.search(text[: text.find("\n")])
        return int(found[0]) if found else 0, text


def write_snapshot(folder: Path, text: str) -> None:
    """Write a session's snapshot, replacing the last one."""
    try:
        write_whole(folder / SNAPSHOT, text.encode(), flush=False)
    except OSError as error:
        raise SessionError(
            f"cannot write {folder / SNAPSHOT}: {error.strerror}. Nothing is lost: the journal "
            "beside it holds everything; make room, and the next turn writes it"
        ) from error


@contextmanager
def file_errors(path: Path, act: str) -> Iterator[None]:
    """Raise errors of a file as SessionError."""
    try:
        yield
    except JournalError:  # may be an OSError too
        raise
    except OSError as error:
        raise SessionError(f"cannot {act} {path}: {error.strerror}") from error


# The file is opened and locked for each append and not in between. So any number of writers may
# share a session, a process may fork, and a repaired journal is noticed.


RUNS = "runs"
_TURN = "turn.lock"
_BLOCK = 8192


class FileLog:
    """The log of the session in a folder: `journal.jsonl`, with `session.yaml` as its snapshot."""

    def __init__(self, folder: Path, *, sync: Sync = "edges", redact: Redact | None = None) -> None:
        self.folder = folder
        self.redact = redact
        self.journal = folder / JOURNAL
        self._sync = sync

    @property
    def place(self) -> str:
        """Return the file's path."""
        return str(self.journal)

    def begin(self) -> tuple[SessionHeader, Mark]:
        """Return the header of the session. Raises SessionError for an invalid file."""
        with file_errors(self.journal, "read"), self.journal.open("rb") as file:
            first = file.readline()
        if not first.endswith(b"\n"):
            raise SessionError(
                f"{self.journal} does not hold a whole header, with which every session begins: it "
                f"was damaged, and is not taken for an empty one; {REPAIR}"
            )
        plain = self._decoded("line 1", first)
        return header_at(self.place, self.folder.name, plain), Mark(len(first), 1, first)

    def since(self, mark: Mark) -> Appended:
        """Return the complete lines that were appended since; an unfinished one does not count."""
        with file_errors(self.journal, "read"), self.journal.open("rb", buffering=0) as file:
            return self.read(file, mark)

    def first(self, mark: Mark, count: int) -> list[Entry]:
        """Return the first entries after a mark."""
        with file_errors(self.journal, "read"), self.journal.open("rb") as file:
            file.seek(mark.position)
            lines = [line for line in islice(file, count) if line.endswith(b"\n")]
        return self._entries(lines, mark)

    def last(self, mark: Mark) -> Entry | None:
        """Return the last entry after a mark, read from the end, or None."""
        with file_errors(self.journal, "read"), self.journal.open("rb") as file:
            end, block = file.seek(0, os.SEEK_END), _BLOCK
            while True:
                start = max(mark.position, end - block)
                file.seek(start)
                found = file.read(end - start)
                whole = found[: found.rfind(b"\n") + 1]
                before = whole.rfind(b"\n", 0, -1)
                if before >= 0 or start == mark.position:
                    break
                block *= 2
        line = whole[before + 1 :]
        return self._entry("its last line", line) if line else None

    @contextmanager
    def alone(self, mark: Mark, *, flush: bool) -> Iterator[_FileTurnstile]:
        """Lock the file for an append; others wait."""
        file = self._held()
        try:
            yield _FileTurnstile(self, file, mark, flush=flush or self._sync == "record")
        finally:
            unlock_file(file)
            file.close()

    @contextmanager
    def mending(self) -> Iterator[LockedFileLog]:
        """Lock the file to check and rewrite its lines."""
        file = self._held()
        try:
            yield LockedFileLog(self.folder, file)
        finally:
            unlock_file(file)
            file.close()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lock the session for a turn. Raises SessionError while another turn is running."""
        path = self.folder / _TURN
        with ExitStack() as stack:
            with as_session_errors(), file_errors(path, "lock"):
                stack.enter_context(file_lock(path, what="a turn of this session"))
            yield

    def runs(self) -> FileStore:
        """Return the folder of the runs of the session's turns."""
        return FileStore(self.folder / RUNS, sync=self._sync, redact=self.redact)

    def read(self, file: FileIO, mark: Mark) -> Appended:
        """Return the complete lines that were appended to the open file since."""
        file.seek(0)
        if file.read(len(mark.first)) != mark.first:
            raise SessionError(
                f"{self.journal} was replaced since it was opened, as by a repair; open the "
                "session again"
            )
        if os.fstat(file.fileno()).st_size < mark.position:
            raise SessionError(
                f"{self.journal} got shorter since it was opened: something else than mergepoint "
                "changed it; restore it, or open the session again to go on with what is left"
            )
        file.seek(mark.position)
        found = file.readall()
        found = found[: found.rfind(b"\n") + 1]
        lines = [line + b"\n" for line in found.split(b"\n")[:-1]]
        end = Mark(mark.position + len(found), mark.number + len(lines), mark.first)
        return Appended(tuple(self._entries(lines, mark)), end)

    def _held(self) -> LockableFile:
        while True:
            with file_errors(self.journal, "write to"):
                file = open_lockable(self.journal, os.O_RDWR | os.O_APPEND)
            try:
                with as_session_errors():
                    lock_file(file, self.journal, what="the session", patience=PATIENCE)
            except SessionError as error:
                file.close()
                if not isinstance(error.__cause__, Replaced) or not self.journal.exists():
                    raise
            except BaseException:
                file.close()
                raise
            else:
                return file

    def _entries(self, lines: Iterable[bytes], mark: Mark) -> list[Entry]:
        numbered = enumerate(lines, mark.number + 1)
        return [self._entry(f"line {number}", line) for number, line in numbered]

    def _entry(self, where: str, line: bytes) -> Entry:
        return entry_at(self.place, where, self._decoded(where, line))

    def _decoded(self, where: str, line: bytes) -> dict[str, object]:
        try:
            return decode(line)
        except (ValueError, RecursionError) as error:
            raise SessionError(
                f"{self.journal}, {where}: {error}; the file was changed after it was "
                f"written. {REPAIR}"
            ) from error


class _FileTurnstile:
    """The file while it is locked for an append."""

    def __init__(self, log: FileLog, file: FileIO, mark: Mark, *, flush: bool) -> None:
        self._log = log
        self._file = file.fileno()
        self._flush = flush
        with file_errors(log.journal, "read"):
            self.found = log.read(file, mark)
            self._mark = self.found.mark
            if os.fstat(self._file).st_size > self._mark.position:  # a crash left part of a line
                os.ftruncate(self._file, self._mark.position)

    def append(self, entries: Sequence[Entry]) -> Mark:
        """Write the entries, one line each, in one write; return the mark after them."""
        with as_session_errors():
            lines = b"".join(encode(entry_to_plain(entry)) for entry in entries)
        file, mark = self._file, self._mark
        try:
            written = os.write(file, lines)
            if written < len(lines):
                raise OSError(errno.ENOSPC, f"only {written} of {len(lines)} bytes went in")
            if self._flush:
                os.fsync(file)
        except OSError as error:
            with suppress(OSError):  # otherwise the next writer cuts it off
                os.ftruncate(file, mark.position)
            raise SessionError(
                f"cannot write to {self._log.place}: {error.strerror}; what it held before is "
                "kept, the new is not. Make room or mend the disk, then try again"
            ) from error
        self._mark = Mark(mark.position + len(lines), mark.number + len(entries), mark.first)
        return self._mark

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Replace the snapshot under the lock, so that no older one can overwrite it."""
        write_snapshot(self._log.folder, snapshot(self._mark))


_END = 4096


class FileSidecar:
    """The rows in a file. Its first line is the format; `home` is a folder that must exist.

    The file is opened and locked for an append and not in between, like a session's journal.
    """

    def __init__(self, path: Path, *, home: Path | None = None) -> None:
        self._path = path
        self._home = home

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows; an unfinished line after a crash does not count."""
        if not self._path.exists():
            return []
        with as_session_errors():
            first, *rest = read_lines(self._path).values or ({"format": ROWS_FORMAT},)
        checked_format(str(self._path), first.get("format"))
        return rest

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows in one write, and flush it."""
        with as_session_errors():
            lines = b"".join(encode(dict(row)) for row in rows)
        if not lines:
            return
        if self._home is not None and not self._home.exists():
            raise SessionError(f"there is no {self._home} any more; nothing is kept beside it")
        with file_errors(self._path, "write to"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            with open_lockable(self._path, flags, 0o600) as file:
                with as_session_errors():
                    lock_file(file, self._path, what="the file", patience=PATIENCE)
                try:
                    self._write(file, lines)
                finally:
                    unlock_file(file)

    def _write(self, file: FileIO, lines: bytes) -> None:
        end = _whole(file)
        os.ftruncate(file.fileno(), end)
        data = (encode({"format": ROWS_FORMAT}) if end == 0 else b"") + lines
        try:
            if os.write(file.fileno(), data) < len(data):
                raise OSError(28, "only a part of it went in")
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), end)
            raise


def _whole(file: FileIO) -> int:
    """Return the end of the last complete line; the rest, left by a crash, is cut off."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _END)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


_LOCK = ".create.lock"


class FileSessions:
    """A store that keeps each session in `<folder>/<session id>/`; see FileLog for its files.

    With `sync="edges"` the file is flushed with each message, with "record" for steps too.
    """

    def __init__(
        self, folder: Path | str, *, sync: Sync = "edges", redact: Redact | None = None
    ) -> None:
        self.folder = Path(folder)
        self.sync = checked_sync(sync)
        self.redact = redact

    def create(self, session_id: str | None = None) -> SessionMemory:
        """Create a session, and its folder if it is missing."""
        session_id = checked_session_id(new_session_id() if session_id is None else session_id)
        return self.begin(SessionHeader(session_id=session_id, created_at=datetime.now(UTC)))

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Open a session; with `create`, create it if it does not exist."""
        log = self.log(session_id)
        if log.journal.exists():
            return SessionMemory(log)
        if (log.folder / SNAPSHOT).exists():
            raise SessionError(
                f"{log.journal} is missing, and {SNAPSHOT} is there: restore the journal, or read "
                "the snapshot in as another session with "
                "mergepoint.session.yaml_import.import_session"
            )
        if not create:
            raise unknown_session(self, session_id, (one.name for one in self._folders()))
        try:
            return self.create(session_id)
        except SessionError:
            if not log.journal.exists():
                raise
            return SessionMemory(log)  # another process created it concurrently

    def has(self, session_id: str) -> bool:
        """Return whether a session exists, even if it is unreadable."""
        log = self.log(session_id)
        return log.journal.exists() or (log.folder / SNAPSHOT).exists()

    def begin(self, header: SessionHeader, entries: Iterable[Entry] = ()) -> SessionMemory:
        """Create a session with entries, completely or not at all."""
        log = self.log(header.session_id)
        with as_session_errors():
            plain = [header.to_plain(), *map(entry_to_plain, entries)]
            data = b"".join(map(encode, plain))
        made = [folder for folder in log.journal.parents if not folder.exists()]
        with file_errors(log.journal, "create"):
            log.folder.mkdir(parents=True, exist_ok=True)
            with (
                as_session_errors(),
                file_lock(log.folder / _LOCK, what="the session", patience=PATIENCE),
            ):
                if log.journal.exists():
                    raise known_session(self, header.session_id)
                write_whole(log.journal, data)
            for parent in {one.parent for one in made}:
                flush_folder(parent)
        return SessionMemory(log)

    def sessions(self) -> Sequence[SessionBrief]:
        """List the sessions, the last written first."""
        return newest_first(self._brief(folder.name) for folder in self._folders())

    def delete(self, session_id: str) -> None:
        """Delete a session with the journals of its runs; this cannot be undone."""
        log = self.log(session_id)
        if not log.folder.exists():
            raise unknown_session(self, session_id, (one.name for one in self._folders()))
        gone = self.folder / f".deleted-{session_id}-{secrets.token_hex(4)}"
        with file_errors(log.folder, "delete"), log.turn():
            log.folder.rename(gone)
        with file_errors(gone, "delete"):
            shutil.rmtree(gone)

    def log(self, session_id: str) -> FileLog:
        """Return the log of a session. Raises SessionError for an invalid id."""
        folder = self.folder / checked_session_id(session_id)
        return FileLog(folder, sync=self.sync, redact=self.redact)

    def beside(self, name: str, session_id: str | None = None) -> FileSidecar:
        """Return the rows of an application, in `<session>/<name>.jsonl` or `.<name>.jsonl`."""
        name = checked_name(name)
        if session_id is None:
            return FileSidecar(self.folder / f".{name}.jsonl")
        home = self.folder / checked_session_id(session_id)
        return FileSidecar(home / f"{name}.jsonl", home=home)

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
