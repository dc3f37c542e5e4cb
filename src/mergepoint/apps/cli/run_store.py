"""Stored runs: where they are, how a command finds them, and the state that each is in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mergepoint.apps.cli.output import CommandError, brief, put, put_json
from mergepoint.core.errors import MergepointError
from mergepoint.core.paths import is_file, name_problem, nearest
from mergepoint.report.run_state import (
    JOURNAL,
    TRANSCRIPT,
    RunState,
    Unreadable,
    graph_name,
    local_time,
    read_state,
    words_of,
)

if TYPE_CHECKING:
    from mergepoint.journal.call_records import CallRecord
    from mergepoint.journal.segment_store import SegmentStore
    from mergepoint.journal.sql_journal import SqlStore
    from mergepoint.journal.stores import RunHeader, Store
    from mergepoint.scale.queued_runs import QueuedRun

DRAWING = "graph.svg"
RUNS = "runs"
VARIABLE = "MERGEPOINT_STORE"  # names a database, if no option does
LAST = "last"

_MARKS = (JOURNAL, TRANSCRIPT)
_BRIEF = 300  # characters of an input or an error


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in its store; `option` is the option by which a command finds the store, if any.

    A run in a folder has files next to its journal. A run in a database or a segment has none.
    """

    store: Store
    run_id: str
    option: str = ""

    @property
    def folder(self) -> Path | None:
        """Return the folder of the run's files."""
        return self.store.folder_of(self.run_id)

    @property
    def name(self) -> str:
        """Return the words by which a command finds the run from here."""
        folder = self.folder
        # A leading dash would make the id an option, and the variable would send it to a database.
        plain = not (self.run_id.startswith("-") or os.environ.get(VARIABLE))
        if folder is None or (folder.parent == Path(RUNS) and plain):
            return " ".join(filter(None, [shlex.quote(self.run_id), self.option]))
        # A name without a separator is looked up as an id first.
        here = "" if folder.name != str(folder) else f".{os.sep}"
        return shlex.quote(f"{here}{folder}")

    @property
    def place(self) -> str:
        """Return the run's folder, or its id and the database, for messages."""
        return str(self.folder or f"{self.run_id} in {self.store}")

    @property
    def named(self) -> Path | str:
        """Return the name of the run for `run_generation`, which works across stores."""
        return self.folder or self.run_id

    def file(self, name: str) -> Path | None:
        """Return a file of the run, None if it doesn't exist."""
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.is_file() else None

    @property
    def rows(self) -> SqlStore | SegmentStore:
        """Return the store of a run without a folder. Raises CommandError for others."""
        found = self.store
        if self.folder is not None or not hasattr(found, "log"):
            raise CommandError(f"Run {self.place} is in a folder of its own.")
        return cast("SqlStore | SegmentStore", found)

    @property
    def has_journal(self) -> bool:
        """Return whether the run has a journal."""
        return self.folder is None or (self.folder / JOURNAL).is_file()

    def read(self) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of the run's journal. Raises MergepointError."""
        return self.store.read(self.run_id)


