"""The log of a session, as entries over a journal's lines, and an application's rows with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from mergepoint.core.errors import SessionError
from mergepoint.journal.checked_lines import (
    JournalError,
    check_format,
    encode,
    parse_line,
    write_whole,
)
from mergepoint.journal.line_logs import (
    START,
    LineLog,
    LockedLines,
    LogLine,
    Mark,
    decode_at,
    decode_line,
)
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import Store
from mergepoint.session.entries import (
    FORMAT,
    Entry,
    SessionHeader,
    entry_from_plain,
    entry_to_plain,
)

REPAIR = (
    "restore it from a backup, or repair it: mergepoint.session.repair_session keeps every line "
    "that can be read, and a copy of the damaged session"
)


@contextmanager
def as_session_errors() -> Iterator[None]:
    """Raise errors of a journal or database as SessionError."""
    try:
        yield
    except JournalError as error:
        raise SessionError(str(error)) from error


class SessionLog:
    """The log of one session: its header, then its entries. Each method raises SessionError.

    Args:
        session_id: The id of the session.
        lines: The lines of the log.
        redact: The hook that changes texts on arrival.
        runs: The store of the runs of the session's turns.
        lock_turn: Return a context manager that locks the session for a turn.
        snapshot: The file of the snapshot, or None if the log has no place for one.
    """

    def __init__(
        self,
        session_id: str,
        lines: LineLog,
        *,
        redact: Redact | None,
        runs: Store,
        lock_turn: Callable[[], AbstractContextManager[None]],
        snapshot: Path | None = None,
    ) -> None:
        self.session_id = session_id
        self.redact = redact
        self.runs = runs
        self.snapshot = snapshot
        self._lines = lines
        self._lock_turn = lock_turn

    @property
    def place(self) -> str:
        """Return the place of the log, for errors."""
        return self._lines.place

    def exists(self) -> bool:
        """Return whether the log exists, even if it is unreadable."""
        with as_session_errors():
            return self._lines.exists()

    def create(self, header: SessionHeader, entries: Iterable[Entry]) -> bool:
        """Create the log with entries, all or none. Return False if it exists."""
        with as_session_errors():
            return self._lines.create(_encoded(header, entries))

    def begin(self) -> tuple[SessionHeader, Mark]:
        """Return the header of the session, and the mark after it."""
        with as_session_errors():
            lines, mark = self._lines.since(START, most=1)
            if not lines:
                raise SessionError(
                    f"{self.place} does not hold a whole header, with which every session begins: "
                    f"it was damaged, and is not taken for an empty one; {REPAIR}"
                )
            plain = decode_line(self._lines, 1, lines[0])
            return header_at(self.place, self.session_id, plain), mark

    def since(self, mark: Mark, *, most: int | None = None) -> tuple[list[Entry], Mark]:
        """Return the entries after a mark, up to `most`, and the mark after them."""
        with as_session_errors():
            lines, end = self._lines.since(mark, most=most)
            return self._entries(mark, lines), end

    def last(self) -> Entry | None:
        """Return the last entry of a log that has entries."""
        with as_session_errors():
            line = self._lines.last()
            if line is None:
                return None
            where = "its last line"
            return entry_at(self.place, where, decode_at(self._lines, where, line))

    @contextmanager
    def locked(self, *, flush: bool) -> Iterator[LockedLog]:
        """Lock the log to append entries, or to check and replace them; others wait.

        With `flush`, the appended entries survive a power failure.
        """
        with as_session_errors(), self._lines.locked(flush=flush) as lines:
            yield LockedLog(self, lines)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lock the session for a turn. Raises SessionError while another turn is running."""
        with ExitStack() as stack:
            with as_session_errors():
                stack.enter_context(self._lock_turn())
            yield

    def _entries(self, mark: Mark, lines: Sequence[bytes]) -> list[Entry]:
        return [
            entry_at(self.place, self._lines.where(n), decode_line(self._lines, n, line))
            for n, line in enumerate(lines, mark.number + 1)
        ]


