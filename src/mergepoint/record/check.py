"""Check: everything that is wrong with a run on disk, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mergepoint.core.errors import MergepointError
from mergepoint.core.path import SEPARATOR
from mergepoint.record.export import NOT_IN_JOURNAL, transcript_of
from mergepoint.record.header import RunHeader
from mergepoint.record.hold import held
from mergepoint.record.jsonable import jsonable
from mergepoint.record.lines import JournalError, decode
from mergepoint.record.plain import RECORDS, record_from_plain
from mergepoint.record.read_journal import check_format, parsed
from mergepoint.record.record import CallRecord
from mergepoint.record.tail import Rows
from mergepoint.record.transcript import Transcript, read_transcript
from mergepoint.tree.node import Order
from mergepoint.tree.outline import from_outline, leaf_paths

_AT_THE_END = ("text", "outputs")  # empty in the transcript of a run that failed


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, in which line of it (None: in no one of them), what.

    It is in a file, or in the rows of a run in a database, whose header is row 1.
    """

    file: Path | str
    line: int | None
    what: str

    def __str__(self) -> str:
        at = ":" if isinstance(self.file, Path) else ", row "
        return f"{self.file}{'' if self.line is None else f'{at}{self.line}'}: {self.what}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a journal holds that is right, and all that is wrong.

    `good` counts the bytes of the lines before the first that cannot be read, `whole` the records
    in them, `ended` all lines of the file that end, and `torn` the bytes behind those.
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
        """Give how many lines that end are lost when the journal is cut at its first fault."""
        return max(0, self.ended - 1 - self.whole)


def check_journal(path: Path) -> Checked:
    """Read a journal to its end, past every line that is wrong.

    Bytes behind the last newline are a problem unless the run is being written. Raises
    JournalError for a file that cannot be read, is no journal, or is of a newer version.
    """
    reading = _Reading(path)
    going = held(path)
    try:
        with path.open("rb") as file:
            for line in file:
                reading.take(line)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    if reading.torn and not going:
        reading.fault(
            f"{reading.torn} bytes of a write that did not end; a resume or repair cuts them off"
        )
    if not reading.ended:
        reading.fault("the header is not there: the run was stopped before its first call")
    return reading.checked()


def check_run(folder: Path, *, journal: str, transcript: str) -> list[Problem]:
    """Give everything that is wrong with a run's journal, and with its transcript beside it.

    The transcript is compared where there is one, the journal is right and nobody writes it. A
    run that was refused before its first call has a transcript alone.
    """
    path, beside = folder / journal, folder / transcript
    if not path.exists() and beside.exists():
        return list(_unreadable(beside))
    going = held(path)  # asked first: the end of a run would be compared with its middle
    try:
        checked = check_journal(path)
    except JournalError as error:
        return [Problem(path, None, str(error).removeprefix(f"{path} ").removeprefix(f"{path}: "))]
    problems = list(checked.problems)
    if not problems and checked.header is not None and beside.exists() and not going:
        problems += compared(beside, transcript_of(checked.header, checked.records))
    return problems


def check_rows(rows: Rows, run_id: str) -> list[Problem]:
    """Give everything that is wrong with a run in a database.

    Raises JournalError where there is no such run, or the database cannot be reached.
    """
    place = f"run {run_id!r} in {rows}"
    reading = _Reading(place)
    found = rows.lines(run_id)
    reading.take(next(found)[1])
    try:
        for _, line in found:
            reading.take(line)
    except JournalError as error:
        reading.fault(str(error).removeprefix(f"{place}, "))
    return list(reading.checked().problems)


def check_first(place: Path | str, first: Mapping[str, Any]) -> list[str]:
    """Look at the first line of a journal, and give the paths of its calls.

    Raises JournalError for a line that is no header.
    """
    check_format(place, first.get("format"))
    return list(leaf_paths(parsed(place, 1, RunHeader.from_plain, first).tree))


class _Reading:
    """A journal as it is read, line by line."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._header: RunHeader | None = None
        self._order: Order | None = None
        self._records: list[CallRecord] = []
        self._problems: list[Problem] = []
        self._damaged = False
        self._good = self._whole = 0
        self.ended = self.torn = 0

    def take(self, line: bytes) -> None:
        """Take in the next line."""
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
            check_format(self._path, plain.get("format"))
        try:
            self._parse(plain)
        except JournalError as error:
            self._damaged = True
            self._note(str(error).partition(f"line {self.ended} ")[2])
        if not self._damaged:
            self._good += len(line)
            self._whole = len(self._records)

    def fault(self, what: str) -> None:
        """Note what is wrong behind the last line that ends."""
        self._problems.append(Problem(self._path, self.ended + 1, what))

    def checked(self) -> Checked:
        """Give what was found."""
        return Checked(
            header=self._header,
            records=tuple(self._records),
            problems=tuple(self._problems),
            good=self._good,
            whole=self._whole,
            ended=self.ended,
            torn=self.torn,
        )

    def _note(self, what: str) -> None:
        self._problems.append(Problem(self._path, self.ended, what))

    def _made(self, record: CallRecord) -> bool:
        """Say whether a record is of a stage of a recipe, whose calls come of its items."""
        shape = self._header.tree if self._header else {}
        return "stage" in shape and record.path.startswith(f"{shape['path']}{SEPARATOR}")

    def _parse(self, plain: dict[str, Any]) -> None:
        if self.ended == 1:
            self._header = parsed(self._path, 1, RunHeader.from_plain, plain)
            shape = self._header.tree
            self._order = Order(from_outline(shape), str(shape["path"]))
            return
        run = self._header.run_id if self._header else ""
        record = parsed(self._path, self.ended, record_from_plain, plain, run)
        if self._order is not None and record.path not in self._order and not self._made(record):
            self._note(f"a record of {record.path}, which is no path of the run's tree")
        self._records.append(record)


def compared(path: Path, worked_out: Transcript) -> Iterator[Problem]:
    """Give where a transcript differs from the one that the journal gives."""
    if unreadable := list(_unreadable(path)):
        yield from unreadable
        return
    written = read_transcript(path).to_json()
    expected = jsonable(worked_out.to_json())
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
                return f"{key}: {where} is in the {'transcript' if one else 'journal'} alone"
    return f"{key} differs from what the journal gives"
