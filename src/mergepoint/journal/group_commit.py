"""Group commit: one thread per store writes the records of all its journals, in groups.

A write to a file or a database may wait for a disk or a lock, and would block a whole event loop.
So a store has one writer. Code on an event loop hands records to it and awaits their writes; while
one group is written, the next one collects. Sync code writes in its own thread, together with all
that waits. The records of a journal are written in the order in which they were handed over.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakSet

from mergepoint.journal.call_records import CallRecord, record_to_plain
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.redact import Redact, encode_safe
from mergepoint.journal.stores import RunHeader

_MOST = 500  # records in a group; a store's memory and its longest lock are bounded by it
_YIELD_SECONDS = 0.002  # well below the interpreter's switch interval of 5 ms


@dataclass(slots=True, eq=False)
class LineWrite:
    """A record on its way to a store, and its outcome.

    Args:
        journal: The journal of its run.
        record: The record.
        awaited: Whether code waits for the outcome; otherwise the next awaited write of the journal
        raises its error.
        future: What code on an event loop awaits.
        line: Its bytes in the store; if they are set, it isn't encoded.
        error: Why it isn't stored. A commit function sets it.
        done: Whether the outcome is known.
    """

    journal: GroupedJournal
    record: CallRecord
    awaited: bool = True
    future: asyncio.Future[None] | None = None
    line: bytes = b""
    error: BaseException | None = None
    done: bool = False


class GroupWriter:
    """The writer of a store: it encodes the records that wait, and commits them as one group.

    Args:
        commit: Store the lines of a group in this order, of any number of journals, so that they
            survive a crash of the process. It sets `error` of each write that isn't stored; an
            error that it raises is the error of all. One thread calls it at a time.
    """

    def __init__(self, commit: Callable[[Sequence[LineWrite]], None]) -> None:
        self._commit = commit
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[LineWrite] = deque()
        self._failed: dict[GroupedJournal, BaseException] = {}
        self._lock = threading.Lock()  # of whoever commits
        self._journals: WeakSet[GroupedJournal] = WeakSet()
        self._thread: ThreadPoolExecutor | None = None
        self._scheduled = False  # a task of the thread will write what waits
        self._mutex = threading.Lock()  # of the thread's start, tasks and end
        self._owner = os.getpid()

    def begin(self, journal: GroupedJournal) -> None:
        """Take a journal whose records this will write, until it is finished."""
        self._check_process()
        self._journals.add(journal)

    def append(self, journal: GroupedJournal, record: CallRecord) -> None:
        """Write a record in this thread, after all that wait. Raises its error."""
        self.write(LineWrite(journal, record))

    def write(self, write: LineWrite) -> None:
        """Write in this thread, after all that waits. Raises the error."""
        self._check_process()
        self._waiting.append(write)
        self._write_waiting(write)
        if write.error is not None:
            raise write.error

    def submit(self, journal: GroupedJournal, record: CallRecord) -> asyncio.Future[None]:
        """Hand over a record on an event loop; the future is done when it is stored.

        The future raises the record's error, or that of an earlier one that nobody awaited. Writes
        are in order: when an answer is stored, everything that its run handed over before it is.
        """
        future = asyncio.get_running_loop().create_future()
        self._hand_over(LineWrite(journal, record, future=future))
        return future

    def submit_unawaited(self, journal: GroupedJournal, record: CallRecord) -> None:
        """Hand over a record that nobody awaits; the journal's next awaited one raises its error.

        The last chance is `finish`.
        """
        self._hand_over(LineWrite(journal, record, awaited=False))

    def finish(self, journal: GroupedJournal) -> None:
        """Write what waits, in this thread. Raises the error of a journal's unawaited write.

        With the last journal the thread ends; a later record starts another one.
        """
        self._check_process()
        # Not left to the thread: at the end of the interpreter it takes no work any more.
        self._write_waiting()
        with self._mutex:
            self._journals.discard(journal)
            if not self._journals and self._thread is not None:
                self._thread.shutdown(wait=False)
                self._thread = None
        if (error := self._failed.pop(journal, None)) is not None:
            raise error

    def _hand_over(self, write: LineWrite) -> None:
        self._check_process()
        self._waiting.append(write)
        if self._scheduled:
            return
        with self._mutex:
            self._scheduled = True
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="mergepoint-writer")
            # By the loop, so that a simulated one runs it as a step of its own.
            asyncio.get_running_loop().run_in_executor(self._thread, self._run)

    def _run(self) -> None:
        # Reset first: a record that is handed over from here on is either in the next group, or
        # schedules another task.
        self._scheduled = False
        self._write_waiting()

    def _check_process(self) -> None:
        """Reset the writer in a forked process: thread, queue and locks are its parent's.

        The parent's thread may hold a lock at the fork, so nothing would release it in the child.
        """
        if self._owner != os.getpid():
            self._reset()

    def _write_waiting(self, last: LineWrite | None = None) -> None:
        """Write what waits now in groups, or up to one write."""
        # Not until nothing waits: other threads may hand over records faster than this one writes.
        left = len(self._waiting)
        while True:
            # Waits also for a group that has left the queue and is being written.
            with self._lock:
                if left <= 0 if last is None else last.done:
                    return
                group = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
                left = left - len(group) if group else 0
                self._write(group)

    def _write(self, group: Sequence[LineWrite]) -> None:
        try:
            self._encode(group)
            whole = [write for write in group if write.error is None]
            if whole:
                self._commit(whole)
            for write in whole:
                if write.error is None:
                    write.journal.stored(write.record)
        except Exception as error:  # noqa: BLE001  (raised where the writes are awaited)
            _fail(group, error)
        except BaseException:
            # Of a signal in sync code, which hits others' records too.
            _fail(group, JournalError("the write was interrupted; to continue, resume the run"))
            raise
        finally:
            self._finish(group)

    def _encode(self, group: Sequence[LineWrite]) -> None:
        begun = time.perf_counter()
        for write in group:
            try:
                write.line = write.line or write.journal.encode(write.record)
            except Exception as error:  # noqa: BLE001  (raised where the write is awaited)
                write.error = error
            if time.perf_counter() - begun > _YIELD_SECONDS:
                # Encoding keeps the interpreter's lock: the event loop gets its turn in between.
                time.sleep(0)
                begun = time.perf_counter()

    def _finish(self, group: Sequence[LineWrite]) -> None:
        """Set the outcome of writes, and wake each event loop once."""
        loops: dict[asyncio.AbstractEventLoop, list[LineWrite]] = {}
        for write in group:
            if not write.awaited:
                if write.error is not None:
                    self._failed.setdefault(write.journal, write.error)
            elif self._failed and write.error is None:
                write.error = self._failed.pop(write.journal, None)
            write.done = True
            if write.future is not None:
                loops.setdefault(write.future.get_loop(), []).append(write)
        for loop, writes in loops.items():
            with suppress(RuntimeError):  # the loop is closed, and nobody awaits
                loop.call_soon_threadsafe(_resolve, writes)


def _fail(group: Iterable[LineWrite], error: BaseException) -> None:
    for write in group:
        write.error = write.error or error


def _resolve(writes: Iterable[LineWrite]) -> None:
    for write in writes:
        future = write.future
        if future is None or future.done():  # cancelled
            continue
        if write.error is None:
            future.set_result(None)
        else:
            future.set_exception(write.error)


class GroupedJournal(ABC):
    """The journal of one run, whose records a store's writer writes; stores return subclasses.

    After `append` returns, the record survives a crash of the process. It is safe to write from
    several threads. Secrets are masked; `redact` is a hook that may change the texts.
    """

    keyed = True

    def __init__(
        self,
        writer: GroupWriter,
        header: RunHeader,
        records: Iterable[CallRecord],
        *,
        place: str,
        redact: Redact | None,
    ) -> None:
        self.header = header
        self.place = place
        self._writer = writer
        self._records = list(records)
        self._redact = redact
        self._owner = os.getpid()
        writer.begin(self)

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return all records in the order in which they were written."""
        return tuple(self._records)

    def append(self, record: CallRecord) -> None:
        """Write one record: completely, or not at all.

        Raises JournalError if it is not written, as on a full disk. Earlier records stay, and later
        appends work once there is room.
        """
        self._check_run(record)
        self._writer.append(self, record)

    def submit(self, record: CallRecord) -> asyncio.Future[None]:
        """Hand over a record on an event loop; see `GroupWriter.submit`."""
        self._check_run(record)
        return self._writer.submit(self, record)

    def submit_unawaited(self, record: CallRecord) -> None:
        """Hand over a record that nobody awaits; see `GroupWriter.submit_unawaited`."""
        self._check_run(record)
        self._writer.submit_unawaited(self, record)

    def encode(self, record: CallRecord) -> bytes:
        """Return a record's line, without secrets. Raises JournalError with its place."""
        return encode_at(
            self.place,
            f"the record of {record.key.full_path}",
            record_to_plain(record),
            self._redact,
        )

    def stored(self, record: CallRecord) -> None:
        """Take notice of a record that is stored."""
        # A start tells a resumed run of a call in progress, and nothing reads it before.
        if not record.begun:
            self._records.append(record)

    def close(self) -> None:
        """Write what waits, flush the journal and unlock the run; a second call does nothing.

        Raises JournalError if that fails, and the error of a record that nobody awaited.
        """
        try:
            # First, because records that wait in the queue need the open run.
            self._writer.finish(self)
        finally:
            self.release()

    @abstractmethod
    def release(self) -> None:
        """Flush the journal and unlock the run; a second call does nothing."""

    @property
    def is_own(self) -> bool:
        """Return whether this process opened it, and not the one that forked this process."""
        return self._owner == os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_run(self, record: CallRecord) -> None:
        if record.key.run != self.header.run_id:
            raise JournalError(
                f"{self.place} is the journal of run {self.header.run_id!r}, the record of "
                f"{record.key.full_path} is of run {record.key.run!r}; give each run its own"
            )


def encode_at(place: object, what: str, plain: dict[str, Any], redact: Redact | None) -> bytes:
    """Return plain data as a line without secrets. Raises JournalError with the place."""
    try:
        return encode_safe(plain, redact)
    except JournalError as error:
        raise JournalError(f"{place}: {what} cannot be written: {error}") from error


def by_journal(group: Sequence[LineWrite]) -> dict[Any, list[LineWrite]]:
    """Return the writes of a group by their journals, each in order."""
    found: dict[Any, list[LineWrite]] = {}
    for write in group:
        found.setdefault(write.journal, []).append(write)
    return found
