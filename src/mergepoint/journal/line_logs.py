"""Logs of lines that many processes share: the protocol, logs in files, and following a log."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

from mergepoint.journal.checked_lines import (
    REPAIR_JOURNAL,
    JournalError,
    LockableFile,
    Replaced,
    append_lines,
    decode,
    file_errors,
    file_lock,
    flush_folder,
    is_locked,
    line_fault,
    lock_file,
    open_lockable,
    open_regular,
    save_damaged_copy,
    split_lines,
    unlock_file,
    write_whole,
)

PATIENCE = 30.0
"""Seconds that a writer waits for the others, each of which writes for milliseconds."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in a log: its bytes (in a file), its lines; `first` identifies the log."""

    position: int = 0
    number: int = 0
    first: bytes = b""


START = Mark()


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log: its place, and its bytes, or None if it is missing."""

    where: str
    data: bytes | None


class LockedLines(Protocol):
    """A log that one writer has locked."""

    def since(self, mark: Mark) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark, and cut off an unfinished one."""
        ...

    def append(self, mark: Mark, lines: Sequence[bytes]) -> Mark:
        """Append lines at the end of the log, all or none, and return the new end."""
        ...

    def whole(self) -> list[LogLine]:
        """Return all lines, also missing ones; the last may be unfinished."""
        ...

    def replace(self, lines: Sequence[bytes]) -> tuple[str, Mark]:
        """Replace all lines atomically. Return the place of a copy of the old ones, and the end."""
        ...


class ReadableLog(Protocol):
    """A log of lines that can be read. Its methods raise JournalError."""

    @property
    def place(self) -> str:
        """Return the place of the log, for errors."""
        ...

    @property
    def remedy(self) -> str:
        """Return what to do about a damaged line, for errors."""
        ...

    def where(self, number: int) -> str:
        """Return the place of a line in the log, for errors; the first is 1."""
        ...

    def since(self, mark: Mark = START, *, most: int | None = None) -> tuple[list[bytes], Mark]:
        """Return the complete lines after a mark, up to `most`, and the mark after them."""
        ...


class LineLog(ReadableLog, Protocol):
    """An append-only log of lines. Its methods raise JournalError."""

    def exists(self) -> bool:
        """Return whether the log exists."""
        ...

    def create(self, lines: Sequence[bytes]) -> bool:
        """Create the log with lines, all or none. Return False if it exists."""
        ...

    def last(self) -> bytes | None:
        """Return the last complete line."""
        ...

    def locked(self, *, flush: bool) -> AbstractContextManager[LockedLines]:
        """Lock the log for writing; others wait. With `flush`, writes survive a power failure."""
        ...


def decode_line(log: ReadableLog, number: int, line: bytes) -> dict[str, Any]:
    """Return the object of a log's line. Raises JournalError if the line is damaged."""
    return decode_at(log, log.where(number), line)


def decode_at(log: ReadableLog, where: str, line: bytes) -> dict[str, Any]:
    """Return the object of a line, whose place is known. Raises JournalError if it is damaged."""
    try:
        return decode(line)
    except (ValueError, RecursionError) as error:
        raise line_fault(log.place, where, error, log.remedy) from error


_LOCK = ".create.lock"
_BLOCK = 8192


