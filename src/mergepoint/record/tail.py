"""Tail: the records of a journal as they are appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from mergepoint.record.hold import held
from mergepoint.record.lines import JournalError, decode, line_fault

Line = tuple[int, dict[str, Any]]


class Tail(Protocol):
    """Reads on in a journal from where it stopped."""

    @property
    def going(self) -> bool:
        """Say whether a process writes the journal now."""
        ...

    def new(self) -> list[Line]:
        """Give number and object of each line that was appended since; the header is line 1.

        Raises JournalError for a line that was changed, and for a journal that got shorter.
        """
        ...


class FileTail:
    """Reads on in a file of lines; a line counts once it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes
        self._number = 0

    @property
    def going(self) -> bool:
        """Say whether a process writes the file now."""
        return held(self.path)

    def new(self) -> list[Line]:
        """Give number and object of each line that was appended since.

        Raises JournalError for a line that was changed, and for a file that got shorter.
        """
        found: list[Line] = []
        for line in self._appended():
            self._number += 1
            try:
                found.append((self._number, decode(line)))
            except (ValueError, RecursionError) as error:
                raise line_fault(self.path, self._number, error) from error
        return found

    def _appended(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._read:
                    raise JournalError(f"{self.path} got shorter; look at it from its beginning")
                file.seek(self._read)
                whole = file.read()
        except OSError as error:
            raise JournalError(f"cannot read {self.path}: {error.strerror}") from error
        whole = whole[: whole.rfind(b"\n") + 1]
        self._read += len(whole)
        return [line + b"\n" for line in whole.split(b"\n")[:-1]]


class Rows(Protocol):
    """A store whose rows are lines, as a database is."""

    def held(self, run_id: str) -> bool:
        """Say whether a process writes a run now."""
        ...

    def lines(self, run_id: str, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Give number and line of a run's rows behind a number."""
        ...


class RowTail:
    """Reads on in the rows of a run."""

    def __init__(self, rows: Rows, run_id: str) -> None:
        self._rows = rows
        self._run_id = run_id
        self._number = 0

    @property
    def going(self) -> bool:
        """Say whether a process writes the run now."""
        return self._rows.held(self._run_id)

    def new(self) -> list[Line]:
        """Give number and object of each row that was appended since.

        Raises JournalError for a row that was changed, and for one that is missing.
        """
        found: list[Line] = []
        for number, line in self._rows.lines(self._run_id, after=self._number):
            try:
                found.append((number, decode(line)))
            except (ValueError, RecursionError) as error:
                raise JournalError(
                    f"run {self._run_id!r} in {self._rows}, row {number}: {error}; it was changed "
                    "after it was written"
                ) from error
            self._number = number
        return found


def follow(tail: Tail, *, pause: Callable[[], None]) -> Iterator[list[Line]]:
    """Give a journal's lines, then those that are appended, until nobody writes it any more.

    `pause` is called between two looks at it. Raises what `Tail.new` does.
    """
    while True:
        going = tail.going  # asked first, so that a writer's last lines are read after it left
        yield tail.new()
        if not going:
            return
        pause()
