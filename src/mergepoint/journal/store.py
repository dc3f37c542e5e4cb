"""Protocols of a journal and of a store of journals, with a journal in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, Self, get_args

from mergepoint.core.paths import name_problem, nearest
from mergepoint.journal.header import RunHeader
from mergepoint.journal.lines import JournalError
from mergepoint.journal.records import CallRecord
from mergepoint.journal.redact import Redact


class Journal(Protocol):
    """A list of call records that only grows."""

    @property
    def keyed(self) -> bool:
        """Return whether its records are looked up by request fingerprint."""
        ...

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return all records in the order in which they were written."""
        ...

    def append(self, record: CallRecord) -> None:
        """Write one record."""
        ...


class MemoryJournal:
    """A journal that lives as long as the process; safe to write from several threads."""

    keyed = False

    def __init__(self, records: Iterable[CallRecord] = ()) -> None:
        self._records = list(records)
        self._lock = threading.Lock()

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return all records in the order in which they were written."""
        with self._lock:
            return tuple(self._records)

    def append(self, record: CallRecord) -> None:
        """Write one record; starts of calls are dropped, since nothing survives a crash."""
        with self._lock:
            if not record.begun:
                self._records.append(record)


Sync = Literal["edges", "record"]


class RunJournal(Journal, Protocol):
    """The journal of one run, locked by one process until it is closed."""

    @property
    def header(self) -> RunHeader:
        """Return the header of the run."""
        ...

    def close(self) -> None:
        """Flush the journal and unlock the run; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Store(Protocol):
    """A store of journals. Each method raises JournalError, with the fix, if it fails."""

    @property
    def sync(self) -> Sync:
        """Return when writes are flushed: at the edges of a run, or with every record."""
        ...

    @property
    def redact(self) -> Redact | None:
        """Return the hook that changes texts before they are written."""
        ...

    def create(self, header: RunHeader) -> RunJournal:
        """Create the journal of a new run. Raises JournalError if its id is taken."""
        ...

    def open(self, run_id: str) -> RunJournal:
        """Open a run to append to it. Raises JournalError while another process writes it."""
        ...

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of a run, also while it is being written."""
        ...

    def has(self, run_id: str) -> bool:
        """Return whether a run with this id has begun. Raises JournalError for an invalid id."""
        ...

    def held(self, run_id: str) -> bool:
        """Return whether a process writes a run now."""
        ...

    def runs(self) -> Sequence[str]:
        """Return the ids of all runs, the latest first."""
        ...

    def folder_of(self, run_id: str) -> Path | None:
        """Return the folder for a run's other files, or None if the store has no folders."""
        ...


def checked_run_id(run_id: str) -> str:
    """Return a run's id. Raises JournalError for one that is not a valid folder name everywhere."""
    problem = name_problem(run_id)
    if problem is None and (run_id in (".", "..") or "\\" in run_id):
        problem = "it names a place in the file system; use letters, digits, '-', '_' and '.'"
    if problem is not None:
        raise JournalError(f"{run_id!r} is no id for a run: {problem}")
    return run_id


def checked_sync(sync: Sync) -> Sync:
    """Return the way to flush. Raises ValueError that lists the valid ones."""
    if sync not in get_args(Sync):
        raise ValueError(f"sync is one of {', '.join(map(repr, get_args(Sync)))}, not {sync!r}")
    return sync


def unknown_run(place: object, run_id: str, known: Iterable[str]) -> JournalError:
    """Return the error for a run that a store does not have."""
    known = tuple(known)
    there = f"the newest are: {', '.join(known[:5])}" if known else "there are none yet"
    return JournalError(f"there is no run {run_id!r} in {place}{nearest(run_id, known)}; {there}")


def known_run(place: object, run_id: str) -> JournalError:
    """Return the error for a new run whose id was used before."""
    return JournalError(
        f"there is a run {run_id!r} in {place} already; open it to go on with it (resume), or give "
        "the new run another id"
    )