class LockedLog:
    """The log of a session while one writer has locked it."""

    def __init__(self, log: SessionLog, lines: LockedLines) -> None:
        self._log = log
        self._lines = lines

    def since(self, mark: Mark) -> tuple[list[Entry], Mark]:
        """Return the entries of others and the end, and cut off an unfinished write."""
        lines, end = self._lines.since(mark)
        return self._log._entries(mark, lines), end

    def append(self, mark: Mark, entries: Sequence[Entry]) -> Mark:
        """Append entries at the end of the log, all or none, and return the new end."""
        return self._lines.append(mark, [encode(entry_to_plain(entry)) for entry in entries])

    def lines(self) -> list[LogLine]:
        """Return all lines, the header first; the last one may be unfinished."""
        return self._lines.whole()

    def replace(self, header: SessionHeader, entries: Sequence[Entry]) -> tuple[str, Mark]:
        """Replace the lines atomically. Return the place of the old ones, and the new end."""
        return self._lines.replace(_encoded(header, entries))

    def end(self) -> Mark:
        """Return the end of the log, and cut off an unfinished write."""
        return self._lines.since(START)[1]

    def write_snapshot(self, text: Callable[[], str]) -> None:
        """Replace the snapshot, if the log has a place for one."""
        # Under the lock of the log: an older snapshot of another writer cannot replace this one.
        path = self._log.snapshot
        if path is None:
            return
        try:
            write_whole(path, text().encode(), flush=False)
        except OSError as error:
            raise SessionError(
                f"cannot write {path}: {error.strerror}. Nothing is lost: the journal contains "
                "everything. Free space on the disk, and the next turn writes the snapshot"
            ) from error

    def snapshot(self) -> tuple[int, str] | None:
        """Return the number of bytes that the snapshot covers, and its text, or None."""
        if self._log.snapshot is None:
            return None
        try:
            text = self._log.snapshot.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            # Differs from every snapshot, so that a check reports it and a repair replaces it.
            return 0, ""
        # `_ABOUT` of session_memory writes this number into the first line.
        found = re.search(r"\d+", text[: text.find("\n")])
        return int(found[0]) if found else 0, text


def _encoded(header: SessionHeader, entries: Iterable[Entry]) -> list[bytes]:
    return [encode(header.to_plain()), *(encode(entry_to_plain(entry)) for entry in entries)]


def entry_at(place: str, where: str, plain: dict[str, Any]) -> Entry:
    """Return the entry of a line. Raises JournalError with its place if it is invalid."""
    return parse_line(place, where, FORMAT, entry_from_plain, plain)


def header_at(place: str, session_id: str, plain: dict[str, Any]) -> SessionHeader:
    """Return a session's header.

    Raises JournalError for a newer format, invalid data, and the header of another session.
    """
    check_format(place, plain.get("format"), FORMAT)
    header = parse_line(place, "its header", FORMAT, SessionHeader.from_plain, plain)
    if header.session_id != session_id:
        raise JournalError(
            f"{place} is the journal of session {header.session_id!r}, not of {session_id!r}; "
            f"rename it to {header.session_id!r}"
        )
    return header


# A user interface has rows of its own: the owner of a conversation, its title, ratings of answers.
# They are stored with the session, and deleted with it.

ROWS_FORMAT: Final = "mergepoint.sidecar/1"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

Row = Mapping[str, Any]


class Sidecar:
    """JSON rows that are appended and never changed. Each method raises SessionError."""

    def __init__(self, lines: LineLog) -> None:
        self._lines = lines

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows in the order in which they were appended."""
        log = self._lines
        with as_session_errors():
            lines = log.since()[0] if log.exists() else []
            plain = [decode_line(log, number, line) for number, line in enumerate(lines, 1)]
            if plain:
                check_format(log.place, plain[0].get("format"), ROWS_FORMAT)
        return plain[1:]

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows, all or none; they survive a crash and a power failure.

        Raises SessionError if the session does not exist (any more).
        """
        with as_session_errors():
            lines = [encode(dict(row)) for row in rows]
            header = encode({"format": ROWS_FORMAT})
            # `create` returns False if another process has created the rows in between.
            if not lines or (not self._lines.exists() and self._lines.create([header, *lines])):
                return
            with self._lines.locked(flush=True) as locked:
                end = locked.since(START)[1]
                # Without a complete line there is no header: `since` has cut off an unfinished one.
                locked.append(end, lines if end.number else [header, *lines])


def check_sidecar_name(name: str) -> str:
    """Return the name of an application. Raises SessionError for an invalid file name."""
    # `journal.jsonl` is the log of the session itself.
    if _NAME.fullmatch(name) and name != "journal":
        return name
    raise SessionError(
        f"{name!r} names no application; use 1 to 40 of a to z, digits and '_', but not 'journal'"
    )
