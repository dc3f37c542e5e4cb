"""Killed: a run that ends as by a kill of its process, in the process of the test."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal, Self

from mergepoint.record.file_journal import FileJournal
from mergepoint.record.file_store import FileStore
from mergepoint.record.header import RunHeader
from mergepoint.record.lines import encode
from mergepoint.record.plain import record_to_plain
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact
from mergepoint.record.store import Sync

When = Literal["before", "torn", "after"]


class Killed(SystemExit):
    """The end of a run that was killed.

    Nothing that handles errors catches it, and it ends an event loop at once. (LangChain and
    asyncio let `SystemExit` through from any task, and other subclasses of BaseException not.)
    """


@dataclass(frozen=True)
class KillingStore:
    """Keeps journals in a FileStore, and kills a run at its `at`-th record, counted from 1.

    A run that is resumed counts anew. It is killed "before" the record is written, "after", or
    when a half of its line is ("torn"), by a Killed that leaves the run. From then on nothing is
    written any more, no transcript either. What goes on in other threads goes on, and is lost.
    """

    store: FileStore
    _: KW_ONLY
    at: int
    when: When = "after"

    @property
    def sync(self) -> Sync:
        """Give when what is written is flushed."""
        return self.store.sync

    @property
    def redact(self) -> Redact | None:
        """Give the hook that changes texts before they are written."""
        return self.store.redact

    def create(self, header: RunHeader) -> MortalJournal:
        """Begin the journal of a run that will be killed. Raises JournalError as FileStore does."""
        return MortalJournal(self.store.create(header), at=self.at, when=self.when)

    def open(self, run_id: str) -> MortalJournal:
        """Go on with a run that will be killed. Raises JournalError as FileStore does."""
        return MortalJournal(self.store.open(run_id), at=self.at, when=self.when)

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Give header and records of a run. Raises JournalError as FileStore does."""
        return self.store.read(run_id)

    def has(self, run_id: str) -> bool:
        """Say whether a run of this id has begun. Raises JournalError for an id that is none."""
        return self.store.has(run_id)

    def held(self, run_id: str) -> bool:
        """Say whether a process writes a run now."""
        return self.store.held(run_id)

    def runs(self) -> Sequence[str]:
        """Give the ids of all runs."""
        return self.store.runs()

    def folder_of(self, run_id: str) -> Path | None:
        """Give no folder: a process that was killed writes no transcript."""
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
        """Give what the run began with."""
        return self._journal.header

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Give all records in the order in which they were written."""
        return self._journal.records

    def append(self, record: CallRecord) -> None:
        """Write one record, or raise Killed; a record after that one is lost."""
        with self._lock:
            self._left -= 1
            if self._left < 0:
                return
            if self._left > 0 or self._when == "after":
                self._journal.append(record)
            if self._left > 0:
                return
            if self._when == "torn":
                line = encode(record_to_plain(record))
                self._torn = line[: len(line) // 2]
        raise Killed(f"the run was killed at the record of {record.key.full_path}")

    def running(self, path: str) -> AbstractContextManager[None]:
        """Hold a root's full path while it runs."""
        return self._journal.running(path)

    def close(self) -> None:
        """Let go of the file, which then ends as the kill left it."""
        self._journal.close()
        torn, self._torn = self._torn, b""
        if torn:
            with self._journal.path.open("ab") as file:
                file.write(torn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
