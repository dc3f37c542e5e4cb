"""SessionLog: where the entries of one session are written, by many and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from mergepoint.core.errors import SessionError
from mergepoint.record.lines import JournalError
from mergepoint.record.redact import Redact
from mergepoint.record.store import Store
from mergepoint.session.entry import FORMAT, Entry, SessionHeader, entry_from_plain

REPAIR = (
    "mergepoint.session.repair.repair_session keeps every line that can be read, and beside it "
    "what there was"
)
PATIENCE = 30.0
"""Seconds that a writer waits for others, each of which writes for milliseconds."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a log was read: its bytes or rows, its entries; `first` tells which log it was."""

    position: int
    number: int
    first: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """What was appended since a mark, and the mark behind it."""

    entries: tuple[Entry, ...]
    mark: Mark


class Turnstile(Protocol):
    """A log that one writer holds for the moment of an append."""

    @property
    def found(self) -> Appended:
        """Give what others had appended; what a kill left unfinished is cut off."""
        ...

    def append(self, entries: Sequence[Entry]) -> Mark:
        """Write entries behind everything else: all of them, or none; give the mark behind them."""
        ...

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Keep a snapshot, where the log has a place for one."""
        ...


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log as it is kept: where it stands, its bytes; None for one that is missing."""

    where: str
    data: bytes | None


class Mending(Protocol):
    """A log that is held to be written anew."""

    @property
    def lines(self) -> Sequence[Line]:
        """Give all lines, the header first; a last one without its end was not written whole."""
        ...

    def rewrite(self, header: SessionHeader, entries: Sequence[Entry]) -> str:
        """Put others in place of the lines, all at once; say where those are kept that were."""
        ...

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Keep a snapshot of all lines, where the log has a place for one."""
        ...

    def snapshot(self) -> tuple[int, str] | None:
        """Give how many bytes of the log its snapshot is of, and its text; None without one."""
        ...


class SessionLog(Protocol):
    """The log of one session. Each method raises SessionError, with the way out."""

    @property
    def place(self) -> str:
        """Give where it is, as errors name it."""
        ...

    @property
    def redact(self) -> Redact | None:
        """Give the hook that changes texts as they come in."""
        ...

    def begin(self) -> tuple[SessionHeader, Mark]:
        """Give what the session began with, and the mark behind it."""
        ...

    def since(self, mark: Mark) -> Appended:
        """Give what was appended since, without waiting for anyone."""
        ...

    def alone(self, mark: Mark, *, flush: bool) -> AbstractContextManager[Turnstile]:
        """Hold the log for an append, and look at what came behind the mark; others wait.

        With `flush` what is appended outlives a loss of power.
        """
        ...

    def mending(self) -> AbstractContextManager[Mending]:
        """Hold the log to look at its lines and to write it anew; others wait."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Hold the session for a turn. Raises SessionError while another turn is running."""
        ...

    def runs(self) -> Store:
        """Give where the runs of the session's turns keep their journals."""
        ...


def entry_at(place: str, where: str, plain: dict[str, Any]) -> Entry:
    """Give the entry of a line or record. Raises SessionError that says where it is none."""
    try:
        return entry_from_plain(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SessionError(
            f"{place}, {where} holds something else than {FORMAT} says "
            f"({type(error).__name__}: {error}); docs/sessions.md tells what belongs there"
        ) from error


def header_at(place: str, session_id: str, plain: dict[str, Any]) -> SessionHeader:
    """Give a session's header.

    Raises SessionError for one of a newer format, for something else, and for that of another
    session.
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
            f"({type(error).__name__}: {error}); docs/sessions.md tells what belongs there"
        ) from error
    if header.session_id != session_id:
        raise SessionError(
            f"{place} is the journal of session {header.session_id!r}, not of {session_id!r}; "
            "name it as it is"
        )
    return header


@contextmanager
def as_session_errors() -> Iterator[None]:
    """Let what a journal or database has to say be an error of the session."""
    try:
        yield
    except JournalError as error:
        raise SessionError(str(error)) from error
