"""Protocols of session storage: a log of lines, and sidecar rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mergepoint.core.errors import SessionError
from mergepoint.journal.lines import JournalError
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import Store
from mergepoint.session.entries import FORMAT, Entry, SessionHeader, entry_from_plain

REPAIR = (
    "mergepoint.session.repair_session keeps every line that can be read, and beside it what there "
    "was"
)
PATIENCE = 30.0
"""Seconds that a writer waits for others, each of which writes for milliseconds."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in a log: its bytes or rows, its entries; `first` identifies the log."""

    position: int
    number: int
    first: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """The entries that were appended since a mark, and the mark after them."""

    entries: tuple[Entry, ...]
    mark: Mark


class Turnstile(Protocol):
    """A log that is locked by one writer for an append."""

    @property
    def found(self) -> Appended:
        """Return the entries that others have appended; an unfinished write is cut off."""
        ...

    def append(self, entries: Sequence[Entry]) -> Mark:
        """Append entries, all or none; return the mark after them."""
        ...

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Store a snapshot, if the log has a place for one."""
        ...


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log: its place, and its bytes, or None if it is missing."""

    where: str
    data: bytes | None


class LockedLog(Protocol):
    """A log that is locked for a rewrite."""

    @property
    def lines(self) -> Sequence[LogLine]:
        """Return all lines, the header first; the last one may be unfinished."""
        ...

    def rewrite(self, header: SessionHeader, entries: Sequence[Entry]) -> str:
        """Replace the lines atomically; return the place of the old ones."""
        ...

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Store a snapshot of all lines, if the log has a place for one."""
        ...

    def snapshot(self) -> tuple[int, str] | None:
        """Return the number of bytes that the snapshot covers, and its text, or None."""
        ...


class SessionLog(Protocol):
    """The log of one session. Each method raises SessionError, with the fix."""

    @property
    def place(self) -> str:
        """Return the place of the log for errors."""
        ...

    @property
    def redact(self) -> Redact | None:
        """Return the hook that changes texts on arrival."""
        ...

    def begin(self) -> tuple[SessionHeader, Mark]:
        """Return the header of the session, and the mark after it."""
        ...

    def since(self, mark: Mark) -> Appended:
        """Return the entries that were appended since, without waiting."""
        ...

    def alone(self, mark: Mark, *, flush: bool) -> AbstractContextManager[Turnstile]:
        """Lock the log for an append, and read what follows the mark; others wait.

        With `flush`, the appended entries survive a power failure.
        """
        ...

    def mending(self) -> AbstractContextManager[LockedLog]:
        """Lock the log to check and rewrite its lines; others wait."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Lock the session for a turn. Raises SessionError while another turn is running."""
        ...

    def runs(self) -> Store:
        """Return the store of the runs of the session's turns."""
        ...


def entry_at(place: str, where: str, plain: dict[str, Any]) -> Entry:
    """Return the entry of a line or record. Raises SessionError with the place if it is invalid."""
    try:
        return entry_from_plain(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SessionError(
            f"{place}, {where} holds something else than {FORMAT} says "
            f"({type(error).__name__}: {error}); docs/reference/session-format.md has the format"
        ) from error


def header_at(place: str, session_id: str, plain: dict[str, Any]) -> SessionHeader:
    """Return a session's header.

    Raises SessionError for a newer format, invalid data, and the header of another session.
    """
    found = plain.get("format")
    if found != FORMAT:
        newer = str(found).startswith(FORMAT.partition("/")[0] + "/")
        way_out = "update mergepoint" if newer else "it is no session; give another place"
        raise SessionError(
            f"{place} is of format {found!r}, this version reads {FORMAT}: {way_out}"
        )
    try:
        header = SessionHeader.from_plain(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SessionError(
            f"{place}: its header holds something else than {FORMAT} says "
            f"({type(error).__name__}: {error}); docs/reference/session-format.md has the format"
        ) from error
    if header.session_id != session_id:
        raise SessionError(
            f"{place} is the journal of session {header.session_id!r}, not of {session_id!r}; "
            "name it as it is"
        )
    return header


@contextmanager
def as_session_errors() -> Iterator[None]:
    """Raise errors of a journal or database as SessionError."""
    try:
        yield
    except JournalError as error:
        raise SessionError(str(error)) from error


# A user interface has rows of its own: the owner of a conversation, its title, ratings of answers.
# They are stored with the session, and deleted with it.


ROWS_FORMAT: Final = "mergepoint.beside/1"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

Row = Mapping[str, Any]


class Sidecar(Protocol):
    """JSON rows that are appended and never changed. Each method raises SessionError."""

    def rows(self) -> Sequence[dict[str, Any]]:
        """Return all rows in the order in which they were appended."""
        ...

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows, all or none; they survive a crash and a power failure.

        Raises SessionError if the session does not exist (any more).
        """
        ...


def checked_name(name: str) -> str:
    """Return the name of an application. Raises SessionError for an invalid file name."""
    if _NAME.fullmatch(name) and name != "journal":
        return name
    raise SessionError(
        f"{name!r} names no application; give 1 to 40 of a to z, digits and '_', but not 'journal'"
    )


def checked_format(place: str, found: object) -> None:
    """Raise SessionError for rows of a newer version or another format."""
    if found != ROWS_FORMAT:
        raise SessionError(
            f"{place} is of format {found!r}, this version reads {ROWS_FORMAT}: update mergepoint"
        )
