"""Repair: what of a damaged session can be read is kept, and what it was is kept beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from mergepoint.session.check import Examined, Flaw, examined
from mergepoint.session.entry import SessionHeader
from mergepoint.session.sessions import Sessions
from mergepoint.session.sessions_at import sessions_at
from mergepoint.session.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair came to: entries that were kept, what was wrong, where the old log is.

    `copy` is empty where nothing was left out.
    """

    kept: int
    flaws: tuple[Flaw, ...]
    copy: str = ""


def repair_session(session_id: str, *, sessions: Path | str | Sessions = "sessions") -> Repaired:
    """Write a session anew without the lines that cannot be read, and its snapshot.

    Each line is under a checksum of its own, so those behind a damaged one are kept; who has the
    session open has to open it again. A header that cannot be read is written anew. Where nothing
    is damaged the snapshot alone is written.

    Raises SessionError for a session of a newer format, and where nothing can be written.
    """
    log = sessions_at(sessions).log(session_id)
    with log.mending() as held:
        found = examined(log.place, session_id, held.lines)
        header = found.header or _header(session_id, found)
        copy = ""
        if found.header is None or any(flaw.loses for flaw in found.flaws):
            header = replace(header, repaired=header.repaired + 1)
            copy = held.rewrite(header, found.entries)
        past = found.past(header)
        held.settle(lambda mark: Snapshot().recent(past, mark))
    return Repaired(len(found.entries), found.flaws, copy)


def _header(session_id: str, found: Examined) -> SessionHeader:
    """Give a header in place of a lost one: a session began no later than its first entry."""
    began = min((entry.created_at for entry in found.entries), default=datetime.now(UTC))
    return SessionHeader(session_id=session_id, created_at=began)
