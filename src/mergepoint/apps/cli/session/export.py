"""`mergepoint session export`: the whole session as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.options import SessionsOption, TracebackOption
from mergepoint.apps.cli.session.arguments import SessionArgument, named, place_of

EXAMPLES = (
    "mergepoint session export last > session.yaml",
    "mergepoint session export last --to session.yaml",
)


def export(
    session: SessionArgument,
    *,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A new file.", show_default="stdout")
    ] = None,
    sessions: SessionsOption = "sessions",
    traceback: TracebackOption = False,
) -> None:
    """Give a session as YAML, in the documented schema, without leaving anything out."""
    from mergepoint.apps.cli.output import put, tell
    from mergepoint.record.whole import write_whole

    place = place_of(sessions)
    text = place.open(named(place, session)).export()
    if to is None:
        put(text.rstrip("\n"))
        return
    if to.exists():
        raise CommandError(f"{to} is there already; take it away, or name another file")
    write_whole(to, text.encode())
    tell(f"written to {to}")
