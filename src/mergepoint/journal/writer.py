"""Writing to journals from an event loop: in a thread, in order, acknowledged before use.

Journals of a store share a writer, whose thread writes their records in groups (`group_commit`).
Before code uses an answer, it awaits the write of its record.

Shared code calls `append_record` instead of `Journal.append`. In sync code this appends. Async code
runs the same functions with `call_and_flush` or `FlushedContext`, in which `append_record` hands
the record to the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.group_commit import GroupedJournal
from mergepoint.journal.stores import Journal

P = ParamSpec("P")
T = TypeVar("T")


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
    # Not get_running_loop(): without a loop it raises, which every sync call would pay for.
    loop = asyncio._get_running_loop()
    if loop is None or not isinstance(journal, GroupedJournal):
        journal.append(record)
        return
    pending = _PENDING.get()
    if pending is not None and pending.loop is loop:
        pending.writes.append(journal.submit(record))
    elif later:
        journal.submit_unawaited(record)
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
