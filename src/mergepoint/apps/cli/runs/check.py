"""`mergepoint runs check`: whether what is on disk is what was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli.complete import journals
from mergepoint.apps.cli.errors import WRONG, CommandError
from mergepoint.apps.cli.options import JsonOption, OutOption, TracebackOption

if TYPE_CHECKING:
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
            metavar="[RUN]...",
            autocompletion=journals,
            show_default=False,
        ),
    ] = [],  # noqa: B006  (typer makes a new list for each call)
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="Every run in DIR.", show_default=False)
    ] = False,
    out: OutOption = Path("runs"),
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Read runs as they are on disk, and say everything that is wrong, with file and line.

    Looked at are the checksum of every line, the form of header and records, that each record
    belongs to the run, and that transcript.json says the same. Code 3 where something is wrong.
    """
    from mergepoint.apps.cli.folders import JOURNAL, TRANSCRIPT
    from mergepoint.apps.cli.output import put_json, tell
    from mergepoint.record.check import check_run

    found = {
        folder: check_run(folder, journal=JOURNAL, transcript=TRANSCRIPT)
        for folder in _folders(runs, out, every=all_)
    }
    if json:
        put_json([_facts(*one) for one in found.items()])
    else:
        for one in found.items():
            _tell(*one)
        if not found:
            tell(f"there are no runs in {out}")
    if any(found.values()):
        raise typer.Exit(WRONG)


def _folders(runs: Sequence[str], out: Path, *, every: bool) -> list[Path]:
    from mergepoint.apps.cli.folders import find_run, run_folders

    if bool(runs) == every:
        raise CommandError("name the runs to check, or give --all")
    return run_folders(out) if every else [find_run(run, out) for run in runs]


def _facts(folder: Path, problems: list[Problem]) -> dict[str, object]:
    return {
        "run_id": folder.name,
        "folder": str(folder),
        "fine": not problems,
        "problems": [
            {"file": str(one.file), "line": one.line, "problem": one.what} for one in problems
        ],
    }


def _tell(folder: Path, problems: list[Problem]) -> None:
    from mergepoint.apps.cli.folders import name_of
    from mergepoint.apps.cli.output import put, tell

    if not problems:
        put(f"{folder.name}: fine")
    for problem in problems:
        put(str(problem))
    if problems:
        tell(f"what can be kept is kept by: mergepoint runs repair {name_of(folder)}")
