"""Complete: what the shell offers. It reads names only, so that it is quick."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from mergepoint.apps.cli.home import JOURNAL, RUNS, TRANSCRIPT
from mergepoint.apps.cli.homes import LAST, Homes, database, run_folders
from mergepoint.core.errors import MergepointError
from mergepoint.record.lines import read_lines
from mergepoint.tree.target import graph_names

_ANY = (JOURNAL, TRANSCRIPT)


def graphs(incomplete: str) -> list[str]:
    """Give the graphs that come along, and files of this folder that may hold a tree."""
    files = [str(file) for kind in ("*.py", "*.yaml", "*.yml") for file in Path().glob(kind)]
    return [name for name in (*graph_names(), *sorted(files)) if name.startswith(incomplete)]


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give `last` and the ids of the runs, the newest first."""
    return [name for name in (LAST, *_ids(ctx.params, _ANY)) if name.startswith(incomplete)]


def journals(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give `last` and the ids of the runs with a journal, the newest first."""
    return [name for name in (LAST, *_ids(ctx.params, (JOURNAL,))) if name.startswith(incomplete)]


def sessions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give `last` and the ids of the sessions, the one that was written last first."""
    from mergepoint.session.sessions_at import sessions_at

    try:
        there = sessions_at(str(ctx.params.get("sessions") or "sessions")).sessions()
    except (MergepointError, OSError):
        there = []
    names = (LAST, *(one.session_id for one in there))
    return [name for name in names if name.startswith(incomplete)]


def paths(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the paths of the calls in the run that was named before."""
    try:
        known = _paths(str(ctx.params.get("run")), ctx.params)
    except (MergepointError, OSError, ValueError, KeyError, TypeError):
        return []
    return [path for path in known if path.startswith(incomplete)]


def _ids(params: Mapping[str, Any], marks: tuple[str, ...]) -> list[str]:
    if database(_out(params), params.get("store")) is None:
        return [folder.name for folder in run_folders(_out(params) or Path(RUNS), marks=marks)]
    try:
        return [home.run_id for home in Homes.at(_out(params), params.get("store")).all()]
    except MergepointError:
        return []


def _paths(run: str, params: Mapping[str, Any]) -> list[str]:
    """Give the paths of the calls of a run or transcript file; of files without any library."""
    if database(_out(params), params.get("store")) is not None:
        home = Homes.at(_out(params), params.get("store")).find(run)
        return list(dict.fromkeys(record.path for record in home.store.read(home.run_id)[1]))
    out = _out(params) or Path(RUNS)
    file = Path(run) if Path(run).is_file() and not (out / run).is_dir() else _transcript(run, out)
    if file.is_file():
        steps = json.loads(file.read_text(encoding="utf-8", errors="surrogatepass"))["steps"]
    else:
        steps = read_lines(file.with_name(JOURNAL), until_fault=True).values[1:]
    return list(dict.fromkeys(str(step["path"]) for step in steps))


def _transcript(run: str, out: Path) -> Path:
    """Give where the transcript of a run is, if it has one."""
    there = run_folders(out)
    folder = there[0] if run == LAST and there else out / run
    return (folder if folder.is_dir() else Path(run)) / TRANSCRIPT


def _out(params: Mapping[str, Any]) -> Path | None:
    return params.get("out")
