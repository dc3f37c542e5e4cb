"""Completion of names for the shell. It reads names only, so that the shell doesn't wait."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from mergepoint.apps.cli.run_store import (
    JOURNAL,
    LAST,
    RUNS,
    TRANSCRIPT,
    RunStore,
    database_url,
    run_folders,
)
from mergepoint.core.errors import MergepointError
from mergepoint.journal.lines import read_lines
from mergepoint.tree.load import graph_names, recipe_graphs


def complete_workflows(incomplete: str) -> list[str]:
    """Return the bundled trees and recipes, and files of this folder that may hold one."""
    from mergepoint.streams.recipe_yaml import LIBRARY

    files = [str(file) for kind in ("*.py", "*.yaml", "*.yml") for file in Path().glob(kind)]
    names = (*graph_names(), *LIBRARY.names(), *recipe_graphs(), *sorted(files))
    return [name for name in names if name.startswith(incomplete)]


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `last` and the ids of the runs, newest first."""
    return _starting((LAST, *_run_ids(ctx.params, (JOURNAL, TRANSCRIPT))), incomplete)


def complete_journals(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `last` and the ids of the runs with a journal, newest first."""
    return _starting((LAST, *_run_ids(ctx.params, (JOURNAL,))), incomplete)


def complete_shown(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return everything that `mergepoint show` takes: runs, then workflows."""
    return [*complete_runs(ctx, incomplete), *complete_workflows(incomplete)]


def complete_sessions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `last` and the ids of the sessions, most recent first."""
    from mergepoint.session.file_sessions import sessions_at

    try:
        found = sessions_at(str(ctx.params.get("sessions") or "sessions")).sessions()
    except (MergepointError, OSError):
        found = []
    return _starting((LAST, *(one.session_id for one in found)), incomplete)


def complete_paths(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the paths of the calls in the run that the command line names."""
    try:
        known = _call_paths(str(ctx.params.get("run")), ctx.params)
    except (MergepointError, OSError, ValueError, KeyError, TypeError):
        return []
    return _starting(known, incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _run_ids(params: Mapping[str, Any], marks: tuple[str, ...]) -> list[str]:
    out, store = params.get("out"), params.get("store")
    if database_url(out, store) is None:
        return [folder.name for folder in run_folders(out or Path(RUNS), marks=marks)]
    try:
        return [run.run_id for run in RunStore.at(out, store).all()]
    except MergepointError:
        return []


def _call_paths(run: str, params: Mapping[str, Any]) -> list[str]:
    """Return the paths of the calls of a run or transcript file, read without any library."""
    out, store = params.get("out"), params.get("store")
    if database_url(out, store) is not None:
        found = RunStore.at(out, store).find(run)
        return list(dict.fromkeys(record.path for record in found.store.read(found.run_id)[1]))
    folder = out or Path(RUNS)
    is_transcript = Path(run).is_file() and not (folder / run).is_dir()
    file = Path(run) if is_transcript else _transcript(run, folder)
    if file.is_file():
        steps = json.loads(file.read_text(encoding="utf-8", errors="surrogatepass"))["steps"]
    else:
        steps = read_lines(file.with_name(JOURNAL), until_fault=True).values[1:]
    return list(dict.fromkeys(str(step["path"]) for step in steps))


def _transcript(run: str, out: Path) -> Path:
    known = run_folders(out)
    folder = known[0] if run == LAST and known else out / run
    return (folder if folder.is_dir() else Path(run)) / TRANSCRIPT
