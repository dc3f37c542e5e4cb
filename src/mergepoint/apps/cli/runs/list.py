"""`mergepoint runs list`: all runs on disk, those that were killed too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.options import JsonOption, OutOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.apps.cli.kept import Kept, Unreadable

EXAMPLES = (
    "mergepoint runs list",
    "mergepoint runs list -n 5",
    "mergepoint runs list --json | jq -r '.[] | select(.state == \"unfinished\").run_id'",
)

_HEAD = ("run", "started", "state", "calls", "tokens", "cost", "tree")
_RIGHT = ("calls", "tokens", "cost")

Row = tuple[str, ...]


def list_(
    *,
    number: Annotated[
        int | None,
        typer.Option("-n", metavar="N", min=1, help="The newest N.", show_default=False),
    ] = None,
    out: OutOption = Path("runs"),
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """List the runs in DIR, the newest first: done, failed, running now, or killed.

    A run is unfinished when its process is gone and a call has no answer; `mergepoint resume`
    goes on with it.
    """
    from mergepoint.apps.cli.kept import kept_in
    from mergepoint.apps.cli.output import put_json, put_row, tell

    found = list(kept_in(out, most=number))
    if json:
        put_json([_facts(run) for run in found])
        return
    if not found:
        tell(f"there are no runs in {out}")
        return
    rows = [_HEAD, *map(_row, found)]
    shown = [column for column in range(len(_HEAD)) if any(row[column] for row in rows[1:])]
    widths = [max(len(row[column]) for row in rows) for column in shown]
    for row in rows:
        cells = [
            f"{row[column]:>{width}}" if _HEAD[column] in _RIGHT else f"{row[column]:<{width}}"
            for column, width in zip(shown, widths, strict=True)
        ]
        put_row("  ".join([*cells, *row[len(_HEAD) :]]).rstrip())


def _facts(run: Kept | Unreadable) -> dict[str, Any]:
    from mergepoint.apps.cli.kept import Kept

    if not isinstance(run, Kept):
        return {"run_id": run.folder.name, "state": "damaged", "problem": run.problem}
    return {
        "run_id": run.folder.name,
        "state": run.stage,
        "created_at": run.transcript.created_at,
        "tree": run.transcript.tree["path"],
        "calls": len(run.transcript.records),
        "of": len(run.paths),
        "tokens": run.tokens,
        "cost": run.cost,
        "offline": run.transcript.offline,
        "error": run.transcript.error if run.stage != "running" else None,
        "problem": None,
    }


def _row(run: Kept | Unreadable) -> Row:
    """Give the cells of a run, and what there is to say behind them."""
    from mergepoint.apps.cli.kept import Kept, ending, local_time
    from mergepoint.apps.cli.output import brief, money

    if not isinstance(run, Kept):
        blank = [""] * (len(_HEAD) - 3)
        return (run.folder.name, "", "damaged", *blank, brief(run.problem, 500))
    offline = " (offline)" if run.transcript.offline else ""
    said = ending(run.transcript.error) if run.stage in ("failed", "unfinished") else ""
    return (
        run.folder.name,
        local_time(run.transcript.created_at),
        run.stage,
        f"{len(run.transcript.records):,}/{len(run.paths):,}",
        f"{run.tokens:,}",
        "" if run.cost is None else money(run.cost),
        f"{run.transcript.tree['path']}{offline}",
        *(
            [brief(said.removeprefix(f"{run.stage}: ").removeprefix("failed "), 500)]
            if said
            else []
        ),
    )
