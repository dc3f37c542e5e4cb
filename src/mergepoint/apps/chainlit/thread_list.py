"""The thread list in pages, most recently changed first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mergepoint.apps.chainlit.shown_step import moment_of, stamp, without_paths
from mergepoint.apps.chainlit.thread_rows import NAME, ThreadRows
from mergepoint.core.errors import SessionError
from mergepoint.session.session_store import SessionBrief, Sessions


@dataclass(frozen=True, slots=True)
class Listed:
    """A thread in the list."""

    session_id: str
    updated_at: datetime
    name: str
    kept: ThreadRows

    @property
    def cursor(self) -> str:
        """Return the position in the list, which stays valid when other threads are deleted."""
        return f"{stamp(self.updated_at)} {self.session_id}"


def listed(
    place: Sessions,
    *,
    owner: str | None,
    owner_of: Callable[[ThreadRows], str | None],
    search: str | None = None,
    feedback: int | None = None,
) -> list[Listed]:
    """Return the threads of an owner, or all, filtered by text and feedback."""
    found = []
    for brief in place.sessions():
        one = _listed(place, brief)
        if owner is not None and owner_of(one.kept) != owner:
            continue
        judged = {given["value"] for given in one.kept.feedback.values()}
        if feedback is not None and feedback not in judged:
            continue
        if search and not _holds(place, one, search.casefold()):
            continue
        found.append(one)
    return sorted(found, key=lambda one: (one.updated_at, one.session_id), reverse=True)


def page(
    found: Sequence[Listed], *, first: int, cursor: str | None
) -> tuple[Sequence[Listed], bool]:
    """Return the threads after a cursor, and whether there are more."""
    if cursor:
        moment, _, session = cursor.partition(" ")
        last = (moment_of(moment), session)
        found = [one for one in found if (one.updated_at, one.session_id) < last]
    return found[:first], len(found) > first


def _listed(place: Sessions, brief: SessionBrief) -> Listed:
    moment = brief.updated_at or datetime.min.replace(tzinfo=UTC)
    try:
        kept = ThreadRows.of(place.beside(NAME, brief.session_id).rows())
    except SessionError as error:
        return Listed(brief.session_id, moment, f"⚠ {without_paths(str(error))}", ThreadRows())
    if brief.problem:
        return Listed(brief.session_id, moment, f"⚠ cannot be read: {brief.session_id}", kept)
    return Listed(
        brief.session_id, moment, kept.thread.get("name") or brief.title or "(nothing said)", kept
    )


def _holds(place: Sessions, one: Listed, words: str) -> bool:
    """Return whether a thread's name or messages contain the words."""
    if words in one.name.casefold():
        return True
    try:
        said = place.open(one.session_id).get_messages()
    except SessionError:
        return False
    return any(words in message.content.casefold() for message in said)
