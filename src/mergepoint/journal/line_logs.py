"""Logs of lines that grow, and following them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from mergepoint.journal.file_locks import is_locked
from mergepoint.journal.lines import JournalError, JournalFileError, decode, line_fault

Line = tuple[int, dict[str, Any]]


class Tail(Protocol):
    """A reader that continues in a journal from where it stopped."""

    @property
    def going(self) -> bool:
        """Return whether a process writes the journal now."""

    def new(self) -> list[Line]:
        """Return number and object of each line appended since; the header is line 1.

        Raises JournalError for a line that was changed, and for a journal that became shorter.
        """


class FileTail:
    """A reader of a growing file of lines; a line counts once it is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes
        self._number = 0

    @property
    def going(self) -> bool:
        """Return whether a process writes the file now."""
        return is_locked(self.path)

    def new(self) -> list[Line]:
        """Return number and object of each line appended since.

        Raises JournalError for a line that was changed, and for a file that became shorter.
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
            raise JournalFileError(
                f"cannot read {self.path}: {error.strerror}", error, self.path
            ) from error
        whole = whole[: whole.rfind(b"\n") + 1]
        self._read += len(whole)
        return [line + b"\n" for line in whole.split(b"\n")[:-1]]


class Rows(Protocol):
    """A store with one row per line, such as a database."""

    def held(self, run_id: str) -> bool:
        """Return whether a process writes a run now."""

    def lines(self, run_id: str, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Return number and line of a run's rows after a number."""


class RowTail:
    """A reader of the growing rows of a run."""

    def __init__(self, rows: Rows, run_id: str) -> None:
        self._rows = rows
        self._run_id = run_id
        self._number = 0

    @property
    def going(self) -> bool:
        """Return whether a process writes the run now."""
        return self._rows.held(self._run_id)

    def new(self) -> list[Line]:
        """Return number and object of each row appended since.

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
    """Yield a journal's lines, then those that are appended, until no process writes it.

    `pause` is called between two reads. Raises the errors of `Tail.new`.
    """
    while True:
        going = (
            tail.going
        )  # checked first, so that the last lines are read after the writer has left
        yield tail.new()
        if not going:
            return
        pause()
