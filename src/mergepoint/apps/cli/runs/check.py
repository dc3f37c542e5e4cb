"""`mergepoint runs check`: whether what is on disk is what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli.complete import journals
from mergepoint.apps.cli.errors import WRONG, CommandError
from mergepoint.apps.cli.home import JOURNAL, TRANSCRIPT
from mergepoint.apps.cli.options import JsonOption, OutOption, StoreOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.apps.cli.home import Home
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.record.check import Problem

EXAMPLES = (
    "mergepoint runs check last",
    "mergepoint runs check --all --json | jq -r '.[].problems[].problem'",
)


def check(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Runs by id or folder, or 'last'.",
            metavar="RUN",
            autocompletion=journals,
            show_default=False,
        ),
    ] = [],  # noqa: B006  (typer makes a new list for each call)
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="Every run in DIR.", show_default=False)
    ] = False,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Read runs as they were written, and say everything that is wrong, with file and line.

    Looked at are the checksum of every line, the form of header and records, that each record
    belongs to the run, and that transcript.json says the same. Code 3 where something is wrong.
    """
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.output import put_json, tell

    homes = Homes.at(out, store)
    found = {home: _problems(home) for home in _named(runs, homes, every=all_)}
    if json:
        put_json([_facts(*one) for one in found.items()])
    else:
        for one in found.items():
            _tell(*one)
        if not found:
            tell(f"there are no runs in {homes}")
    if any(found.values()):
        raise typer.Exit(WRONG)


def _named(runs: Sequence[str], homes: Homes, *, every: bool) -> list[Home]:
    if bool(runs) == every:
        raise CommandError("name the runs to check, or give --all")
    return homes.all() if every else [homes.find(run) for run in runs]


def _problems(home: Home) -> list[Problem]:
    from mergepoint.record.check import check_rows, check_run

    if home.folder is None:
        return check_rows(home.rows, home.run_id)
    return check_run(home.folder, journal=JOURNAL, transcript=TRANSCRIPT)


def _facts(home: Home, problems: list[Problem]) -> dict[str, object]:
    return {
        "run_id": home.run_id,
        "folder": None if home.folder is None else str(home.folder),
        "fine": not problems,
        "problems": [
            {"file": str(one.file), "line": one.line, "problem": one.what} for one in problems
        ],
    }


def _tell(home: Home, problems: list[Problem]) -> None:
    from mergepoint.apps.cli.output import put, tell

    if not problems:
        put(f"{home.run_id}: fine")
    for problem in problems:
        put(str(problem))
    if problems and home.folder is not None:
        tell(f"what can be kept is kept by: mergepoint runs repair {home.name}")
