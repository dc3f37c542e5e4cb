"""FileBeside: an application's rows in a file, a line each, as in journals."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any

from mergepoint.core.errors import SessionError
from mergepoint.record.hold import hold, release
from mergepoint.record.lines import encode, read_lines
from mergepoint.session.beside import FORMAT, Row, checked_format
from mergepoint.session.file_mending import told
from mergepoint.session.log import PATIENCE, as_session_errors

_END = 4096


class FileBeside:
    """The rows in a file. Its first line says the format; `home` is the folder that must be there.

    The file is opened and locked for an append and not between them, as a session's journal is.
    """

    def __init__(self, path: Path, *, home: Path | None = None) -> None:
        self._path = path
        self._home = home

    def rows(self) -> list[dict[str, Any]]:
        """Give all rows; a part of a line that a kill left is none."""
        if not self._path.exists():
            return []
        with as_session_errors():
            first, *rest = read_lines(self._path).values or ({"format": FORMAT},)
        checked_format(str(self._path), first.get("format"))
        return rest

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows in one write, and flush it."""
        with as_session_errors():
            lines = b"".join(encode(dict(row)) for row in rows)
        if not lines:
            return
        if self._home is not None and not self._home.exists():
            raise SessionError(f"there is no {self._home} any more; nothing is kept beside it")
        with told(self._path, "write to"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(number, "r+b", buffering=0) as file:
                with as_session_errors():
                    hold(file, self._path, what="the file", patience=PATIENCE)
                try:
                    self._write(file, lines)
                finally:
                    release(file)

    def _write(self, file: FileIO, lines: bytes) -> None:
        end = _whole(file)
        os.ftruncate(file.fileno(), end)
        data = (encode({"format": FORMAT}) if end == 0 else b"") + lines
        try:
            if os.write(file.fileno(), data) < len(data):
                raise OSError(28, "only a part of it went in")
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), end)
            raise


def _whole(file: FileIO) -> int:
    """Give where the last whole line ends; what a kill left behind it is cut off."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _END)
        found = os.pread(file.fileno(), end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
