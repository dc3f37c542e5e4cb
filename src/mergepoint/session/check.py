"""Check: everything that is wrong with a session where it is kept, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mergepoint.core.errors import SessionError
from mergepoint.record.lines import decode
from mergepoint.session.entry import Entry, SessionHeader
from mergepoint.session.log import Line, Mark, Mending, entry_at, header_at
from mergepoint.session.message import SessionMessage
from mergepoint.session.past import Past
from mergepoint.session.sessions import Sessions
from mergepoint.session.sessions_at import sessions_at
from mergepoint.session.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong: where, and what. With `loses` a repair leaves the line out."""

    where: str
    what: str
    loses: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Examined:
    """What a session's log holds that is right, and all that is wrong with it.

    `ends` are the bytes of the log up to the end of each good entry, in order.
    """

    header: SessionHeader | None
    entries: tuple[Entry, ...]
    ends: tuple[int, ...]
    flaws: tuple[Flaw, ...]

    def past(self, header: SessionHeader, *, most: int | None = None) -> Past:
        """Give what the good entries come to, or the first of them."""
        past = Past(header)
        past.take(self.entries[:most])
        return past


def check_session(session_id: str, *, sessions: Path | str | Sessions = "sessions") -> list[Flaw]:
    """Give everything that is wrong with a session: its lines, and the snapshot beside them.

    Raises SessionError for one of a newer format, and where there is none to be looked at.
    """
    log = sessions_at(sessions).log(session_id)
    with log.mending() as held:
        found = examined(log.place, session_id, held.lines)
        return [*found.flaws, *_flaws_of_snapshot(held, found)]


def examined(place: str, session_id: str, lines: Sequence[Line]) -> Examined:
    """Look at every line, past those that are wrong.

    Raises SessionError for a header of a newer format or of another session.
    """
    flaws: list[Flaw] = []
    header = _header(place, session_id, lines[0] if lines else Line("line 1", None), flaws)
    entries: dict[str, Entry] = {}
    ends: list[int] = []
    end = len(lines[0].data or b"") if lines else 0
    for line in lines[1:]:
        end += len(line.data or b"")
        entry = _entry(place, line, flaws)
        if entry is not None and entry.id in entries:
            flaws.append(Flaw(line.where, f"a second entry with the id {entry.id!r}", loses=True))
        elif entry is not None:
            entries[entry.id] = entry
            ends.append(end)
    return Examined(header, tuple(entries.values()), tuple(ends), tuple(flaws))


def _header(place: str, session_id: str, line: Line, flaws: list[Flaw]) -> SessionHeader | None:
    try:
        plain = decode(line.data or b"")
    except (ValueError, RecursionError) as error:
        flaws.append(Flaw(line.where, f"the header, {error}; a repair writes a new one"))
        return None
    return header_at(place, session_id, plain)


def _entry(place: str, line: Line, flaws: list[Flaw]) -> Entry | None:
    if line.data is None:
        flaws.append(Flaw(line.where, "it is missing", loses=True))
    elif not line.data.endswith(b"\n"):
        rest = f"{len(line.data)} bytes of a write that did not end; the next write cuts them off"
        flaws.append(Flaw(line.where, rest))
    else:
        try:
            return entry_at(place, line.where, decode(line.data))
        except (ValueError, RecursionError) as error:
            what = f"{error}; it was changed after it was written"
            flaws.append(Flaw(line.where, what, loses=True))
        except SessionError as error:
            what = str(error).removeprefix(f"{place}, {line.where} ")
            flaws.append(Flaw(line.where, what, loses=True))
    return None


def _flaws_of_snapshot(held: Mending, found: Examined) -> Iterator[Flaw]:
    """Compare the snapshot with what the journal gives, where the journal is right."""
    there = held.snapshot()
    if there is None or found.header is None or any(flaw.loses for flaw in found.flaws):
        return
    position, text = there
    anew = "a repair writes it anew"
    number = sum(end <= position for end in found.ends)
    mark = Mark(position, 1 + number, b"")
    expected = Snapshot().recent(found.past(found.header, most=number), mark)
    if text != expected:
        yield Flaw("the snapshot", f"it is not what the journal gives; {anew}")
    elif any(
        isinstance(entry, SessionMessage) and entry.role == "assistant"
        for entry in found.entries[number:]
    ):
        yield Flaw("the snapshot", f"an answer that came after it is not in it; {anew}")