class FileLog:
    """A log in a file.

    Args:
        path: The file.
        what: The name of its data, in errors.
        remedy: What to do about a damaged line, in errors.
        flush: Flush every append.
        owner: A folder that must exist when the log is written; None creates missing folders.
        permissions: The permissions of a new file.
    """

    # The file is opened and locked for each append and not in between. So any number of processes
    # may share a log, a process may fork, and a file that a repair replaced is noticed.

    def __init__(
        self,
        path: Path,
        *,
        what: str = "the run",
        remedy: str = REPAIR_JOURNAL,
        flush: bool = False,
        owner: Path | None = None,
        permissions: int = 0o666,
    ) -> None:
        self.path = path
        self.remedy = remedy
        self._what = what
        self._flush = flush
        self._owner = owner
        self._permissions = permissions

    @property
    def place(self) -> str:
        """Return the file's path."""
        return str(self.path)

    def where(self, number: int) -> str:
        """Return the number of a line, as text."""
        return f"line {number}"

    def exists(self) -> bool:
        """Return whether the file exists."""
        return self.path.exists()

    def create(self, lines: Sequence[bytes]) -> bool:
        """Create the file with lines, all or none. Return False if it exists."""
        self._check_owner()
        folder = self.path.parent
        new_folders = [one for one in self.path.parents if not one.exists()]
        with file_errors("create", self.path):
            if self._owner is None:
                folder.mkdir(parents=True, exist_ok=True)
            # Checked and renamed under a lock: a rename replaces a file that another process
            # created in between, with the entries in it.
            with file_lock(folder / _LOCK, what=self._what, patience=PATIENCE):
                if self.path.exists():
                    return False
                write_whole(self.path, b"".join(lines), permissions=self._permissions)
            # A new folder survives a power failure only if the folder that names it is flushed.
            for parent in {one.parent for one in new_folders}:
                flush_folder(parent)
        return True

    def since(self, mark: Mark = START, *, most: int | None = None) -> tuple[list[bytes], Mark]:
        """Return the complete lines after a mark; an unfinished one doesn't count."""
        with file_errors("read", self.path), open(self.path, "rb", opener=open_regular) as file:
            return self.read(file, mark, most=most)

    def last(self) -> bytes | None:
        """Return the last complete line, read from the end of the file."""
        with file_errors("read", self.path), open(self.path, "rb", opener=open_regular) as file:
            end, block = file.seek(0, os.SEEK_END), _BLOCK
            while True:
                start = max(0, end - block)
                file.seek(start)
                found = split_lines(file.read(end - start))
                # The first piece may be the rest of a longer line, unless the file begins there.
                if len(found) > 1 or start == 0:
                    return found[-1] if found else None
                block *= 2

    @contextmanager
    def locked(self, *, flush: bool) -> Iterator[LockedFile]:
        """Lock the file for writing; others wait."""
        self._check_owner()
        file = self._open_locked()
        try:
            yield LockedFile(self, file, flush=flush or self._flush)
        finally:
            unlock_file(file)
            file.close()

    def read(
        self, file: IO[bytes] | io.FileIO, mark: Mark, *, most: int | None = None
    ) -> tuple[list[bytes], Mark]:
        """Return the complete lines of the open file after a mark, and the mark after them."""
        file.seek(0)
        # A repair writes another header: a file with the same bytes up to a mark is the same log.
        start = file.read(len(mark.first))
        if not mark.first.startswith(start):
            raise JournalError(
                f"{self.path} was replaced since it was opened, as by a repair; open it again"
            )
        if os.fstat(file.fileno()).st_size < mark.position:
            raise JournalError(
                f"{self.path} got shorter since it was opened: another program changed it; restore "
                "it, or open it again to continue with the rest"
            )
        file.seek(mark.position)
        if most is None:
            lines = split_lines(file.read())
        else:
            lines = [line for line in islice(file, most) if line.endswith(b"\n")]
        position = mark.position + sum(map(len, lines))
        first = mark.first or (lines[0] if lines else b"")
        return lines, Mark(position, mark.number + len(lines), first)

    def _open_locked(self) -> LockableFile:
        while True:
            with file_errors("write to", self.path):
                file = open_lockable(self.path, os.O_RDWR | os.O_APPEND)
            try:
                lock_file(file, self.path, what=self._what, patience=PATIENCE)
            except Replaced:  # by a repair, while this writer waited for the lock
                file.close()
                if not self.path.exists():
                    raise
            except BaseException:
                file.close()
                raise
            else:
                return file

    def _check_owner(self) -> None:
        if self._owner is not None and not self._owner.exists():
            raise JournalError(f"{self._owner} doesn't exist any more; nothing is stored there")


class LockedFile:
    """A log's file while one writer has locked it."""

    def __init__(self, log: FileLog, file: LockableFile, *, flush: bool) -> None:
        self._log = log
        self._file = file
        self._flush = flush

    def since(self, mark: Mark) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark, and cut off what a crash left of a line."""
        with file_errors("read", self._log.path):
            lines, end = self._log.read(self._file, mark)
            # Nobody else writes under the lock, so bytes after the last newline are no write in
            # progress: their writer was killed.
            if os.fstat(self._file.fileno()).st_size > end.position:
                os.ftruncate(self._file.fileno(), end.position)
        return lines, end

    def append(self, mark: Mark, lines: Sequence[bytes]) -> Mark:
        """Append lines in one write, all or none, and return the new end."""
        data = b"".join(lines)
        file = self._file.fileno()
        end = append_lines(file, self._log.path, data, end=mark.position, flush=self._flush)
        return Mark(end, mark.number + len(lines), mark.first or lines[0])

    def whole(self) -> list[LogLine]:
        """Return all lines; the last may be unfinished."""
        parts = self._data().split(b"\n")
        lines = [part + b"\n" for part in parts[:-1]] + [parts[-1]] * bool(parts[-1])
        return [LogLine(f"line {number}", line) for number, line in enumerate(lines, 1)]

    def replace(self, lines: Sequence[bytes]) -> tuple[str, Mark]:
        """Replace the file, and return the path of a copy of the old one, and the new end."""
        path, data = self._log.path, b"".join(lines)
        with file_errors("repair", path):
            copy = save_damaged_copy(path, self._data())
            write_whole(path, data)
        return str(copy), Mark(len(data), len(lines), lines[0])

    def _data(self) -> bytes:
        with file_errors("read", self._log.path):
            self._file.seek(0)
            return self._file.readall()


Line = tuple[int, dict[str, Any]]


class Tail:
    """A reader of a growing log, which continues from where it stopped.

    `is_written` returns whether a process writes the log now.
    """

    def __init__(self, log: ReadableLog, is_written: Callable[[], bool]) -> None:
        self.is_written = is_written
        self._log = log
        self._mark = START

    @classmethod
    def of_file(cls, path: Path) -> Tail:
        """Return the reader of a journal's file."""
        return cls(FileLog(path), lambda: is_locked(path))

    def new(self) -> list[Line]:
        """Return number and object of each line appended since; the header is line 1.

        Raises JournalError for a line that was changed, and for a log that became shorter.
        """
        lines, mark = self._log.since(self._mark)
        numbered = enumerate(lines, self._mark.number + 1)
        found = [(number, decode_line(self._log, number, line)) for number, line in numbered]
        self._mark = mark
        return found


def follow(tail: Tail, *, pause: Callable[[], None]) -> Iterator[list[Line]]:
    """Yield a journal's lines, then those that are appended, until no process writes it.

    `pause` is called between two reads. Raises the errors of `Tail.new`.
    """
    while True:
        # Asked before the read: what a writer appended before it left is then still read.
        is_written = tail.is_written()
        yield tail.new()
        if not is_written:
            return
        pause()
