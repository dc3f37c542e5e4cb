"""Journals in files: one folder per run, one line per record."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from mergepoint.journal.call_records import CallRecord, record_from_plain
from mergepoint.journal.checked_lines import (
    FileLines,
    JournalError,
    JournalFileError,
    LockableFile,
    append_lines,
    check_format,
    file_errors,
    first_line,
    flush_folder,
    is_locked,
    lock_file,
    open_lockable,
    open_regular,
    parse_line,
    read_lines,
    starts_line,
    unlock_file,
)
from mergepoint.journal.group_commit import (
    GroupedJournal,
    GroupWriter,
    LineWrite,
    by_journal,
    encode_at,
)
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.journal.redact import Redact
from mergepoint.journal.segment_store import SegmentStore, holds_segments
from mergepoint.journal.stores import (
    FORMAT,
    RunHeader,
    Store,
    Sync,
    checked_run_id,
    checked_sync,
    known_run,
    unknown_run,
    without_starts,
)


def read_journal(path: Path) -> tuple[RunHeader, tuple[CallRecord, ...]]:
    """Read a journal, also while it is being written; the file is neither locked nor changed.

    Returns:
        The header of the run, and its records in the order in which they were written.

    Raises:
        JournalError: The file is not a journal, has a newer format, or was changed.
    """
    header, records, _ = load(path)
    return header, without_starts(records, lambda: is_locked(path))


def load(path: Path) -> tuple[RunHeader, tuple[CallRecord, ...], FileLines]:
    """Return header, records and lines of a journal, including the starts of calls.

    Raises JournalError as `read_journal` does.
    """
    lines = read_lines(path, until_fault=True)
    # Before the fault is raised: a newer format may have lines that look damaged here.
    if lines.values:
        check_format(path, lines.values[0].get("format"), FORMAT)
    if lines.fault is not None:
        raise lines.fault
    if not lines.values:
        raise JournalError(
            f"{path} does not hold a whole header. If it is a journal, its run was stopped before "
            "the first call and nothing was recorded: remove the file and start a new run"
        )
    header = parse_line(path, "line 1", FORMAT, RunHeader.from_plain, lines.values[0])
    records = tuple(
        parse_line(path, f"line {number}", FORMAT, record_from_plain, data, header.run_id)
        for number, data in enumerate(lines.values[1:], 2)
    )
    return header, records, lines


_START = f'{{"format":"{FORMAT}'.encode()


class FileJournal(GroupedJournal):
    """A journal in a file that one process writes at a time; use `create` or `open`.

    After `append` returns, the record survives a crash of the process. To survive a power failure,
    the file is flushed as `Sync` says. It is safe to write from several threads. Secrets are masked
    in the file; `redact` is a hook that may change its texts (see `mergepoint.journal.redact`).
    """

    def __init__(
        self,
        path: Path,
        file: LockableFile,
        header: RunHeader,
        records: Iterable[CallRecord],
        sync: Sync,
        redact: Redact | None,
        *,
        end: int = 0,
        writer: GroupWriter | None = None,
    ) -> None:
        self.path = path
        self._file = file
        self._sync = sync
        self._end = end  # offset of the next line; asking the file would release the GIL
        self._torn = False  # a write at `_end` has started and not succeeded
        self._lock = threading.Lock()
        writer = writer or GroupWriter(commit_to_files)
        super().__init__(writer, header, records, place=str(path), redact=redact)

    @classmethod
    def create(
        cls,
        path: Path,
        header: RunHeader,
        *,
        sync: Sync = "edges",
        redact: Redact | None = None,
        writer: GroupWriter | None = None,
    ) -> Self:
        """Create the journal of a new run, and its folder if it is missing.

        A file that a crash left without a complete header is overwritten, since nothing is recorded
        there. `writer` is that of the journal's store.

        Raises:
            JournalError: The file already contains a run, or the header has values that are not
                JSON.
        """
        plain = header.to_plain()
        line = encode_at(path, "the header of the run", plain, redact)
        parse_line(path, "line 1", FORMAT, RunHeader.from_plain, plain)
        made = [folder for folder in path.parents if not folder.exists()]
        with file_errors("create", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _claimed(path, sync)
            try:
                os.ftruncate(file.fileno(), 0)
                journal = cls(path, file, header, (), sync, redact, writer=writer)
                journal.write(line, flush=sync != "off")
                # A new file survives a power failure only if the folders that name it are flushed
                # as well.
                for folder in {path.parent, *(one.parent for one in made)} if sync != "off" else ():
                    flush_folder(folder)
            except BaseException:
                file.close()
                path.unlink(missing_ok=True)
                raise
        return journal

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        sync: Sync = "edges",
        redact: Redact | None = None,
        writer: GroupWriter | None = None,
    ) -> Self:
        """Open a journal to append to it, and cut off an unfinished write.

        `writer` is that of the journal's store.

        Raises:
            JournalError: Another process writes the run, or the file was changed.
        """
        with file_errors("open", path):
            file = _opened(path, sync)
            try:
                # Locked before it is read: another writer could append in between.
                lock_file(file, path)
                header, records, lines = load(path)
                if lines.torn:
                    os.ftruncate(file.fileno(), lines.good)
                    os.fsync(file.fileno())
            except BaseException:
                file.close()
                raise
        found = outcomes(records)
        return cls(path, file, header, found, sync, redact, end=lines.good, writer=writer)

    def write_group(self, group: Sequence[LineWrite]) -> None:
        """Write the lines of a group, all or none. Raises JournalError."""
        every = self._sync == "record"
        edge = self._sync == "edges" and any(write.record.at_edge for write in group)
        self.write(b"".join(write.line for write in group), flush=every or edge)

    def release(self) -> None:
        """Flush the file and unlock it; a second call does nothing."""
        # A forked child has a copy of the file: it must not flush or unlock the parent's journal,
        # nor wait for a lock that a thread of the parent held.
        if not self.is_own:
            self._file.close()
            return
        with self._lock, file_errors("flush", self.path):
            if self._file.closed:
                return
            try:
                self._mend()
                if self._sync != "off":
                    os.fsync(self._file.fileno())
                unlock_file(self._file)
            finally:
                self._file.close()

    def write(self, lines: bytes, *, flush: bool) -> None:
        """Write lines at the end of the file, all or none. Raises JournalError."""
        if self._file.closed or not self.is_own:
            state = "is closed" if self.is_own else "belongs to the process that opened it"
            raise JournalError(f"{self.path} {state}; to continue, open it with FileJournal.open")
        with self._lock:
            self._write(lines, flush=flush)

    def _write(self, lines: bytes, *, flush: bool) -> None:
        if self._torn:
            with file_errors("write to", self.path):
                self._mend()
        # Set before the write: an exception that a signal handler raises leaves it set too.
        self._torn = True
        file = self._file.fileno()
        self._end = append_lines(file, self.path, lines, end=self._end, flush=flush)
        self._torn = False

    def _mend(self) -> None:
        """Cut off the rest of a write that failed."""
        if self._torn:
            os.ftruncate(self._file.fileno(), self._end)
            self._torn = False


def has_begun(path: Path) -> bool:
    """Return whether a file contains more than a crash during the first write could leave.

    Raises JournalError if the file cannot be read.
    """
    with file_errors("read", path):
        try:
            with open(path, "rb", opener=open_regular) as file:
                line = file.readline()
        except FileNotFoundError:
            return False
    return line.endswith(b"\n") or not starts_line(line, _START)


def commit_to_files(group: Sequence[LineWrite]) -> None:
    """Commit a group of records of any number of journals in files: one write for each file."""
    for journal, writes in by_journal(group).items():
        try:
            journal.write_group(writes)
        except Exception as error:  # noqa: BLE001  (only this file's writes have failed)
            for write in writes:
                write.error = error


def _opened(path: Path, sync: Sync, flags: int = 0) -> LockableFile:
    checked_sync(sync)
    return open_lockable(path, os.O_WRONLY | os.O_APPEND | flags)


def _claimed(path: Path, sync: Sync) -> LockableFile:
    """Return the locked file of a new run. Raises JournalError if a run began in it."""
    try:
        file, new = _opened(path, sync, os.O_CREAT | os.O_EXCL), True
    except FileExistsError:
        if has_begun(path):
            raise _taken(path) from None
        file, new = _opened(path, sync), False
    try:
        lock_file(file, path)
        # Checked again under the lock: another process may have written its header in between.
        if not new and has_begun(path):
            raise _taken(path)
    except BaseException as error:
        file.close()
        if new and not isinstance(
            error.__cause__, BlockingIOError
        ):  # otherwise another process has claimed it
            path.unlink(missing_ok=True)
        raise
    return file


def _taken(path: Path) -> JournalError:
    cause = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    return JournalFileError(
        f"cannot create {path}: {cause.strerror}; open it with FileJournal.open, or use "
        "another path",
        cause,
        path,
    )


JOURNAL = "journal.jsonl"


class FileStore:
    """A store that keeps each run in `<folder>/<run id>/journal.jsonl`; see FileJournal."""

    def __init__(
        self, folder: Path | str, *, sync: Sync = "edges", redact: Redact | None = None
    ) -> None:
        self.folder = Path(folder)
        self.sync = checked_sync(sync)
        self.redact = redact
        self._writer = GroupWriter(commit_to_files)

    def create(self, header: RunHeader) -> FileJournal:
        """Create the journal of a new run, and its folder if it is missing.

        Raises JournalError if the id is taken or is not a valid folder name, or if writing fails.
        """
        if self.has(header.run_id):
            raise known_run(self, header.run_id)
        path = self._path(header.run_id)
        return FileJournal.create(path, header, **self._options())

    def open(self, run_id: str) -> FileJournal:
        """Open a run to append to it. Raises JournalError if it is missing, locked, or changed."""
        return FileJournal.open(self._found(run_id), **self._options())

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of a run; its file is neither locked nor changed.

        Raises JournalError if the run does not exist, or its file was changed.
        """
        return read_journal(self._found(run_id))

    def has(self, run_id: str) -> bool:
        """Return whether a run with this id has begun; a crash in its first write leaves none."""
        return has_begun(self._path(run_id))

    def held(self, run_id: str) -> bool:
        """Return whether a process writes a run now; False if the run does not exist."""
        return is_locked(self._path(run_id))

    def runs(self) -> Sequence[str]:
        """Return the ids of all runs, the latest first.

        Runs whose header cannot be read come last; reading them raises the error.
        """
        ids = [path.parent.name for path in self.folder.glob(f"*/{JOURNAL}") if path.is_file()]
        return sorted(ids, key=lambda run_id: (self._began(run_id), run_id), reverse=True)

    def folder_of(self, run_id: str) -> Path:
        """Return the folder of a run. Raises JournalError for an invalid id."""
        return self.folder / checked_run_id(run_id)

    def __str__(self) -> str:
        return str(self.folder)

    def _options(self) -> dict[str, Any]:
        return {"sync": self.sync, "redact": self.redact, "writer": self._writer}

    def _path(self, run_id: str) -> Path:
        return self.folder_of(run_id) / JOURNAL

    def _found(self, run_id: str) -> Path:
        path = self._path(run_id)
        with file_errors("read", path):
            try:
                path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                raise unknown_run(self, run_id, self.runs()) from None
        return path

    def _began(self, run_id: str) -> float:
        try:
            plain = first_line(self.folder / run_id / JOURNAL)
            return RunHeader.from_plain(plain).created_at.timestamp()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return float("-inf")


def store_at(place: Path | str | Store, *, redact: Redact | None = None) -> Store:
    """Return the store at a place: a folder, or a database if the text contains `://`.

    The store of a folder with segments is a SegmentStore; any other folder has one of runs.
    A store is returned unchanged. Raises the errors of SqlStore.
    """
    if isinstance(place, str) and "://" in place:
        from mergepoint.journal.sql_journal import SqlStore  # SQLAlchemy need not be installed

        return SqlStore(place, redact=redact)
    if isinstance(place, str | Path):
        if holds_segments(Path(place)):
            return SegmentStore(place, redact=redact)
        return FileStore(place, redact=redact)
    return place
