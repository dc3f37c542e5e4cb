"""Read a journal: the header of its run and the records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mergepoint.record.header import FORMAT, RunHeader
from mergepoint.record.lines import JournalError, Lines, read_lines
from mergepoint.record.plain import record_from_plain
from mergepoint.record.record import CallRecord

T = TypeVar("T")


def read_journal(path: Path) -> tuple[RunHeader, tuple[CallRecord, ...]]:
    """Read a journal, also one that is being written; the file is neither locked nor changed.

    Raises JournalError for a file that is none, is of a newer format or was changed.
    """
    header, records, _ = load(path)
    return header, records


def load(path: Path) -> tuple[RunHeader, tuple[CallRecord, ...], Lines]:
    """Give header, records and lines of a journal. Raises JournalError as `read_journal` does."""
    lines = read_lines(path, until_fault=True)
    if lines.values:
        check_format(path, lines.values[0].get("format"))
    if lines.fault is not None:
        raise lines.fault
    if not lines.values:
        raise JournalError(
            f"{path} does not hold a whole header. If it is a journal, its run was stopped before "
            "the first call and nothing was recorded: remove the file and begin anew"
        )
    header = parsed(path, 1, RunHeader.from_plain, lines.values[0])
    records = tuple(
        parsed(path, number, record_from_plain, data, header.run_id)
        for number, data in enumerate(lines.values[1:], 2)
    )
    return header, records, lines


def check_format(place: Path | str, found: object) -> None:
    """Raise JournalError unless this version reads the format that was found."""
    if found != FORMAT:
        newer = str(found).startswith(FORMAT.partition("/")[0] + "/")
        way_out = "update mergepoint" if newer else "it is no journal; give another file"
        raise JournalError(
            f"{place} is of format {found!r}, this version reads {FORMAT}: {way_out}"
        )


def parsed(
    place: Path | str, number: int, parse: Callable[..., T], *plain: Any, unit: str = "line"
) -> T:
    """Give what a line's plain data stands for. Raises JournalError where it stands for none."""
    try:
        return parse(*plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JournalError(
            f"{place}, {unit} {number} holds something else than {FORMAT} says "
            f"({type(error).__name__}: {error}); docs/journal.md tells what belongs there"
        ) from error
