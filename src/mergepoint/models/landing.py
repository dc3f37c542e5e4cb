"""Landing: an attempt on an event loop. It ends in time, and a cancellation lets it land first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from mergepoint.core.errors import CallTimeout
from mergepoint.core.swift import swift

T = TypeVar("T")

GRACE = 30.0
_LAST_WORDS = 1.0  # seconds that a dropped call has to close its connection


@swift
@dataclass(frozen=True, slots=True)
class Limits:
    """How long an attempt may take, and how long one in flight has to land; in seconds.

    `until` is a moment of `time.monotonic` by which it has to end in any case. `late` says what
    was waited for, and `whose` policy says how long.
    """

    path: str
    timeout: float | None
    grace: float = GRACE
    until: float | None = None
    late: str = "the model gave no answer"
    whose: str = "step"

    @property
    def landing(self) -> float:
        """Give the seconds that an attempt has to land."""
        if self.until is None:
            return self.grace
        return min(self.grace, max(0.0, self.until - time.monotonic()))

    def overdue(self) -> CallTimeout:
        """Give the error of an attempt that took too long."""
        return CallTimeout(
            f"{self.path}: {self.late} within {self.timeout:g} s; give the {self.whose}'s policy "
            "a longer timeout, or retry to try again"
        )


class Landing:
    """One attempt in flight, in a task of its own, so that a cancellation does not reach it.

    A cancelled attempt goes on for up to the grace limit. `cancelled` then holds the
    cancellation, which is due once the answer is on record. A second one drops the attempt, which
    is then `given_up`, as one that takes too long.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.timeout
        self.cancelled: asyncio.CancelledError | None = None
        self.given_up = False
        self.pieces: list[Any] = []

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Give what the work gives. Raises CallTimeout."""
        task = asyncio.ensure_future(work)
        try:
            await _end_of(task, self._limits.timeout)
        except asyncio.CancelledError as error:
            await self._land(task, error)
        if not task.done():
            self.given_up = True
            await _drop(task)
            raise self._limits.overdue()
        return task.result()

    async def stream(self, start: Callable[[], AsyncIterator[T]]) -> AsyncGenerator[T, None]:
        """Give the pieces of a stream; after a cancellation they are in `pieces` alone.

        The time that the consumer takes does not count. The stream is read in one task from its
        start to its end, as providers' context variables and scopes ask for; it may be ahead of
        the consumer, by one answer at most. Raises CallTimeout.
        """
        news = asyncio.Event()
        task = asyncio.ensure_future(self._read(start, news))
        task.add_done_callback(lambda _: news.set())
        given = 0
        try:
            while self.cancelled is None:
                while given < len(self.pieces):
                    given += 1
                    yield self.pieces[given - 1]
                if task.done():
                    break
                await self._more(task, news)
            task.result()
        finally:
            await _drop(task)

    async def _read(self, start: Callable[[], AsyncIterator[Any]], news: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            stream = start()
            stack.push_async_callback(getattr(stream, "aclose", _nothing))
            async for piece in stream:
                self.pieces.append(piece)
                news.set()

    async def _more(self, task: asyncio.Future[None], news: asyncio.Event) -> None:
        """Wait for news of the stream, and after a cancellation for its end."""
        news.clear()
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._left):
                await news.wait()
        except TimeoutError:
            raise self._limits.overdue() from None
        except asyncio.CancelledError as error:
            await self._land(task, error)
        if self._left is not None:
            self._left = max(0.0, self._left - (time.monotonic() - started))

    async def _land(self, task: asyncio.Future[Any], error: asyncio.CancelledError) -> None:
        """Let a cancelled attempt come to its end. Raises the cancellation where it does not."""
        self.cancelled = error
        try:
            await _end_of(task, self._limits.landing)
        finally:
            self.given_up = not task.done()
            await _drop(task)
        if not task.done() or task.cancelled():
            raise error


async def awaited_in_time(work: Awaitable[T], limits: Limits) -> T:
    """Give what the work of a function gives; cancelled it does not land, as its calls do.

    Raises CallTimeout where the limits have a timeout.
    """
    if limits.timeout is None:
        return await work
    try:
        async with asyncio.timeout(limits.timeout) as timer:
            return await work
    except TimeoutError:
        if timer.expired():
            raise limits.overdue() from None
        raise


async def _end_of(task: asyncio.Future[Any], seconds: float | None) -> None:
    """Wait for a task's end, or so long. A cancellation does not reach the task.

    `asyncio.shield` and `asyncio.wait` do this at a third more of what a call costs here.
    """
    ended: asyncio.Future[None] = task.get_loop().create_future()

    def tell(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(tell)
    if seconds is None:
        await ended
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ended


async def _drop(task: asyncio.Future[Any]) -> None:
    """End a task that is not done, and look at its error, which asyncio would complain of."""
    if not task.done():
        task.add_done_callback(_looked_at)
        task.cancel()
        await _end_of(task, _LAST_WORDS)
    else:
        _looked_at(task)


def _looked_at(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def _nothing() -> None:
    """Close an iterator that cannot be closed."""
