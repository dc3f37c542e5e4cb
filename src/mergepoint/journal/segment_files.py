"""The files of a SegmentStore: writing a segment of this process, and reading a run from any."""

from __future__ import annotations

import os
import re
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any, NamedTuple

from mergepoint.journal.checked_lines import (
    JournalError,
    LockableFile,
    append_lines,
    decode,
    encode,
    file_errors,
    flush_folder,
    line_fault,
    lock_file,
    open_lockable,
    open_regular,
    unlock_file,
)
from mergepoint.journal.stores import Sync

SEGMENT_FORMAT = "mergepoint.segment/1"
_SEGMENT = re.compile(r"segment-(\d{5,})\.jsonl")


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment."""
    return folder / f"segment-{number:05d}.jsonl"


def segment_sizes(folder: Path) -> dict[int, int]:
    """Return the sizes of a folder's segments by their numbers."""
    try:
        with os.scandir(folder) as entries:
            found = {_SEGMENT.fullmatch(one.name): one for one in entries}
            return {int(match[1]): one.stat().st_size for match, one in found.items() if match}
    except (FileNotFoundError, NotADirectoryError):
        return {}


class RunRow(NamedTuple):
    """A run's last line: its number in the run, its segment, and its position there.

    `owner` is the segment of the process that has the run open, if that lives; None if the run is
    closed. `n` is 0 for an id that a process has claimed for a run without lines.
    """

    run_id: str
    created_at: float | None
    n: int
    segment: int
    position: int
    owner: int | None


class SegmentFile:
    """A segment that this process writes, locked until it is closed."""

    def __init__(self, folder: Path, sync: Sync) -> None:
        self.number = max(segment_sizes(folder), default=0) + 1
        while True:
            self.path = segment_path(folder, self.number)
            with file_errors("create", self.path):
                try:
                    self._file = open_lockable(
                        self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                    )
                except FileExistsError:  # of another process, created meanwhile
                    self.number += 1
                    continue
            break
        self._end = weakref.finalize(self, _close, self._file)
        self.end = 0
        self.shared: OrderedDict[bytes, int] = OrderedDict()
        self.open_runs: set[object] = set()  # since it was replaced by the next segment
        self.failed = False  # a write has started and not succeeded
        try:
            lock_file(self._file, self.path, what="the segment")
            self.write(encode({"format": SEGMENT_FORMAT}), flush=sync != "off")
            if sync != "off":
                with file_errors("flush", folder):
                    flush_folder(folder)
        except BaseException:
            self.close()
            self.path.unlink(missing_ok=True)
            raise

    def write(self, lines: bytes, *, flush: bool) -> None:
        """Append lines, all or none; after a failure it takes no more. Raises JournalError."""
        # Set before the write: an exception that a signal handler raises leaves it set too.
        self.failed = True
        self.end = append_lines(self._file.fileno(), self.path, lines, end=self.end, flush=flush)
        self.failed = False

    def flush(self) -> None:
        """Flush the file."""
        with file_errors("flush", self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Unlock and close the file."""
        self._end()


def _close(file: LockableFile) -> None:
    if not file.closed:
        unlock_file(file)
        file.close()


def cut_torn(file: LockableFile) -> None:
    """Cut off what a killed process left of a line at the end of its segment."""
    end = size = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 8192)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file.fileno(), end)


class SegmentReader:
    """A reader of the lines of one run, from its last to its first."""

    def __init__(self, folder: Path, remedy: str) -> None:
        self._folder = folder
        self._remedy = remedy
        self._files: dict[int, IO[bytes]] = {}

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def lines(self, row: RunRow) -> list[dict[str, Any]]:
        """Return the lines of a run, in order. Raises JournalError if one is damaged."""
        found: list[dict[str, Any]] = []
        n, segment, position = row.n, row.segment, row.position
        while True:
            line = self.line(segment, position, f"run {row.run_id!r} in ", n)
            if line.get("run") != row.run_id or line.get("n") != n:
                raise self._fault(
                    segment, position, f"run {row.run_id!r} in ", n, "it isn't of this run"
                )
            found.append(line)
            if n == 1:
                break
            n, (segment, position) = n - 1, line["prev"]
        for name in ("tree", "requests"):
            header = found[-1]
            shared = self.line(segment, header[name], f"run {row.run_id!r} in ", 1)
            header["header"][name] = shared["shared"]
        return found[::-1]

    def check(self, row: RunRow, position: int) -> None:
        """Raise JournalError if a line after a run's last one, in its segment, is damaged."""
        path = segment_path(self._folder, row.segment)
        try:
            with file_errors("read", path):
                decode(self._line(path, row.segment, position))
        except (ValueError, RecursionError) as error:
            where = f"line {_line_number(path, position)}"
            problem = f"{error}, and may be a line of run {row.run_id!r}"
            raise line_fault(str(path), where, problem, self._remedy) from error

    def line(self, segment: int, position: int, of: str, n: int) -> dict[str, Any]:
        """Return the object of a line at a position. Raises JournalError if it is damaged."""
        path = segment_path(self._folder, segment)
        with file_errors("read", path):
            data = self._line(path, segment, position)
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:
            raise self._fault(segment, position, of, n, str(error)) from error

    def _line(self, path: Path, segment: int, position: int) -> bytes:
        if segment not in self._files:
            self._files[segment] = open(path, "rb", opener=open_regular)  # noqa: SIM115
        self._files[segment].seek(position)
        return self._files[segment].readline()

    def _fault(self, segment: int, position: int, of: str, n: int, problem: str) -> JournalError:
        path = segment_path(self._folder, segment)
        return line_fault(
            f"{of}{path}, line {_line_number(path, position)}",
            "its header" if n == 1 else f"record {n - 1}",
            problem,
            self._remedy,
        )


def _line_number(path: Path, position: int) -> int:
    """Return the number of the line at a position of a file."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read(position).count(b"\n") + 1
