"""FileJournal: a run's records in a file that outlives the process. Its format: docs/journal.md."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Self

from mergepoint.record.header import FORMAT, RunHeader
from mergepoint.record.hold import hold, release
from mergepoint.record.journal import Roots
from mergepoint.record.lines import JournalError, starts_line
from mergepoint.record.plain import record_to_plain
from mergepoint.record.read_journal import load, parsed, read_journal
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact, encode_safe
from mergepoint.record.store import Sync, checked_sync
from mergepoint.record.whole import flush_folder

__all__ = ["FileJournal", "JournalError", "RunHeader", "begun", "read_journal"]


_START = f'{{"format":"{FORMAT}'.encode()


class FileJournal:
    """A journal in a file that one process holds at a time; use `create` or `open`.

    What `append` returned from outlives a kill of the process. Against a loss of power the file
    is flushed at its creation, at failed calls, at gates and when it is closed (`sync="edges"`), or
    after every record (`sync="record"`). Safe to write from several threads. Secrets are masked in
    what is written, and `redact` is a hook that may change its texts (see
    `mergepoint.record.redact`).
    """

    keyed = True

    def __init__(
        self,
        path: Path,
        file: FileIO,
        header: RunHeader,
        records: Iterable[CallRecord],
        sync: Sync,
        redact: Redact | None,
        *,
        end: int = 0,
    ) -> None:
        self.path = path
        self.header = header
        self._file = file
        self._records = list(records)
        self._sync = sync
        self._redact = redact
        self._owner = os.getpid()
        self._end = end  # where the next line begins; asking the file would let others run first
        self._torn = False  # a write began there and has not ended well
        self._lock = threading.Lock()
        self._roots = Roots()

    @classmethod
    def create(
        cls,
        path: Path,
        header: RunHeader,
        *,
        sync: Sync = "edges",
        redact: Redact | None = None,
    ) -> Self:
        """Begin the journal of a new run, in a folder that is made if it is missing.

        Of a file that a kill left without a whole header it makes a new one: nothing is recorded
        there. Raises JournalError if a run began in it, or JSON does not hold what the header does.
        """
        plain = header.to_plain()
        line = _encoded(plain, redact, path, "the header of the run")
        parsed(path, 1, RunHeader.from_plain, plain)  # what was begun can be resumed
        made = [folder for folder in path.parents if not folder.exists()]
        with _told(path, "create"):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _claimed(path, sync)
            try:
                os.ftruncate(file.fileno(), 0)
                journal = cls(path, file, header, (), sync, redact)
                journal._write(line, flush=True)
                for folder in {path.parent, *(one.parent for one in made)}:
                    flush_folder(folder)
            except BaseException:
                file.close()
                path.unlink(missing_ok=True)
                raise
        return journal

    @classmethod
    def open(cls, path: Path, *, sync: Sync = "edges", redact: Redact | None = None) -> Self:
        """Go on with a journal. What a kill left of an unfinished write is cut off.

        Raises JournalError if the run is being written, or the file was changed since.
        """
        with _told(path, "open"):
            file = _opened(path, sync)
            try:
                hold(file, path)
                header, records, lines = load(path)
                if lines.torn:
                    os.ftruncate(file.fileno(), lines.good)
                    os.fsync(file.fileno())
            except BaseException:
                file.close()
                raise
        return cls(path, file, header, records, sync, redact, end=lines.good)

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Give all records in the order in which they were written."""
        with self._lock:
            return tuple(self._records)

    def append(self, record: CallRecord) -> None:
        """Write one record: whole, or not at all.

        Raises JournalError when it is not written, as on a full disk; what was written before
        stays, and later appends work once there is room.
        """
        if record.key.run != self.header.run_id:
            raise JournalError(
                f"{self.path} is the journal of run {self.header.run_id!r}, the record of "
                f"{record.key.full_path} is of run {record.key.run!r}; give each run its own"
            )
        what = f"the record of {record.key.full_path}"
        line = _encoded(record_to_plain(record), self._redact, self.path, what)
        with self._lock:
            self._write(line, flush=self._sync == "record" or record.at_edge)
            self._records.append(record)

    def running(self, path: str) -> AbstractContextManager[None]:
        """Hold a root's full path while it runs. Raises StepError when it is running."""
        return self._roots.running(path)

    def close(self) -> None:
        """Flush the file and let go of it; a second time does nothing."""
        with self._lock, _told(self.path, "flush"):
            if self._file.closed:
                return
            try:
                if self._owner == os.getpid():
                    self._mend()
                    os.fsync(self._file.fileno())
                    release(self._file)
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: bytes, *, flush: bool) -> None:
        if self._file.closed or self._owner != os.getpid():
            state = "is closed" if self._file.closed else "belongs to the process that opened it"
            raise JournalError(f"{self.path} {state}; go on with it by FileJournal.open")
        file = self._file.fileno()
        try:
            self._mend()
            self._torn = True
            written = os.write(file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes went in")
            if flush:
                os.fsync(file)
        except OSError as error:
            with suppress(OSError):  # tried again before the next record, and by `open`
                self._mend()
            raise JournalError(
                f"cannot write to {self.path}: {error.strerror}; what it held before is kept, the "
                "new line is not. Make room or mend the disk, then resume the run"
            ) from error
        self._end += written
        self._torn = False

    def _mend(self) -> None:
        """Cut off what a write left behind that did not end well."""
        if self._torn:
            os.ftruncate(self._file.fileno(), self._end)
            self._torn = False


def begun(path: Path) -> bool:
    """Say whether there is more in a file than what a kill leaves of a journal's first write."""
    try:
        with path.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return False
    return line.endswith(b"\n") or not starts_line(line, _START)


def _encoded(plain: dict[str, Any], redact: Redact | None, path: Path, what: str) -> bytes:
    try:
        return encode_safe(plain, redact)
    except JournalError as error:
        raise JournalError(f"{path}: {what} cannot be written: {error}") from error


def _opened(path: Path, sync: Sync, flags: int = 0) -> FileIO:
    checked_sync(sync)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | flags, 0o666)
    return os.fdopen(file, "ab", buffering=0)  # a file object is closed with its last reference


def _claimed(path: Path, sync: Sync) -> FileIO:
    """Give the locked file of a new run. Raises FileExistsError where one began."""
    try:
        file, new = _opened(path, sync, os.O_CREAT | os.O_EXCL), True
    except FileExistsError:
        if begun(path):
            raise
        file, new = _opened(path, sync), False
    try:
        hold(file, path)
        if not new and begun(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    except BaseException as error:
        file.close()
        if new and not isinstance(error.__cause__, BlockingIOError):  # then another claimed it
            path.unlink(missing_ok=True)
        raise
    return file


@contextmanager
def _told(path: Path, act: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        way_out = ""
        if isinstance(error, FileExistsError) and path.exists():
            way_out = "; FileJournal.open goes on with it, or give another path"
        raise JournalError(f"cannot {act} {path}: {error}{way_out}") from error
