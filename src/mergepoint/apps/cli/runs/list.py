"""`mergepoint runs list`: all runs, those that were killed too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.options import JsonOption, OutOption, StoreOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.apps.cli.kept import Kept, Unreadable

EXAMPLES = (
    "mergepoint runs list",
    "mergepoint runs list -n 5",
    "mergepoint runs list --store sqlite:///runs.db",
    "mergepoint runs list --json | jq -r '.[] | select(.state == \"unfinished\").run_id'",
)

_HEAD = ("run", "started", "state", "calls", "tokens", "cost", "tree")
_RIGHT = ("calls", "tokens", "cost")
_TOLD = ("failed", "unfinished", "waiting")

Row = tuple[str, ...]


def list_(
    *,
    number: Annotated[
        int | None,
        typer.Option("-n", metavar="N", min=1, help="The newest N.", show_default=False),
    ] = None,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """List the runs, the newest first: done, waiting at a gate, failed, running now, or killed.

    A run is unfinished when its process is gone and a call has no answer; it waits when nothing but
    decisions is missing. `mergepoint resume` goes on with it.
    """
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.kept import all_kept
    from mergepoint.apps.cli.output import put_json, put_row, tell

    homes = Homes.at(out, store)
    found = list(all_kept(homes, most=number))
    if json:
        put_json([_facts(run) for run in found])
        return
    if not found:
        tell(f"there are no runs in {homes}")
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
        return {"run_id": run.home.run_id, "state": "damaged", "problem": run.problem}
    return {
        "run_id": run.home.run_id,
        "state": run.stage,
        "created_at": run.transcript.created_at,
        "tree": run.transcript.tree["path"],
        "calls": run.answered,
        "of": run.total,
        "open_gates": run.open_gates,
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
        return (run.home.run_id, "", "damaged", *blank, brief(run.problem, 500))
    offline = " (offline)" if run.transcript.offline else ""
    said = ending(run.transcript.error) if run.stage in _TOLD else ""
    return (
        run.home.run_id,
        local_time(run.transcript.created_at),
        run.stage,
        f"{run.answered:,}" if run.total is None else f"{run.answered:,}/{run.total:,}",
        f"{run.tokens:,}",
        "" if run.cost is None else money(run.cost),
        f"{run.transcript.tree['path']}{offline}",
        *(
            [brief(said.removeprefix(f"{run.stage}: ").removeprefix(f"{run.stage} "), 500)]
            if said
            else []
        ),
    )