@dataclass(frozen=True, slots=True)
class RunStore:
    """The runs of a folder or database; `option` is the option by which a command finds it."""

    store: Store
    option: str = ""

    @classmethod
    def at(cls, out: Path | None, store: str | None) -> RunStore:
        """Return the runs of a folder (`--out`) or of a database (`--store`).

        Without either, the variable MERGEPOINT_STORE names a database; if it isn't set, runs are
        in the folder `runs`. Raises CommandError for both options and for an invalid URL, and
        MergepointError if the database's driver isn't installed.
        """
        if out is not None and store is not None:
            raise CommandError("Can't use --out and --store together: pass a folder or a database.")
        from mergepoint.journal.file_journal import store_at

        url = database_url(out, store)
        if url is None:
            found, named = store_at(out or RUNS), out is not None
            # A run without a folder of its own is found by its id and this option.
            shared = named and found.folder_of(LAST) is None
            return cls(found, f"--out {shlex.quote(str(out))}" if shared else "")
        if "://" not in url:
            raise CommandError(
                f"{'--store' if store else VARIABLE} {url!r} isn't a database URL. Use "
                "sqlite:///runs.db or postgresql://user@host/database. For a folder, use --out."
            )
        found = store_at(url)
        # str() of a store masks the password, since the option is printed.
        return cls(found, f"--store {shlex.quote(str(found))}" if store else "")

    def get(self, run_id: str) -> StoredRun:
        """Return a run by its id."""
        return StoredRun(self.store, run_id, self.option)

    def new(self, run_id: str) -> StoredRun:
        """Create the folder of a new run, if it has one, and return the run.

        Raises CommandError for an invalid or used id, and for a folder that isn't writable.
        """
        check_run_id(run_id)
        run = self.get(run_id)
        if (folder := run.folder) is not None:
            _make(folder)
        elif self.store.has(run_id):
            raise CommandError(f"Run {run_id!r} already exists in {self}. Choose another --run-id.")
        return run

    def all(self, *, marks: Sequence[str] = _MARKS) -> list[StoredRun]:
        """Return all runs, newest first; in a folder, those that have one of the `marks`.

        In a folder, the order is that of the last write, so that a resumed run comes first. In a
        database, it is that of the start.
        """
        from mergepoint.journal.file_journal import FileStore

        if not isinstance(self.store, FileStore):
            return [self.get(run_id) for run_id in self.store.runs()]
        return [self.get(folder.name) for folder in run_folders(self.store.folder, marks=marks)]

    def find(self, run: str, *, marks: Sequence[str] = _MARKS) -> StoredRun:
        """Return a run by its id, its folder, or `last`.

        Raises CommandError that lists the most recent runs.
        """
        if (found := self.lookup(run, marks=marks)) is not None:
            return found
        ids = [one.run_id for one in self.all(marks=marks)]
        problem = "has no journal" if marks == (JOURNAL,) and self.lookup(run) else "not found"
        recent = f"Most recent runs: {', '.join(ids[:5])}." if ids else "There are no runs yet."
        raise CommandError(
            f"Run {run!r} {problem} in {self}{nearest(run, ids)}. {recent} Name a run by its ID, "
            f"{LAST!r}, or its folder; --out and --store say where to look."
        )

    def lookup(self, run: str, *, marks: Sequence[str] = _MARKS) -> StoredRun | None:
        """Return a run by its id, its folder, or `last`; None if there is no such run."""
        from mergepoint.journal.file_journal import FileStore

        known = self.all(marks=marks)
        # Names of runs come before paths: a folder of the same name must not hide a run.
        if run == LAST and known:
            return known[0]
        if run in [one.run_id for one in known]:
            return self.get(run)
        folder = Path(run)
        if any(is_file(folder / mark) for mark in marks):
            folder = folder if folder.name not in ("", "..") else folder.resolve()
            return StoredRun(FileStore(folder.parent), folder.name)
        return None

    def find_journal(self, run: str) -> StoredRun:
        """Return a run that has a journal. Raises CommandError if it has none."""
        return self.find(run, marks=(JOURNAL,))

    def __str__(self) -> str:
        return str(self.store)


def check_run_id(run_id: str) -> None:
    """Raise CommandError for an id by which no command can find the run."""
    if problem := name_problem(run_id):
        raise CommandError(f"--run-id: {problem}")
    if run_id in (LAST, ".", "..") or "\\" in run_id or run_id.startswith("-"):
        raise CommandError(f"--run-id {run_id!r} can't be the ID of a run.")


def _make(folder: Path) -> None:
    try:
        # Not `exist_ok`: of two runs with the same id, one must fail.
        folder.mkdir(parents=True)
    except FileExistsError:
        raise CommandError(f"{folder} already exists. Choose another --run-id or --out.") from None
    except OSError as error:
        problem = error.strerror or str(error)
        raise CommandError(
            f"--out {folder.parent}: the folder isn't writable: {problem}"
        ) from error


def database_url(out: Path | None, store: str | None) -> str | None:
    """Return the URL of the database, None for a folder."""
    return None if out is not None else store or os.environ.get(VARIABLE) or None


