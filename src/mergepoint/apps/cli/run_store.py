"""Stored runs: where they are, how a command finds them, and the state that each is in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mergepoint.apps.cli.output import CommandError
from mergepoint.core.errors import MergepointError
from mergepoint.core.paths import is_file, name_problem, nearest

if TYPE_CHECKING:
    from mergepoint.journal.call_records import CallRecord
    from mergepoint.journal.sql_journal import SqlStore
    from mergepoint.journal.stores import RunHeader, Store
    from mergepoint.journal.transcript import Transcript

TRANSCRIPT = "transcript.json"
JOURNAL = "journal.jsonl"
DRAWING = "graph.svg"
RUNS = "runs"
VARIABLE = "MERGEPOINT_STORE"  # names a database, if no option does
ROUNDS_USED = "RailError"  # the error of a loop that used all its iterations
COMMAND = "command"  # key in a journal header: the options that the run was started with
LAST = "last"

_MARKS = (JOURNAL, TRANSCRIPT)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in its store; `option` is the option by which a command finds the store, if any.

    A run in a folder has files next to its journal. A run in a database has none.
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
    def rows(self) -> SqlStore:
        """Return the database that holds the run. Raises CommandError for a run in a folder."""
        from mergepoint.journal.sql_journal import SqlStore

        if not isinstance(self.store, SqlStore):
            raise CommandError(f"Run {self.place} isn't in a database.")
        return self.store

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
            return cls(store_at(out or RUNS))
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


Status = Literal[
    "running", "done", "rejected", "waiting", "failed", "interrupted", "unfinished", "damaged"
]

_STATUSES: Mapping[str, Status] = {
    "KeyboardInterrupt": "interrupted",
    "Unfinished": "unfinished",
    "GateOpen": "waiting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as it was read.

    `records` are in the order of writing. `transcript` is the stored one, or computed from the
    journal if there is none or an older one. `meta` is the metadata of the journal's header.
    """

    run: StoredRun
    status: Status
    transcript: Transcript
    records: tuple[CallRecord, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """Return the run's id."""
        return self.transcript.run_id

    @property
    def graph(self) -> str:
        """Return the workflow as the user named it: a name or file; otherwise the root's path.

        A file has its name without folders.
        """
        named = self.meta.get(COMMAND)
        target = named.get("target") if isinstance(named, Mapping) else None
        whole = str(target or self.transcript.tree["path"])
        return whole.replace("\\", "/").rpartition("/")[2]

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that answered, in the order of their first answers."""
        kinds = ("step", "inner")
        return tuple(
            dict.fromkeys(
                one.model for one in self.records if one.kind in kinds and one.model != "note"
            )
        )

    @property
    def seconds(self) -> float | None:
        """Return the seconds in which calls ran, without pauses; None without calls."""
        return busy_seconds(self.records) if self.records else None

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of all calls of the tree, in its order; for loops, those that ran."""
        from mergepoint.report.drawing import unrolled
        from mergepoint.tree.transform import leaf_paths

        known = {record.path for record in self.records}
        if self.transcript.error:
            known.add(str(self.transcript.error["path"]))
        return tuple(leaf_paths(unrolled(self.transcript.tree, known)))

    @property
    def over(self) -> bool:
        """Return whether the run is finished: done, or ended by a rejection."""
        return self.status in ("done", "rejected")

    @property
    def answered(self) -> int:
        """Return the number of answered calls, without decisions and a recipe's notes.

        In a tree these are its steps and functions, without the calls inside them.
        """
        from mergepoint.journal.recipe_records import is_recipe

        records = self.transcript.records
        if is_recipe(self.transcript.tree):
            return sum(record.kind != "gate" and record.model != "note" for record in records)
        paths = set(self.paths)
        return sum(record.kind != "gate" and record.path in paths for record in records)

    @property
    def total(self) -> int | None:
        """Return the number of calls in the tree, None for loops and recipes."""
        from mergepoint.journal.recipe_records import is_recipe
        from mergepoint.tree.transform import leaf_count

        tree = self.transcript.tree
        return None if is_recipe(tree) else leaf_count(tree)

    @property
    def missing(self) -> list[str]:
        """Return the paths without an answer; none if the run is finished."""
        # A function killed after its model answered has inner records and no answer of its own.
        own = (record for record in self.records if record.kind != "inner")
        settled = {record.path for record in own if record.settled}
        return [] if self.over else [at for at in self.paths if at not in settled]

    @property
    def failures(self) -> str:
        """Return a phrase about the failed items and calls of a recipe; blank for a tree."""
        from mergepoint.journal.recipe_records import (
            failed_calls,
            failures_said,
            is_recipe,
            recipe_end,
        )

        if not is_recipe(self.transcript.tree):
            return ""
        end = recipe_end(self.transcript.tree, self.records)
        return failures_said(end, failed_calls(self.records))

    @property
    def open_gates(self) -> list[str]:
        """Return the paths of the gates that wait for a decision."""
        return [record.path for record in self.transcript.questions]

    @property
    def tokens(self) -> int:
        """Return the tokens of all calls, including failed ones."""
        return sum(map(tokens_of, self.records))

    @property
    def cost(self) -> float | None:
        """Return the cost of the calls in USD, None if no price is known."""
        known = [record.cost for record in self.records if record.cost is not None]
        return sum(known) if known else None

    @property
    def resumable(self) -> bool:
        """Return whether a resume can get further: not if the run is done, or running now."""
        from mergepoint.journal.recipe_records import FAILED

        error = self.transcript.error or {}
        same_end = (ROUNDS_USED, FAILED)  # a resume would end in the same way
        return not (self.status == "running" or self.over or error.get("type") in same_end)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run that cannot be read, and the problem."""

    run: StoredRun
    problem: str


def read_run(run: StoredRun) -> RunState:
    """Read a run, also one that is being written; nothing is changed.

    Raises MergepointError for a damaged journal and for an invalid transcript.
    """
    try:
        return _read(run)
    # RecursionError: a file can be nested deeper than the interpreter allows.
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, MergepointError):
            raise
        raise MergepointError(
            f"Can't read run {run.place} ({type(error).__name__}: {error}). For details: "
            f"mergepoint runs check {run.name}"
        ) from error


def _read(run: StoredRun) -> RunState:
    from mergepoint.journal.transcript import agrees, read_transcript, transcript_of

    file = run.file(TRANSCRIPT)
    if not run.has_journal and file is not None:
        written = read_transcript(file)
        status = _status(written)
        return RunState(run=run, status=status, transcript=written, records=written.everything)
    # Check first: a run that finishes just now is shown as running, with all its records.
    is_running = run.store.held(run.run_id)
    header, records = run.read()
    transcript = None if file is None else read_transcript(file)
    # A resume that was killed leaves the transcript of the run before it: the journal counts.
    if transcript is None or not agrees(transcript, records):
        transcript = transcript_of(header, records)
    status = "running" if is_running else _status(transcript)
    return RunState(
        run=run, status=status, transcript=transcript, records=records, meta=dict(header.meta)
    )


def all_runs(runs: RunStore, *, most: int | None = None) -> Iterator[RunState | Unreadable]:
    """Yield all runs, newest first."""
    # Cut the list before reading, since reading a run reads its whole journal.
    for run in runs.all()[:most]:
        try:
            yield read_run(run)
        except (MergepointError, OSError) as error:
            yield Unreadable(run, str(error))


def ending(error: Mapping[str, Any] | None) -> str:
    """Return a phrase about how a run ended, from the error in its transcript."""
    from mergepoint.journal.recipe_records import FAILED

    if error is None:
        return "done"
    if error["type"] == "KeyboardInterrupt":
        return f"interrupted at {error['path']}" if error["path"] else "interrupted"
    if error["type"] == "Unfinished":
        return str(error["message"])
    if error["type"] == "GateOpen":
        return str(error["message"]).partition(":")[0]  # without the advice for Python
    if error["type"] == FAILED:
        return f"failed: {error['message']}"
    where = f" at {error['path']}" if error["path"] else ""
    return f"failed{where}: {error['type']}: {error['message']}"


def rejection(transcript: Transcript) -> str:
    """Return a phrase about the rejection that ended a run; empty without one."""
    said = [
        f"rejected at {record.path}" + (f": {words}" if (words := record.value["feedback"]) else "")
        for record in transcript.rejected
    ]
    return "; ".join(said)


def local_time(created_at: str) -> str:
    """Return a time in the zone of this machine, to the minute."""
    return f"{datetime.fromisoformat(created_at).astimezone():%Y-%m-%d %H:%M}"


def busy_seconds(records: Iterable[CallRecord]) -> float:
    """Return the seconds in which at least one call ran: parallel calls count once."""
    total, end = 0.0, 0.0
    for one in sorted(records, key=lambda record: record.started):
        total += max(0.0, one.ended - max(one.started, end))
        end = max(end, one.ended)
    return total


def tokens_of(record: CallRecord) -> int:
    """Return the tokens of a call, 0 if the provider didn't report them."""
    return int((record.usage or {}).get("total_tokens", 0))


def _status(transcript: Transcript) -> Status:
    if transcript.error is None:
        return "rejected" if transcript.rejected else "done"
    return _STATUSES.get(str(transcript.error["type"]), "failed")
