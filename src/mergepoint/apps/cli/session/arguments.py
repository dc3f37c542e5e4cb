"""Arguments that the session commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli import complete
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.homes import LAST

if TYPE_CHECKING:
    from mergepoint.session.sessions import Sessions

SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A session's id; 'last' is the one that was written last.",
        autocompletion=complete.sessions,
    ),
]


def place_of(sessions: str) -> Sessions:
    """Give what keeps the sessions. Raises what `sessions_at` does."""
    from mergepoint.session.sessions_at import sessions_at

    return sessions_at(sessions)


def named(place: Sessions, session: str) -> str:
    """Give the id of a session that is named. Raises CommandError where there is none yet."""
    if session != LAST:
        return session
    there = place.sessions()
    if not there:
        raise CommandError("there are no sessions yet")
    return there[0].session_id
