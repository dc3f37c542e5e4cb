"""Folders: where runs are on disk, found by id, by path, or as the last one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from mergepoint.apps.cli.errors import CommandError
from mergepoint.core.path import name_problem, nearest

TRANSCRIPT = "transcript.json"
JOURNAL = "journal.jsonl"
COMMAND = "command.json"
DRAWING = "graph.svg"
LAST = "last"
RUNS = "runs"

_MARKS = (JOURNAL, TRANSCRIPT)


def new_folder(out: Path, run_id: str) -> Path:
    """Make the folder of a new run.

    Raises CommandError for an id that is no name, or that is taken, and where nothing can be
    written.
    """
    if problem := name_problem(run_id):
        raise CommandError(f"--run-id: {problem}")
    if run_id in (LAST, ".", "..") or "\\" in run_id:
        raise CommandError(f"--run-id {run_id!r} cannot be the name of a folder here")
    folder = out / run_id
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise CommandError(
            f"there is something at {folder} already; choose another --run-id or --out"
        ) from None
    except OSError as error:
        problem = error.strerror or str(error)
        raise CommandError(f"--out {out}: nothing can be written there: {problem}") from error
    return folder


def run_folders(out: Path, *, marks: Sequence[str] = _MARKS) -> list[Path]:
    """Give the folders below `out` that hold a journal or a transcript, the newest first.

    New is what was written last, so that a run that was gone on with comes before older ones.
    """
    if not out.is_dir():
        return []
    times: dict[Path, int] = {}
    for mark in marks:
        for file in out.glob(f"*/{mark}"):
            if file.is_file():
                times[file.parent] = max(times.get(file.parent, 0), file.stat().st_mtime_ns)
    return sorted(times, key=lambda folder: (times[folder], str(folder)), reverse=True)


def find_run(run: str, out: Path) -> Path:
    """Give the folder of a run by its id, its folder, or as the last one.

    Raises CommandError that lists the newest runs there are.
    """
    return _found(run, out, _MARKS, "there is no run {run!r}")


def find_journal(run: str, out: Path) -> Path:
    """Give the folder of a run that has a journal. Raises CommandError where there is none."""
    return _found(run, out, (JOURNAL,), "there is no journal of a run {run!r}")


def name_of(folder: Path) -> str:
    """Give the word by which the commands find a run from here."""
    return folder.name if str(folder.parent) == RUNS else str(folder)


def how_to_resume(folder: Path) -> list[str]:
    """Give the command that goes on with a run; none where nothing is on record."""
    if not (folder / JOURNAL).is_file():
        return []
    repeated = "" if (folder / COMMAND).is_file() else " TARGET --model PROVIDER:NAME"
    return [f"mergepoint resume {shlex.quote(name_of(folder))}{repeated}"]


def _found(run: str, out: Path, marks: Sequence[str], none: str) -> Path:
    there = run_folders(out, marks=marks)
    if run == LAST and there:
        return there[0]
    for folder in (out / run, Path(run)):
        if any((folder / mark).is_file() for mark in marks):
            return folder
    ids = [folder.name for folder in there]
    listed = f"the newest are: {', '.join(ids[:5])}" if ids else f"there are none under {out}"
    raise CommandError(
        f"{none.format(run=run)}{nearest(run, ids)}; {listed}. A run is an id under {out} "
        f"(--out says where), {LAST!r}, or a folder"
    )
