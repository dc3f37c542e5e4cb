"""Checks of a journal, and the repair of a damaged one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergepoint.core.errors import MergepointError
from mergepoint.journal.checked_lines import is_locked, lock_file, open_lockable, unlock_file

if TYPE_CHECKING:
    from mergepoint.journal.segment_store import SegmentLog
    from mergepoint.journal.table_logs import TableLog
from mergepoint.journal.call_records import RECORDS, CallRecord, record_from_plain, to_json_value
from mergepoint.journal.checked_lines import (
    JournalError,
    check_format,
    decode,
    file_errors,
    open_regular,
    parse_line,
    save_damaged_copy,
    write_whole,
)
from mergepoint.journal.recipe_records import CallsOfItems
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.journal.stores import FORMAT, RunHeader
from mergepoint.journal.transcript import NOT_IN_JOURNAL, Transcript, read_transcript, transcript_of
from mergepoint.tree.nodes import Order
from mergepoint.tree.transform import from_outline, leaf_paths

_AT_THE_END = ("text", "outputs")  # empty in the transcript of a run that failed


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its file, its line (None if it is in no single line), and a description.

    In a database, `file` names the run, and `line` is a row; the header is row 1.
    """

    file: Path | str
    line: int | None
    what: str

    def __str__(self) -> str:
        at = ":" if isinstance(self.file, Path) else ", row "
        return f"{self.file}{'' if self.line is None else f'{at}{self.line}'}: {self.what}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The valid records of a journal, and all its problems.

    `good` counts the bytes of the lines before the first unreadable one, `whole` the records in
    them, `ended` all complete lines of the file, and `torn` the bytes after the last complete line.
    """

    header: RunHeader | None
    records: tuple[CallRecord, ...]
    problems: tuple[Problem, ...]
    good: int
    whole: int
    ended: int
    torn: int

    @property
    def dropped(self) -> int:
        """Return the number of complete lines that cutting at the first problem loses."""
        return max(0, self.ended - 1 - self.whole)


def check_journal(path: Path) -> CheckReport:
    """Read a journal to its end, including everything after a damaged line.

    Bytes after the last newline are a problem unless the run is being written.

    Raises:
        JournalError: The file cannot be read, is not a journal, or has a newer format.
    """
    reading = _JournalReader(path)
    # Asked before the read, which may see a line in progress whose writer ends right after it.
    going = is_locked(path)
    with file_errors("read", path), open(path, "rb", opener=open_regular) as file:
        for line in file:
            reading.take(line)
    if reading.torn and not going:
        reading.fault(
            f"{reading.torn} bytes of an unfinished write; a resume or repair cuts them off"
        )
    if not reading.ended:
        reading.fault("the header is missing: the run was stopped before its first call")
    return reading.checked()


def check_run(folder: Path, *, journal: str, transcript: str) -> list[Problem]:
    """Return all problems of a run's journal, and of the transcript next to it.

    The transcript is compared if it exists, the journal is valid and no process writes it. A run
    that was rejected before its first call has only a transcript.
    """
    path, beside = folder / journal, folder / transcript
    if not path.exists() and beside.exists():
        return list(_unreadable(beside))
    going = is_locked(path)  # before reading: a run that ends meanwhile must not count as complete
    try:
        checked = check_journal(path)
    except JournalError as error:
        return [Problem(path, None, str(error).removeprefix(f"{path} ").removeprefix(f"{path}: "))]
    problems = list(checked.problems)
    if not problems and checked.header is not None and beside.exists() and not going:
        problems += compared(beside, transcript_of(checked.header, checked.records))
    return problems


def check_log(log: TableLog | SegmentLog) -> list[Problem]:
    """Return all problems of a run in a database or in segments.

    Raises JournalError if it is not available, or if a line in a segment is damaged.
    """
    reading = _JournalReader(log.place)
    for line in log.whole():
        if line.data is None:
            reading.fault(f"{line.where} is missing; restore the row from a backup")
            break
        reading.take(line.data)
    return list(reading.checked().problems)


def check_first(place: Path | str, first: Mapping[str, Any]) -> list[str]:
    """Check the first line of a journal, and return the paths of the run's calls.

    Raises JournalError for a line that is not a header.
    """
    check_format(place, first.get("format"), FORMAT)
    return list(leaf_paths(parse_line(place, "line 1", FORMAT, RunHeader.from_plain, first).shape))


class _JournalReader:
    """A check of a journal, line by line."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._header: RunHeader | None = None
        self._order: Order | None = None
        self._free: CallsOfItems | None = None
        self._records: list[CallRecord] = []
        self._problems: list[Problem] = []
        self._damaged = False
        self._good = self._whole = 0
        self.ended = self.torn = 0

    def take(self, line: bytes) -> None:
        """Check the next line."""
        if not line.endswith(b"\n"):
            self.torn = len(line)
            return
        self.ended += 1
        try:
            plain = decode(line)
        except (ValueError, RecursionError) as error:
            self._damaged = True
            self._note(f"{error}; it was changed after it was written")
            return
        if self.ended == 1:
            check_format(self._path, plain.get("format"), FORMAT)
        try:
            self._parse(plain)
        except JournalError as error:
            self._damaged = True
            self._note(str(error).partition(f"line {self.ended} ")[2])
        if not self._damaged:
            self._good += len(line)
            self._whole = len(self._records)

    def fault(self, what: str) -> None:
        """Note a problem after the last complete line."""
        self._problems.append(Problem(self._path, self.ended + 1, what))

    def checked(self) -> CheckReport:
        """Return the result of the check."""
        return CheckReport(
            header=self._header,
            records=outcomes(self._records),
            problems=tuple(self._problems),
            good=self._good,
            whole=self._whole,
            ended=self.ended,
            torn=self.torn,
        )

    def _note(self, what: str) -> None:
        self._problems.append(Problem(self._path, self.ended, what))

    def _parse(self, plain: dict[str, Any]) -> None:
        if self.ended == 1:
            self._header = parse_line(self._path, "line 1", FORMAT, RunHeader.from_plain, plain)
            shape = self._header.shape
            self._order = Order(from_outline(shape), str(shape["path"]))
            self._free = CallsOfItems(shape)
            return
        run = self._header.run_id if self._header else ""
        where = f"line {self.ended}"
        record = parse_line(self._path, where, FORMAT, record_from_plain, plain, run)
        known = self._order is None or record.path in self._order
        if not known and record.path not in (self._free or ()):
            self._note(f"a record of {record.path}, which isn't a path of the run's tree")
        self._records.append(record)


