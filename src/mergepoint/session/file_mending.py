"""FileMending: a session's file that is held to be looked at and written anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from mergepoint.core.errors import SessionError
from mergepoint.record.file_store import JOURNAL
from mergepoint.record.lines import encode
from mergepoint.record.repair import kept_beside
from mergepoint.record.whole import write_whole
from mergepoint.session.entry import Entry, SessionHeader, entry_to_plain
from mergepoint.session.log import Line, Mark, as_session_errors

SNAPSHOT = "session.yaml"
_OF_BYTES = re.compile(r"\d+")


class FileMending:
    """The file while it is held to be mended."""

    def __init__(self, folder: Path, file: FileIO) -> None:
        self._journal = folder / JOURNAL
        self._snapshot = folder / SNAPSHOT
        self._file = file
        with told(self._journal, "read"):
            self._data = file.readall()
        parts = self._data.split(b"\n")
        whole = [part + b"\n" for part in parts[:-1]]
        self.lines = [
            Line(f"line {number}", line)
            for number, line in enumerate([*whole, parts[-1]] if parts[-1] else whole, 1)
        ]

    def rewrite(self, header: SessionHeader, entries: Sequence[Entry]) -> str:
        """Write the file anew, keep what it was beside it, and give the path of that."""
        lines = [header.to_plain(), *map(entry_to_plain, entries)]
        with as_session_errors(), told(self._journal, "repair"):
            copy = kept_beside(self._journal, self._data)
            self._data = b"".join(map(encode, lines))
            write_whole(self._journal, self._data)
        self.lines = [Line("", line) for line in self._data.splitlines(keepends=True)]
        return str(copy)

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Write the snapshot of all lines, and cut off what is no line."""
        end = self._data.rfind(b"\n") + 1
        if end < len(self._data):
            os.ftruncate(self._file.fileno(), end)
        write_snapshot(self._journal.parent, snapshot(Mark(end, 0, b"")))

    def snapshot(self) -> tuple[int, str] | None:
        """Give the bytes that the snapshot is of, and its text."""
        try:
            text = (self._snapshot).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return 0, ""
        found = _OF_BYTES.search(text[: text.find("\n")])
        return int(found[0]) if found else 0, text


def write_snapshot(folder: Path, text: str) -> None:
    """Write a session's snapshot in place of the last one."""
    try:
        write_whole(folder / SNAPSHOT, text.encode(), flush=False)
    except OSError as error:
        raise SessionError(
            f"cannot write {folder / SNAPSHOT}: {error.strerror}. Nothing is lost: the journal "
            "beside it holds everything; make room, and the next turn writes it"
        ) from error


@contextmanager
def told(path: Path, act: str) -> Iterator[None]:
    """Let what the system says of a file be an error of the session."""
    try:
        yield
    except OSError as error:
        raise SessionError(f"cannot {act} {path}: {error.strerror}") from error
