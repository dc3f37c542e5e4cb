"""Homes: the runs of a folder or of a database, found by id, by path, or as the last one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.home import JOURNAL, RUNS, TRANSCRIPT, VARIABLE, Home
from mergepoint.core.path import name_problem, nearest

if TYPE_CHECKING:
    from mergepoint.record.store import Store

LAST = "last"

_MARKS = (JOURNAL, TRANSCRIPT)


@dataclass(frozen=True, slots=True)
class Homes:
    """Where runs are kept; `option` is what a command needs to find it."""

    store: Store
    option: str = ""

    @classmethod
    def at(cls, out: Path | None, store: str | None) -> Homes:
        """Give the runs of a folder (`--out`) or of a database (`--store`).

        Without either the variable MERGEPOINT_STORE names a database, else it is the folder
        `runs`. Raises CommandError for both, and for what is no database; MergepointError where
        its driver is not installed.
        """
        if out is not None and store is not None:
            raise CommandError("--out and --store exclude each other: a folder, or a database")
        from mergepoint.record.store_at import store_at

        url = database(out, store)
        if url is None:
            return cls(store_at(out or RUNS))
        if "://" not in url:
            raise CommandError(
                f"{'--store' if store else VARIABLE} {url!r} is no address of a database: give "
                "sqlite:///runs.db or postgresql://user@host/database; --out names a folder"
            )
        found = store_at(url)
        return cls(found, f"--store {shlex.quote(str(found))}" if store else "")

    def home(self, run_id: str) -> Home:
        """Give a run by its id."""
        return Home(self.store, run_id, self.option)

    def new(self, run_id: str) -> Home:
        """Give the home of a new run; its folder is made.

        Raises CommandError for an id that is no name, or that is taken, and where nothing can be
        written.
        """
        check_run_id(run_id)
        home = self.home(run_id)
        if (folder := home.folder) is not None:
            _made(folder)
        elif self.store.has(run_id):
            raise CommandError(f"there is a run {run_id!r} in {self} already; choose another")
        return home

    def all(self, *, marks: Sequence[str] = _MARKS) -> list[Home]:
        """Give all runs, the newest first; in a folder those that have one of the marks.

        In a folder new is what was written last, so that a run that was gone on with comes before
        older ones; in a database what began last.
        """
        from mergepoint.record.file_store import FileStore

        if not isinstance(self.store, FileStore):
            return [self.home(run_id) for run_id in self.store.runs()]
        return [self.home(folder.name) for folder in run_folders(self.store.folder, marks=marks)]

    def find(self, run: str, *, marks: Sequence[str] = _MARKS) -> Home:
        """Give a run by its id, its folder, or as the last one.

        Raises CommandError that lists the newest runs there are.
        """
        from mergepoint.record.file_store import FileStore

        there = self.all(marks=marks)
        if run == LAST and there:
            return there[0]
        ids = [home.run_id for home in there]
        if run in ids:
            return self.home(run)
        folder = Path(run)
        if any((folder / mark).is_file() for mark in marks):
            folder = folder if folder.name not in ("", "..") else folder.resolve()
            return Home(FileStore(folder.parent), folder.name)
        what = "journal of a run" if marks == (JOURNAL,) else "run"
        listed = f"the newest are: {', '.join(ids[:5])}" if ids else f"there are none in {self}"
        raise CommandError(
            f"there is no {what} {run!r}{nearest(run, ids)}; {listed}. A run is an id in {self} "
            f"(--out names a folder, --store a database), {LAST!r}, or a folder"
        )

    def find_journal(self, run: str) -> Home:
        """Give a run that has a journal. Raises CommandError where there is none."""
        return self.find(run, marks=(JOURNAL,))

    def __str__(self) -> str:
        return str(self.store)


def check_run_id(run_id: str) -> None:
    """Refuse an id by which no command could find the run. Raises CommandError."""
    if problem := name_problem(run_id):
        raise CommandError(f"--run-id: {problem}")
    if run_id in (LAST, ".", "..") or "\\" in run_id or run_id.startswith("-"):
        raise CommandError(f"--run-id {run_id!r} cannot be the name of a run")


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise CommandError(
            f"there is something at {folder} already; choose another --run-id or --out"
        ) from None
    except OSError as error:
        problem = error.strerror or str(error)
        raise CommandError(
            f"--out {folder.parent}: nothing can be written there: {problem}"
        ) from error


def database(out: Path | None, store: str | None) -> str | None:
    """Give the address of the database that is meant, None for a folder."""
    return None if out is not None else store or os.environ.get(VARIABLE) or None


def run_folders(out: Path, *, marks: Sequence[str] = _MARKS) -> list[Path]:
    """Give the folders that hold a journal or a transcript, what was written last first."""
    if not out.is_dir():
        return []
    times: dict[Path, int] = {}
    for mark in marks:
        for file in out.glob(f"*/{mark}"):
            if file.is_file():
                times[file.parent] = max(times.get(file.parent, 0), file.stat().st_mtime_ns)
    return sorted(times, key=lambda folder: (times[folder], str(folder)), reverse=True)
