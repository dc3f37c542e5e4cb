"""Writing to journals from an event loop: in a thread, in order, acknowledged before use.

A write to a file or a database may wait for a disk or a lock, and would block the whole loop. So
each journal has a writer: one thread to which the loop hands records. They are written in the order
in which they were handed over. Before code uses an answer, it awaits the write of its record.

Shared code calls `append_record` instead of `Journal.append`. In sync code this appends. Async code
runs the same functions with `call_and_flush` or `FlushedContext`, in which `append_record` hands
the record to the writer.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.stores import Journal

P = ParamSpec("P")
T = TypeVar("T")


class Writer:
    """The thread that writes one journal's records, started with the first."""

    def __init__(self) -> None:
        self._waiting: deque[_Write] = deque()
        self._lock = threading.Lock()
        self._failed: Exception | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._owner = os.getpid()

    def submit(self, work: Callable[[], None], *, awaited: bool = True) -> asyncio.Future[None]:
        """Hand over a write on an event loop; its future is done when all writes up to it are.

        The error of a write that is not awaited is raised by the next awaited one. Writes are in
        order: when an answer is recorded, everything handed over before it is too.
        """
        if self._owner != os.getpid():
            self._forget_parent()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="mergepoint-writer")
        write = _Write(work, awaited)
        self._waiting.append(write)
        return asyncio.get_running_loop().run_in_executor(self._thread, self._finish, write)

    def close(self) -> None:
        """Write the rest, and end the thread. Raises the error of a write that was not awaited."""
        if self._owner != os.getpid():
            self._forget_parent()
        # The rest is written here and not awaited: the loop may be closed already.
        thread, self._thread = self._thread, None
        self._write_up_to(None)  # waits for a write that has left the queue and still runs
        if thread is not None:
            # Its queued tasks find their writes done, and return.
            thread.shutdown(wait=False)
        self._raise_failed()

    def _forget_parent(self) -> None:
        """Reset the writer in a forked process: thread, queue and lock are its parent's.

        The parent's thread may hold the lock at the fork, so nothing would release it in the child.
        """
        self._thread, self._waiting, self._lock = None, deque(), threading.Lock()
        self._owner = os.getpid()

    def _finish(self, last: _Write) -> None:
        self._write_up_to(last)
        if not last.awaited:
            return
        if last.error is not None:
            raise last.error
        if self._failed is not None:
            self._raise_failed()

    def _write_up_to(self, last: _Write | None) -> None:
        """Write what waits, in order, up to one write or all of it.

        One task may finish several queued writes; the later tasks then find theirs done.
        """
        with self._lock:
            while self._waiting and not (last is not None and last.done):
                write = self._waiting.popleft()
                try:
                    write.work()
                except BaseException as error:  # noqa: BLE001  (raised where the write is awaited)
                    write.error = error
                    if not write.awaited and isinstance(error, Exception):
                        self._failed = self._failed or error
                write.done = True

    def _raise_failed(self) -> None:
        error, self._failed = self._failed, None
        if error is not None:
            raise error


@dataclass(slots=True)
class _Write:
    """One write, and its outcome."""

    work: Callable[[], None]
    awaited: bool
    done: bool = False
    error: BaseException | None = None


class PendingWrites:
    """The writes that one piece of async code has handed over and must await."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.writes: list[asyncio.Future[None]] = []
        self.after: list[Callable[[], None]] = []

    def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function; records that it appends are handed over to their writers."""
        token = _PENDING.set(self)
        try:
            return function(*args, **options)
        finally:
            _PENDING.reset(token)

    async def end(self) -> None:
        """Await the writes, then send their notifications. Raises the first error."""
        for write in self.writes:
            await write
        for tell in self.after:
            tell()


_PENDING: ContextVar[PendingWrites | None] = ContextVar("mergepoint_pending", default=None)


def append_record(journal: Journal, record: CallRecord, *, later: bool = False) -> None:
    """Append a record to a journal, or hand it to the journal's writer.

    Args:
        journal: The journal.
        record: The record.
        later: Hand over a record that no answer depends on, in any async code.
    """
    writer: Writer | None = getattr(journal, "writer", None)
    # Not get_running_loop(): without a loop it raises, which every sync call would pay for.
    loop = None if writer is None else asyncio._get_running_loop()
    if writer is None or loop is None:
        journal.append(record)
        return
    pending = _PENDING.get()
    if pending is not None and pending.loop is loop:
        pending.writes.append(writer.submit(partial(journal.append, record)))
    elif later:
        writer.submit(partial(journal.append, record), awaited=False)
    else:
        journal.append(record)


def after_writes(tell: Callable[[], None]) -> None:
    """Call a function once the records that were appended before are written."""
    pending = _PENDING.get()
    if pending is not None and pending.loop is asyncio._get_running_loop():
        pending.after.append(tell)
    else:
        tell()


async def call_and_flush(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return the result of a function once the records that it appended are written."""
    pending = PendingWrites()
    try:
        return pending.run(function, *args, **options)
    finally:
        if pending.writes or pending.after:
            await pending.end()


class FlushedContext:
    """A sync context manager in async code, whose records are awaited at both ends."""

    def __init__(self, inner: AbstractContextManager[Any, bool | None]) -> None:
        self._inner = inner

    async def __aenter__(self) -> Any:
        pending = PendingWrites()
        value = pending.run(self._inner.__enter__)
        try:
            if pending.writes or pending.after:
                await pending.end()
        except BaseException as error:
            # Entered, but not on disk: it is left again, since `__aexit__` is not called.
            await call_and_flush(self._inner.__exit__, type(error), error, error.__traceback__)
            raise
        return value

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await call_and_flush(self._inner.__exit__, kind, error, trace)


async def run_off_loop(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Run a function that opens, reads or closes files in a thread, and return its result.

    A cancellation waits until the function has returned, and closes what it opened.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **options))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # A thread cannot be stopped. Without waiting, what it opens would stay open and locked.
        while not work.done():
            await asyncio.wait([work])
        if work.exception() is None:
            close = getattr(work.result(), "close", None)
            if close is not None:
                await asyncio.to_thread(close)
        raise


@asynccontextmanager
async def in_threads(manager: AbstractContextManager[T, bool | None]) -> AsyncIterator[T]:
    """Enter and leave a context manager of files in threads, around async code."""
    try:
        value = await run_off_loop(manager.__enter__)
    except asyncio.CancelledError as error:  # run_off_loop has waited until the files are open
        await run_off_loop(manager.__exit__, type(error), error, error.__traceback__)
        raise
    try:
        yield value
    except BaseException as error:
        if not await run_off_loop(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await run_off_loop(manager.__exit__, None, None, None)
