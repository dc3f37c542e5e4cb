"""`mergepoint session repair`: a session without the lines that cannot be read."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mergepoint.apps.cli.errors import Declined
from mergepoint.apps.cli.options import JsonOption, SessionsOption, TracebackOption
from mergepoint.apps.cli.session.arguments import SessionArgument, named, place_of

EXAMPLES = ("mergepoint session repair trip", "mergepoint session repair trip --yes --json")


def repair(
    session: SessionArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    sessions: SessionsOption = "sessions",
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Write a session anew without the lines that cannot be read, and its snapshot.

    What is left out is kept beside it.
    """
    from mergepoint.apps.cli.output import count, put, put_json, tell
    from mergepoint.session.check import check_session
    from mergepoint.session.repair import repair_session

    place = place_of(sessions)
    name = named(place, session)
    flaws = check_session(name, sessions=place)
    if flaws and not json:
        for flaw in flaws:
            tell(str(flaw))
        if not yes and sys.stdin.isatty() and sys.stderr.isatty():
            lost = sum(flaw.loses for flaw in flaws)
            if not typer.confirm(f"{count(lost, 'line')} would be left out. Go on?", err=True):
                raise Declined("nothing was changed")
    done = repair_session(name, sessions=place)
    if json:
        found = [str(flaw) for flaw in done.flaws]
        put_json({"session_id": name, "kept": done.kept, "flaws": found, "copy": done.copy or None})
        return
    if done.copy:
        put(f"kept as it was in {done.copy}")
    put(f"{name}: {count(done.kept, 'entry').replace('entrys', 'entries')} kept")
