"""Complete: what the shell offers. It reads names only, so that it is quick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from mergepoint.apps.cli.folders import JOURNAL, LAST, TRANSCRIPT, find_run, run_folders
from mergepoint.apps.targets import graph_names
from mergepoint.core.errors import MergepointError
from mergepoint.record.lines import read_lines


def graphs(incomplete: str) -> list[str]:
    """Give the graphs that come along, and files of this folder that may hold a tree."""
    files = [str(file) for kind in ("*.py", "*.yaml", "*.yml") for file in Path().glob(kind)]
    return [name for name in (*graph_names(), *sorted(files)) if name.startswith(incomplete)]


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give `last` and the ids of the runs, the newest first."""
    return _ids(run_folders(_out(ctx.params)), incomplete)


def journals(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give `last` and the ids of the runs with a journal, the newest first."""
    return _ids(run_folders(_out(ctx.params), marks=(JOURNAL,)), incomplete)


def paths(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the paths of the calls in the run that was named before."""
    try:
        known = _paths(Path(str(ctx.params.get("run"))), _out(ctx.params))
    except (MergepointError, OSError, ValueError, KeyError, TypeError):
        return []
    return [path for path in known if path.startswith(incomplete)]


def _ids(folders: list[Path], incomplete: str) -> list[str]:
    return [
        name for name in (LAST, *(folder.name for folder in folders)) if name.startswith(incomplete)
    ]


def _paths(run: Path, out: Path) -> list[str]:
    """Give the paths of the calls of a run or transcript file, read without any library."""
    given = run.is_file() and not (out / run).is_dir()
    file = run if given else find_run(str(run), out) / TRANSCRIPT
    if file.is_file():
        steps = json.loads(file.read_text(encoding="utf-8", errors="surrogatepass"))["steps"]
    else:
        steps = read_lines(file.with_name(JOURNAL), until_fault=True).values[1:]
    return list(dict.fromkeys(str(step["path"]) for step in steps))


def _out(params: dict[str, Any]) -> Path:
    return Path(params.get("out") or "runs")
