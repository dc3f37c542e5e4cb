"""Checks of a session, and the repair of a damaged one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from mergepoint.journal.checked_lines import JournalError, decode
from mergepoint.journal.line_logs import LogLine, Mark
from mergepoint.session.entries import Entry, SessionHeader, SessionMessage
from mergepoint.session.file_sessions import sessions_at
from mergepoint.session.history import SessionState
from mergepoint.session.session_log import LockedLog, entry_at, header_at
from mergepoint.session.session_memory import Snapshot
from mergepoint.session.session_store import Sessions


@dataclass(frozen=True, slots=True)
class Flaw:
    """One problem: where, and what. With `loses`, a repair omits the line."""

    where: str
    what: str
    loses: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Examined:
    """The valid entries of a session's log, and all problems.

    `ends` contains the offset after each valid entry, in order.
    """

    header: SessionHeader | None
    entries: tuple[Entry, ...]
    ends: tuple[int, ...]
    flaws: tuple[Flaw, ...]

    def past(self, header: SessionHeader, *, most: int | None = None) -> SessionState:
        """Return the state after the valid entries, or after the first `most` of them."""
        past = SessionState(header)
        past.take(self.entries[:most])
        return past


def check_session(session_id: str, *, sessions: Path | str | Sessions = "sessions") -> list[Flaw]:
    """Return all problems of a session: of its lines, and of the snapshot.

    Raises SessionError for a newer format, and if the session does not exist.
    """
    log = sessions_at(sessions).log(session_id)
    with log.locked(flush=True) as locked:
        found = examined(log.place, session_id, locked.lines())
        return [*found.flaws, *_flaws_of_snapshot(locked, found)]


def examined(place: str, session_id: str, lines: Sequence[LogLine]) -> Examined:
    """Check every line, including those after a damaged one.

    Raises SessionError for a header of a newer format or of another session.
    """
    flaws: list[Flaw] = []
    header = _header(place, session_id, lines[0] if lines else LogLine("line 1", None), flaws)
    entries: dict[str, Entry] = {}
    ends: list[int] = []
    end = len(lines[0].data or b"") if lines else 0
    for line in lines[1:]:
        end += len(line.data or b"")
        entry = _entry(place, line, flaws)
        # The first counts: a later line with its id is a copy, which others have never read.
        if entry is not None and entry.id in entries:
            flaws.append(Flaw(line.where, f"a second entry with the id {entry.id!r}", loses=True))
        elif entry is not None:
            entries[entry.id] = entry
            ends.append(end)
    return Examined(header, tuple(entries.values()), tuple(ends), tuple(flaws))


def _header(place: str, session_id: str, line: LogLine, flaws: list[Flaw]) -> SessionHeader | None:
    try:
        plain = decode(line.data or b"")
    except (ValueError, RecursionError) as error:
        flaws.append(Flaw(line.where, f"the header, {error}; a repair writes a new one"))
        return None
    return header_at(place, session_id, plain)


def _entry(place: str, line: LogLine, flaws: list[Flaw]) -> Entry | None:
    if line.data is None:
        flaws.append(Flaw(line.where, "it is missing", loses=True))
    elif not line.data.endswith(b"\n"):
        rest = f"{len(line.data)} bytes of an unfinished write; the next write cuts them off"
        flaws.append(Flaw(line.where, rest))
    else:
        try:
            return entry_at(place, line.where, decode(line.data))
        except (ValueError, RecursionError) as error:
            what = f"{error}; it was changed after it was written"
            flaws.append(Flaw(line.where, what, loses=True))
        except JournalError as error:
            what = str(error).removeprefix(f"{place}, {line.where} ")
            flaws.append(Flaw(line.where, what, loses=True))
    return None


def _flaws_of_snapshot(locked: LockedLog, found: Examined) -> Iterator[Flaw]:
    """Compare the snapshot with the journal, if the journal is valid."""
    there = locked.snapshot()
    if there is None or found.header is None or any(flaw.loses for flaw in found.flaws):
        return
    position, text = there
    fix = "a repair writes it again"
    number = sum(end <= position for end in found.ends)
    mark = Mark(position, 1 + number, b"")
    # As its writer computed it: from the entries up to the position in its first line.
    expected = Snapshot().recent(found.past(found.header, most=number), mark)
    if text != expected:
        yield Flaw("the snapshot", f"it differs from the journal; {fix}")
    elif any(
        isinstance(entry, SessionMessage) and entry.role == "assistant"
        for entry in found.entries[number:]
    ):
        yield Flaw("the snapshot", f"an answer that came after it is not in it; {fix}")


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair: entries that were kept, problems, and the copy of the old log.

    `copy` is empty if nothing was omitted.
    """

    kept: int
    flaws: tuple[Flaw, ...]
    copy: str = ""


def repair_session(session_id: str, *, sessions: Path | str | Sessions = "sessions") -> Repaired:
    """Rewrite a session without its unreadable lines, and write its snapshot.

    Each line has its own checksum, so those after a damaged one are kept. Programs that have the
    session open must open it again. An unreadable header is replaced by a new one. If nothing is
    damaged, only the snapshot is written.

    Raises SessionError for a session of a newer format, and if writing fails.
    """
    log = sessions_at(sessions).log(session_id)
    with log.locked(flush=True) as locked:
        found = examined(log.place, session_id, locked.lines())
        header = found.header or _new_header(session_id, found)
        if found.header is None or any(flaw.loses for flaw in found.flaws):
            # Counted in the header: programs that have the session open compare its bytes, and
            # notice that their position no longer counts.
            header = replace(header, repaired=header.repaired + 1)
            copy, mark = locked.replace(header, found.entries)
        else:
            copy, mark = "", locked.end()
        past = found.past(header)
        locked.write_snapshot(lambda: Snapshot().recent(past, mark))
    return Repaired(len(found.entries), found.flaws, copy)


def _new_header(session_id: str, found: Examined) -> SessionHeader:
    """Return a header to replace a lost one; its time is that of the first entry."""
    began = min((entry.created_at for entry in found.entries), default=datetime.now(UTC))
    return SessionHeader(session_id=session_id, created_at=began)
