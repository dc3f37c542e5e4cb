"""Tail: the records of a journal as they are appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mergepoint.record.hold import held
from mergepoint.record.lines import JournalError, decode, line_fault

Line = tuple[int, dict[str, Any]]


class Tail:
    """Reads on in a file of lines from where it stopped; a line counts once it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes
        self._number = 0

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


def follow(path: Path, *, pause: Callable[[], None]) -> Iterator[list[Line]]:
    """Give a journal's lines, then those that are appended, until nobody writes it any more.

    `pause` is called between two looks at the file. Raises what `Tail.new` does.
    """
    tail = Tail(path)
    while True:
        going = held(path)  # asked first, so that a writer's last lines are read after it left
        yield tail.new()
        if not going:
            return
        pause()
