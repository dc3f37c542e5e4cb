"""Store: where the journals of runs are kept, each under its run's id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, Self, get_args

from mergepoint.core.path import name_problem, nearest
from mergepoint.record.header import RunHeader
from mergepoint.record.journal import Journal
from mergepoint.record.lines import JournalError
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact

Sync = Literal["edges", "record"]


class RunJournal(Journal, Protocol):
    """The journal of one run, held by one process until it is closed."""

    @property
    def header(self) -> RunHeader:
        """Give what the run began with."""
        ...

    def close(self) -> None:
        """Flush what was written and let go of the run; a second time does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Store(Protocol):
    """Keeps journals. Each method raises JournalError, with the way out, when it cannot."""

    @property
    def sync(self) -> Sync:
        """Give when what is written is flushed: at the edges of a run, or with every record."""
        ...

    @property
    def redact(self) -> Redact | None:
        """Give the hook that changes texts before they are written."""
        ...

    def create(self, header: RunHeader) -> RunJournal:
        """Begin the journal of a new run. Raises JournalError where its id was used before."""
        ...

    def open(self, run_id: str) -> RunJournal:
        """Go on with a run. Raises JournalError while another holds it."""
        ...

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Give header and records of a run, also while it is being written."""
        ...

    def has(self, run_id: str) -> bool:
        """Say whether a run of this id has begun. Raises JournalError for an id that is none."""
        ...

    def held(self, run_id: str) -> bool:
        """Say whether a process writes a run now."""
        ...

    def runs(self) -> Sequence[str]:
        """Give the ids of all runs, the one that began last first."""
        ...

    def folder_of(self, run_id: str) -> Path | None:
        """Give the folder for a run's other files, or None where the store has no folders."""
        ...


def checked_run_id(run_id: str) -> str:
    """Give a run's id. Raises JournalError for one that could not name a folder everywhere."""
    problem = name_problem(run_id)
    if problem is None and (run_id in (".", "..") or "\\" in run_id):
        problem = "it names a place in the file system; use letters, digits, '-', '_' and '.'"
    if problem is not None:
        raise JournalError(f"{run_id!r} is no id for a run: {problem}")
    return run_id


def checked_sync(sync: Sync) -> Sync:
    """Give the way to flush. Raises ValueError that lists what there is."""
    if sync not in get_args(Sync):
        raise ValueError(f"sync is one of {', '.join(map(repr, get_args(Sync)))}, not {sync!r}")
    return sync


def unknown_run(place: object, run_id: str, known: Iterable[str]) -> JournalError:
    """Give the error for a run that a store does not have."""
    known = tuple(known)
    there = f"the newest are: {', '.join(known[:5])}" if known else "there are none yet"
    return JournalError(f"there is no run {run_id!r} in {place}{nearest(run_id, known)}; {there}")


def known_run(place: object, run_id: str) -> JournalError:
    """Give the error for a new run whose id was used before."""
    return JournalError(
        f"there is a run {run_id!r} in {place} already; open it to go on with it (resume), or give "
        "the new run another id"
    )
