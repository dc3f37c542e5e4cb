"""Listing: the threads of a place in pages, the one that was written last first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mergepoint.apps.chainlit.rows import NAME, Kept
from mergepoint.apps.chainlit.shown import moment_of, stamp
from mergepoint.core.errors import SessionError
from mergepoint.session.sessions import SessionBrief, Sessions


@dataclass(frozen=True, slots=True)
class Listed:
    """A thread in a list."""

    session_id: str
    updated_at: datetime
    name: str
    kept: Kept

    @property
    def cursor(self) -> str:
        """Give the place in the list, which stays where it is when a thread is deleted."""
        return f"{stamp(self.updated_at)} {self.session_id}"


def listed(
    place: Sessions,
    *,
    owner: str | None,
    owner_of: Callable[[Kept], str | None],
    search: str | None = None,
    feedback: int | None = None,
) -> list[Listed]:
    """Give the threads of an owner, or all, in which the words stand and that were judged so."""
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
    """Give the threads behind a cursor, and whether there are more."""
    if cursor:
        moment, _, session = cursor.partition(" ")
        last = (moment_of(moment), session)
        found = [one for one in found if (one.updated_at, one.session_id) < last]
    return found[:first], len(found) > first


def _listed(place: Sessions, brief: SessionBrief) -> Listed:
    moment = brief.updated_at or datetime.min.replace(tzinfo=UTC)
    try:
        kept = Kept.of(place.beside(NAME, brief.session_id).rows())
    except SessionError as error:
        return Listed(brief.session_id, moment, f"⚠ {error}", Kept())
    if brief.problem:
        return Listed(brief.session_id, moment, f"⚠ cannot be read: {brief.session_id}", kept)
    return Listed(
        brief.session_id, moment, kept.thread.get("name") or brief.title or "(nothing said)", kept
    )


def _holds(place: Sessions, one: Listed, words: str) -> bool:
    """Say whether words stand in a thread's name or in what was said."""
    if words in one.name.casefold():
        return True
    try:
        said = place.open(one.session_id).get_messages()
    except SessionError:
        return False
    return any(words in message.content.casefold() for message in said)