def compared(path: Path, worked_out: Transcript) -> Iterator[Problem]:
    """Yield the differences between a transcript and the one computed from the journal."""
    if unreadable := list(_unreadable(path)):
        yield from unreadable
        return
    written = read_transcript(path).to_json()
    expected = to_json_value(worked_out.to_json())
    compared = set(expected) - set(NOT_IN_JOURNAL)
    if written["error"] is not None:
        compared -= set(_AT_THE_END)
    elif expected["error"] is not None:
        yield Problem(path, None, f"it says done, and the journal {expected['error']['message']}")
    for key in expected:
        if key in compared and written[key] != expected[key]:
            yield Problem(path, None, _difference(key, written[key], expected[key]))


def _unreadable(path: Path) -> Iterator[Problem]:
    try:
        read_transcript(path)
    except (MergepointError, OSError) as error:
        yield Problem(path, None, str(error).removeprefix(f"{path} "))


def _difference(key: str, written: Any, expected: Any) -> str:
    if key in RECORDS:
        pairs: Iterator[tuple[Any, Any]] = zip_longest(written, expected, fillvalue={})
        for one, other in pairs:
            if one != other:
                names = [name for name in other or one if one.get(name) != other.get(name)]
                where = (other or one)["path"]
                if one and other:
                    return f"{key}: {', '.join(names)} at {where} differ from the journal's"
                return f"{key}: {where} is only in the {'transcript' if one else 'journal'}"
    return f"{key} differs from the value computed from the journal"


# Repair cuts a damaged journal back to its readable lines, and keeps a copy of the damaged file.


@dataclass(frozen=True, slots=True)
class Repair:
    """A locked journal and its problems. `needed` says whether it must be cut."""

    path: Path
    found: CheckReport

    @property
    def needed(self) -> bool:
        """Return whether the file has anything after its good lines."""
        return bool(self.found.torn or self.found.dropped)

    def cut(self) -> Path | None:
        """Replace the file by its good lines, and return the path of the copy of the damaged file.

        An unfinished write is not a record and leaves no copy. Raises JournalError if the disk has
        no room; then the file is unchanged.
        """
        if not self.needed:
            return None
        with file_errors("repair", self.path):
            data = self.path.read_bytes()
            copy = save_damaged_copy(self.path, data) if self.found.dropped else None
            write_whole(self.path, data[: self.found.good])
        return copy


@contextmanager
def open_repair(path: Path) -> Iterator[Repair]:
    """Lock a journal, so that no process writes it, and yield its problems.

    Raises:
        JournalError: The run is being written, the file is not a journal, or its header cannot be
            read.
        Without the header no record can be used.
    """
    with file_errors("open", path):
        file = open_lockable(path, os.O_WRONLY | os.O_APPEND)
    with file:
        lock_file(file, path)
        try:
            found = check_journal(path)
            if found.header is None:
                raise JournalError(
                    f"{path}: its header cannot be read, and without it nothing can be used; "
                    "restore the file from a copy, or begin a new run"
                )
            yield Repair(path, found)
        finally:
            unlock_file(file)