def run_folders(out: Path, *, marks: Sequence[str] = _MARKS) -> list[Path]:
    """Return the folders with a journal or a transcript, the last written first."""
    if not out.is_dir():
        return []
    times: dict[Path, int] = {}
    for mark in marks:
        for file in out.glob(f"*/{mark}"):
            if file.is_file():
                times[file.parent] = max(times.get(file.parent, 0), file.stat().st_mtime_ns)
    return sorted(times, key=lambda folder: (times[folder], str(folder)), reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun(RunState):
    """A run as it was read, and where a command found it."""

    run: StoredRun


def read_run(run: StoredRun) -> FoundRun:
    """Read a run, also one that is being written; nothing is changed.

    Raises MergepointError for a damaged journal and for an invalid transcript.
    """
    state = read_state(run.store, run.run_id, words=run.name)
    return FoundRun(run=run, **{one.name: getattr(state, one.name) for one in fields(RunState)})


def all_runs(runs: RunStore, *, most: int | None = None) -> Iterator[FoundRun | Unreadable]:
    """Yield all runs that have begun, newest first."""
    queued = in_queue(runs.store)
    # Cut the list before reading, since reading a run reads its whole journal.
    for run in runs.all()[:most]:
        yield _read_or_not(run, queued)


def listed_runs(
    runs: RunStore, *, most: int | None = None
) -> Iterator[QueuedRun | FoundRun | Unreadable]:
    """Yield all runs, newest first; before them those that wait in a queue and haven't begun."""
    # Read before the journals: a run that begins in between is in both, and is shown once.
    queued = in_queue(runs.store)
    begun = runs.all()
    known = {one.run_id for one in begun}
    waiting = [one for run_id, one in queued.items() if run_id not in known]
    yield from waiting[:most]
    for run in begun[: None if most is None else max(0, most - len(waiting))]:
        yield _read_or_not(run, queued)


def in_queue(store: Store, run_id: str | None = None) -> dict[str, QueuedRun]:
    """Return the runs in the queue of a store by their ids, or only one; none without a queue."""
    if not str(store).startswith("postgresql"):
        return {}
    from mergepoint.scale.queued_runs import queued_runs

    return queued_runs(cast("SqlStore", store), None if run_id is None else [run_id])


def with_queue(state: FoundRun, queued: QueuedRun | None) -> FoundRun:
    """Return the state of a run that has begun, as the queue knows it.

    A run that waits for a worker is `queued`, also at a gate that was answered. One that a worker
    prepares is `running`.
    """
    if queued is None or queued.status == "failed" or state.over or state.status == "running":
        return state
    return replace(state, status=queued.status)


def queued_facts(run: QueuedRun) -> dict[str, Any]:
    """Return the JSON form of a run that waits in a queue and hasn't begun."""
    return {
        "run_id": run.run_id,
        "state": run.status,
        "queued_at": run.queued_at or None,
        "graph": graph_name(run.target),
        "inputs": dict(run.inputs),
        "problem": run.problem or None,
    }


def show_queued(run: QueuedRun, runs: RunStore, *, json: bool) -> None:
    """Write what is known of a run that waits in a queue and hasn't begun, to stdout."""
    follow = f"mergepoint runs tail --follow {runs.get(run.run_id).name}"
    if json:
        put_json({**queued_facts(run), "store": str(runs), "follow": follow})
        return
    added = local_time(run.queued_at) if run.queued_at else ""
    state = f"{run.status}: {run.problem}" if run.problem else run.status
    rows = {"run": run.run_id, "graph": run.target, "queued": added, "state": state}
    inputs = {f"input {name}".rstrip(): words_of(value) for name, value in run.inputs.items()}
    for label, text in {**rows, **inputs}.items():
        if text:
            put(f"{label:<11} {brief(text, _BRIEF)}")
    if not run.problem:
        put(f"\nTo follow:\n  {follow}")


def _read_or_not(run: StoredRun, queued: dict[str, QueuedRun]) -> FoundRun | Unreadable:
    try:
        return with_queue(read_run(run), queued.get(run.run_id))
    except (MergepointError, OSError) as error:
        return Unreadable(run.run_id, str(error))
