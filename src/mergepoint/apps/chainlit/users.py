"""The users of a session store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from chainlit.user import PersistedUser, User

from mergepoint.apps.chainlit.shown_step import shown_id, stamp
from mergepoint.apps.chainlit.thread_rows import NAME, merged
from mergepoint.session.session_store import Sessions


class Users:
    """Users by identifier, from which the id is derived."""

    def __init__(self, place: Sessions) -> None:
        self._place = place
        self._known: dict[str, dict[str, Any]] = {}

    def find(self, identifier: str) -> PersistedUser | None:
        """Return a user, or None if they never logged in."""
        self._look(user_id(identifier))
        found = self._known.get(user_id(identifier))
        return None if found is None else PersistedUser(**found)

    def met(self, user: User) -> PersistedUser:
        """Return a user, and store new facts about them."""
        old = self.find(user.identifier)
        metadata = merged(old.metadata if old else {}, user.metadata or {})
        known: dict[str, Any] = {
            "id": user_id(user.identifier),
            "identifier": user.identifier,
            "display_name": user.display_name or (old.display_name if old else None),
            "metadata": metadata,
            "createdAt": old.createdAt if old else stamp(datetime.now(UTC)),
        }
        if self._known.get(known["id"]) != known:
            self._place.beside(NAME).append([{"kind": "user", "data": known}])
            self._known[known["id"]] = known
        return PersistedUser(**known)

    def identifier(self, user: str) -> str | None:
        """Return the identifier of a user id."""
        self._look(user)
        found = self._known.get(user)
        return None if found is None else str(found["identifier"])

    def _look(self, user: str) -> None:
        """Read the stored users, unless this one is known already."""
        if user not in self._known:
            for row in self._place.beside(NAME).rows():
                self._known[row["data"]["id"]] = row["data"]


def user_id(identifier: str) -> str:
    """Return a user's id, which isn't secret."""
    return shown_id(f"user/{identifier}")
