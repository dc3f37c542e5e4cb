"""Repair: a damaged journal is cut back to what can be read; what it was is kept beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mergepoint.record.check import Checked, check_journal
from mergepoint.record.hold import hold, release
from mergepoint.record.lines import JournalError
from mergepoint.record.whole import write_whole


@dataclass(frozen=True, slots=True)
class Repair:
    """A journal that is held, and what is wrong with it. `needed` says whether it has to be cut."""

    path: Path
    found: Checked

    @property
    def needed(self) -> bool:
        """Say whether the file holds anything behind its good lines."""
        return bool(self.found.torn or self.found.dropped)

    def cut(self) -> Path | None:
        """Write the good lines in place of the file; give the copy of what it was.

        A write that did not end is no record and leaves no copy. Raises JournalError where the
        disk has no room; then the file is as it was.
        """
        if not self.needed:
            return None
        try:
            data = self.path.read_bytes()
            copy = kept_beside(self.path, data) if self.found.dropped else None
            write_whole(self.path, data[: self.found.good])
        except OSError as error:
            raise JournalError(f"cannot repair {self.path}: {error.strerror}") from error
        return copy


@contextmanager
def repairing(path: Path) -> Iterator[Repair]:
    """Hold a journal, so that nobody writes it, and say what is wrong with it.

    Raises JournalError while the run is being written, for a file that is no journal, and for
    one whose header cannot be read: without it no record can be used.
    """
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)
    except OSError as error:
        raise JournalError(f"cannot open {path}: {error.strerror}") from error
    with file:
        hold(file, path)
        try:
            found = check_journal(path)
            if found.header is None:
                raise JournalError(
                    f"{path}: its header cannot be read, and without it nothing can be used; "
                    "restore the file from a copy, or begin a new run"
                )
            yield Repair(path, found)
        finally:
            release(file)


def kept_beside(path: Path, data: bytes) -> Path:
    """Write what a damaged file holds beside it, under a name that is free; give its path."""
    number = 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return write_whole(copy, data)
