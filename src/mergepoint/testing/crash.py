"""Simulated crashes: a run that ends as if its process was killed, inside the test process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal, Self

from mergepoint.journal.file_journal import FileJournal, FileStore
from mergepoint.journal.lines import encode
from mergepoint.journal.records import CallRecord, record_to_plain
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import RunHeader, Sync

When = Literal["before", "torn", "after"]


class Killed(SystemExit):
    """The end of a killed run.

    Error handlers don't catch it, and it ends an event loop immediately. (LangChain and asyncio let
    `SystemExit` pass from any task, but not other subclasses of BaseException.)
    """


@dataclass(frozen=True)
class KillingStore:
    """A store whose runs are killed at their `at`-th record, counted from 1.

    A resumed run counts from 1 again. The kill happens "before" the record is written, "after", or
    with half of its line written ("torn"), as a Killed that leaves the run. Afterward nothing is
    written, not even a transcript. Work in other threads continues, and is lost.
    """

    store: FileStore
    _: KW_ONLY
    at: int
    when: When = "after"

    @property
    def sync(self) -> Sync:
        """Return when written data is flushed."""
        return self.store.sync

    @property
    def redact(self) -> Redact | None:
        """Return the hook that redacts texts before they are written."""
        return self.store.redact

    def create(self, header: RunHeader) -> MortalJournal:
        """Create the journal of a run that will be killed. Raise JournalError as FileStore does."""
        return MortalJournal(self.store.create(header), at=self.at, when=self.when)

    def open(self, run_id: str) -> MortalJournal:
        """Open the journal of a run that will be killed. Raise JournalError as FileStore does."""
        return MortalJournal(self.store.open(run_id), at=self.at, when=self.when)

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of a run. Raise JournalError as FileStore does."""
        return self.store.read(run_id)

    def has(self, run_id: str) -> bool:
        """Return whether a run exists. Raise JournalError for an invalid id."""
        return self.store.has(run_id)

    def held(self, run_id: str) -> bool:
        """Return whether a process is writing a run."""
        return self.store.held(run_id)

    def runs(self) -> Sequence[str]:
        """Return the ids of all runs."""
        return self.store.runs()

    def folder_of(self, run_id: str) -> Path | None:
        """Return None: a killed process writes no transcript."""
        return None


class MortalJournal:
    """A journal in a file, up to the record at which its run is killed."""

    keyed = True

    def __init__(self, journal: FileJournal, *, at: int, when: When) -> None:
        self._journal = journal
        self._left = at
        self._when = when
        self._torn = b""
        self._lock = threading.Lock()

    @property
    def header(self) -> RunHeader:
        """Return the header of the run."""
        return self._journal.header

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return all records in the order in which they were written."""
        return self._journal.records

    def append(self, record: CallRecord) -> None:
        """Write one record, or raise Killed; later records are lost."""
        with self._lock:
            # Counted under the lock: of parallel calls, exactly one may hit the kill.
            self._left -= 1
            if self._left < 0:
                return
            if self._left > 0 or self._when == "after":
                self._journal.append(record)
            if self._left > 0:
                return
            if self._when == "torn":
                # Half a line is what a crash during a write leaves behind; readers must tolerate
                # it.
                line = encode(record_to_plain(record))
                self._torn = line[: len(line) // 2]
        raise Killed(f"the run was killed at the record of {record.key.full_path}")

    def close(self) -> None:
        """Close the file, which then ends as the kill left it."""
        self._journal.close()
        torn, self._torn = self._torn, b""
        if torn:
            with self._journal.path.open("ab") as file:
                file.write(torn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
