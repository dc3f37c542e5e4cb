"""FileLog: a session's log in a folder of its own. Its format: docs/sessions.md.

The file is opened and locked for each append and not between them. So any number of writers may
share a session, a process may fork, and a journal that was repaired is noticed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from itertools import islice
from pathlib import Path

from mergepoint.core.errors import SessionError
from mergepoint.record.file_store import JOURNAL, FileStore
from mergepoint.record.hold import Replaced, hold, holding, release
from mergepoint.record.lines import decode, encode
from mergepoint.record.redact import Redact
from mergepoint.record.store import Sync
from mergepoint.session.entry import Entry, SessionHeader, entry_to_plain
from mergepoint.session.file_mending import FileMending, told, write_snapshot
from mergepoint.session.log import (
    PATIENCE,
    REPAIR,
    Appended,
    Mark,
    as_session_errors,
    entry_at,
    header_at,
)

RUNS = "runs"
_TURN = "turn.lock"
_BLOCK = 8192


class FileLog:
    """The log of the session in a folder: `journal.jsonl`, and `session.yaml` as its snapshot."""

    def __init__(self, folder: Path, *, sync: Sync = "edges", redact: Redact | None = None) -> None:
        self.folder = folder
        self.redact = redact
        self.journal = folder / JOURNAL
        self._sync = sync

    @property
    def place(self) -> str:
        """Give the file's path."""
        return str(self.journal)

    def begin(self) -> tuple[SessionHeader, Mark]:
        """Give what the session began with. Raises SessionError for a file that is none."""
        with told(self.journal, "read"), self.journal.open("rb") as file:
            first = file.readline()
        if not first.endswith(b"\n"):
            raise SessionError(
                f"{self.journal} does not hold a whole header, with which every session begins: it "
                f"was damaged, and is not taken for an empty one; {REPAIR}"
            )
        plain = self._decoded("line 1", first)
        return header_at(self.place, self.folder.name, plain), Mark(len(first), 1, first)

    def since(self, mark: Mark) -> Appended:
        """Give the whole lines that were appended since; one that is being written is none yet."""
        with told(self.journal, "read"), self.journal.open("rb", buffering=0) as file:
            return self.read(file, mark)

    def first(self, mark: Mark, count: int) -> list[Entry]:
        """Give the first entries behind a mark."""
        with told(self.journal, "read"), self.journal.open("rb") as file:
            file.seek(mark.position)
            lines = [line for line in islice(file, count) if line.endswith(b"\n")]
        return self._entries(lines, mark)

    def last(self, mark: Mark) -> Entry | None:
        """Give the last entry behind a mark, read from the end; None where there is none."""
        with told(self.journal, "read"), self.journal.open("rb") as file:
            end, block = file.seek(0, os.SEEK_END), _BLOCK
            while True:
                start = max(mark.position, end - block)
                file.seek(start)
                found = file.read(end - start)
                whole = found[: found.rfind(b"\n") + 1]
                before = whole.rfind(b"\n", 0, -1)
                if before >= 0 or start == mark.position:
                    break
                block *= 2
        line = whole[before + 1 :]
        return self._entry("its last line", line) if line else None

    @contextmanager
    def alone(self, mark: Mark, *, flush: bool) -> Iterator[_FileTurnstile]:
        """Hold the file for an append; others wait."""
        file = self._held()
        try:
            yield _FileTurnstile(self, file, mark, flush=flush or self._sync == "record")
        finally:
            release(file)
            file.close()

    @contextmanager
    def mending(self) -> Iterator[FileMending]:
        """Hold the file to look at its lines and to write it anew."""
        file = self._held()
        try:
            yield FileMending(self.folder, file)
        finally:
            release(file)
            file.close()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the session for a turn. Raises SessionError while another turn is running."""
        path = self.folder / _TURN
        with ExitStack() as stack:
            with as_session_errors(), told(path, "lock"):
                stack.enter_context(holding(path, what="a turn of this session"))
            yield

    def runs(self) -> FileStore:
        """Give the folder of the runs of the session's turns."""
        return FileStore(self.folder / RUNS, sync=self._sync, redact=self.redact)

    def read(self, file: FileIO, mark: Mark) -> Appended:
        """Give the whole lines that were appended to the open file since."""
        if os.pread(file.fileno(), len(mark.first), 0) != mark.first:
            raise SessionError(
                f"{self.journal} was replaced since it was opened, as by a repair; open the "
                "session again"
            )
        if os.fstat(file.fileno()).st_size < mark.position:
            raise SessionError(
                f"{self.journal} got shorter since it was opened: something else than mergepoint "
                "changed it; restore it, or open the session again to go on with what is left"
            )
        file.seek(mark.position)
        found = file.readall()
        found = found[: found.rfind(b"\n") + 1]
        lines = [line + b"\n" for line in found.split(b"\n")[:-1]]
        end = Mark(mark.position + len(found), mark.number + len(lines), mark.first)
        return Appended(tuple(self._entries(lines, mark)), end)

    def _held(self) -> FileIO:
        while True:
            with told(self.journal, "write to"):
                file = os.fdopen(os.open(self.journal, os.O_RDWR | os.O_APPEND), "r+b", buffering=0)
            try:
                with as_session_errors():
                    hold(file, self.journal, what="the session", patience=PATIENCE)
            except SessionError as error:
                file.close()
                if not isinstance(error.__cause__, Replaced) or not self.journal.exists():
                    raise
            except BaseException:
                file.close()
                raise
            else:
                return file

    def _entries(self, lines: Iterable[bytes], mark: Mark) -> list[Entry]:
        numbered = enumerate(lines, mark.number + 1)
        return [self._entry(f"line {number}", line) for number, line in numbered]

    def _entry(self, where: str, line: bytes) -> Entry:
        return entry_at(self.place, where, self._decoded(where, line))

    def _decoded(self, where: str, line: bytes) -> dict[str, object]:
        try:
            return decode(line)
        except (ValueError, RecursionError) as error:
            raise SessionError(
                f"{self.journal}, {where}: {error}; the file was changed after it was "
                f"written. {REPAIR}"
            ) from error


class _FileTurnstile:
    """The file while it is held."""

    def __init__(self, log: FileLog, file: FileIO, mark: Mark, *, flush: bool) -> None:
        self._log = log
        self._file = file.fileno()
        self._flush = flush
        with told(log.journal, "read"):
            self.found = log.read(file, mark)
            self._mark = self.found.mark
            if os.fstat(self._file).st_size > self._mark.position:  # a kill left a part of a line
                os.ftruncate(self._file, self._mark.position)

    def append(self, entries: Sequence[Entry]) -> Mark:
        """Write the entries, a line each, in one write; give the mark behind them."""
        with as_session_errors():
            lines = b"".join(encode(entry_to_plain(entry)) for entry in entries)
        file, mark = self._file, self._mark
        try:
            written = os.write(file, lines)
            if written < len(lines):
                raise OSError(errno.ENOSPC, f"only {written} of {len(lines)} bytes went in")
            if self._flush:
                os.fsync(file)
        except OSError as error:
            with suppress(OSError):  # else the next writer does it
                os.ftruncate(file, mark.position)
            raise SessionError(
                f"cannot write to {self._log.place}: {error.strerror}; what it held before is "
                "kept, the new is not. Make room or mend the disk, then try again"
            ) from error
        self._mark = Mark(mark.position + len(lines), mark.number + len(entries), mark.first)
        return self._mark

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Write the snapshot in place of the last one; nobody overtakes it with an older one."""
        write_snapshot(self._log.folder, snapshot(self._mark))
