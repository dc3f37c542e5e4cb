"""`mergepoint session check`: everything that is wrong with sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli import complete
from mergepoint.apps.cli.errors import WRONG, CommandError
from mergepoint.apps.cli.options import JsonOption, SessionsOption, TracebackOption
from mergepoint.apps.cli.session.arguments import named, place_of

if TYPE_CHECKING:
    from mergepoint.session.check import Flaw

EXAMPLES = (
    "mergepoint session check last",
    "mergepoint session check --all",
    "mergepoint session check --all --json | jq '.[] | select(.fine | not)'",
)


def check(
    session: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Sessions by id, or 'last'.",
            autocompletion=complete.sessions,
            show_default=False,
        ),
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    sessions: SessionsOption = "sessions",
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Say what is wrong with sessions, line by line; exit code 3 if anything is."""
    from mergepoint.apps.cli.output import put, put_json, tell
    from mergepoint.session.check import check_session

    place = place_of(sessions)
    if bool(session) == every:
        raise CommandError("name the sessions to check, or give --all")
    ids = [one.session_id for one in place.sessions()] if every else session or []
    found = {name: check_session(name, sessions=place) for name in (named(place, n) for n in ids)}
    if json:
        put_json([_facts(name, flaws) for name, flaws in found.items()])
    else:
        for name, flaws in found.items():
            for line in [f"{name}: {flaw}" for flaw in flaws] or [f"{name}: fine"]:
                put(line)
            if flaws:
                tell(f"what can be kept is kept by: mergepoint session repair {name}")
        if not found:
            tell(f"there are no sessions in {sessions}")
    if any(found.values()):
        raise typer.Exit(WRONG)


def _facts(name: str, flaws: list[Flaw]) -> dict[str, object]:
    told = [{"where": one.where, "what": one.what, "loses": one.loses} for one in flaws]
    return {"session_id": name, "fine": not flaws, "flaws": told}
