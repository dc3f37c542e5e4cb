"""Timeouts, cancellation and tracking of attempts in progress, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from mergepoint.core.errors import CallTimeout, StepError

T = TypeVar("T")

GRACE = 30.0
CHECK = 0.5
"""Seconds after which a waiting main thread wakes, so that Python runs its signal handlers.

A Ctrl-C that arrives just before an endless wait begins does not end it: Python runs handlers when
the thread wakes, and nothing wakes it. 4 of 60 calls that pressed Ctrl-C at once waited until their
timeout.
"""
_LAST_WORDS = 1.0  # seconds for a dropped call to close its connection


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The timeout of an attempt, and the time for a cancelled one to finish, in seconds.

    `until` is a time of `time.monotonic` by which it must end in any case. `late` describes the
    missing result in errors, and `whose` the node whose policy sets the timeout.
    """

    path: str
    timeout: float | None
    grace: float = GRACE
    until: float | None = None
    late: str = "the model gave no answer"
    whose: str = "step"

    @property
    def landing(self) -> float:
        """Return the seconds that a cancelled attempt has to finish."""
        if self.until is None:
            return self.grace
        return min(self.grace, max(0.0, self.until - time.monotonic()))

    def overdue(self) -> CallTimeout:
        """Return the error of an attempt that took too long."""
        return CallTimeout(
            f"{self.path}: {self.late} within {self.timeout:g} s; give the {self.whose}'s policy "
            "a longer timeout, or the run (timeout=, --timeout), or retry to try again"
        )


class CancellationShield:
    """One attempt in a task of its own, so that a cancellation does not reach it.

    A call that has been sent must be paid for, so a cancelled attempt continues for up to the grace
    period. `cancelled` is then the cancellation, which is raised once the answer is recorded. A
    second cancellation drops the attempt, which is then `given_up`, like one that takes too long.
    """

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._left = limits.timeout
        self.cancelled: asyncio.CancelledError | None = None
        self.given_up = False
        self.pieces: list[Any] = []

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work. Raises CallTimeout."""
        task = asyncio.ensure_future(work)
        try:
            await _end_of(task, self._limits.timeout)
        except asyncio.CancelledError as error:
            await self._land(task, error)
        if not task.done():
            # Set before the task is cancelled: an answer that still arrives must not be recorded.
            self.given_up = True
            await _drop(task)
            raise self._limits.overdue()
        return task.result()

    async def stream(self, start: Callable[[], AsyncIterator[T]]) -> AsyncGenerator[T, None]:
        """Yield the pieces of a stream; after a cancellation they are only in `pieces`.

        The consumer's time does not count. One task reads the whole stream, because providers'
        context variables and cancel scopes require it. It may be ahead of the consumer, by one
        answer at most. Raises CallTimeout.
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
            stack.push_async_callback(getattr(stream, "aclose", _close_nothing))
            async for piece in stream:
                self.pieces.append(piece)
                news.set()

    async def _more(self, task: asyncio.Future[None], news: asyncio.Event) -> None:
        """Wait for the next piece of the stream, and after a cancellation for its end."""
        # Nothing was awaited since the pieces were counted, so no signal is lost here.
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
        """Wait until a cancelled attempt has finished. Raises the cancellation if it does not."""
        self.cancelled = error
        try:
            await _end_of(task, self._limits.landing)
        finally:
            self.given_up = not task.done()
            await _drop(task)
        if not task.done() or task.cancelled():
            raise error


async def awaited_in_time(work: Awaitable[T], limits: TimeLimits) -> T:
    """Return the result of a function's work; unlike calls, it is cancelled immediately.

    Raises CallTimeout if the limits have a timeout.
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
    """Wait for a task's end, or a number of seconds. A cancellation does not reach the task.

    `asyncio.shield` and `asyncio.wait` would add a third to the cost of a call here.
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
    """Cancel a task that is not done, and retrieve its error, or asyncio would log it."""
    if not task.done():
        task.add_done_callback(_looked_at)
        task.cancel()
        await _end_of(task, _LAST_WORDS)
    else:
        _looked_at(task)


def _looked_at(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def _close_nothing() -> None:
    """Close an iterator that cannot be closed."""


_END = object()


def in_time(work: Callable[[], T], limits: TimeLimits) -> T:
    """Return the result of the work. Raises CallTimeout if the limits have a timeout."""
    if limits.timeout is None:
        return work()
    return HelperThread(limits).ask(work, last=True)


def pieces_in_time(
    start: Callable[[], Iterable[T]], limits: TimeLimits
) -> Generator[T, None, None]:
    """Yield the pieces of a stream; the consumer's time does not count.

    Raises CallTimeout if the limits have a timeout.
    """
    if limits.timeout is None:
        yield from start()
        return
    aside = HelperThread(limits)
    close = None
    try:
        stream: Any = iter(aside.ask(start))
        close = getattr(stream, "close", None)
        while (piece := aside.ask(partial(next, stream, _END))) is not _END:
            yield piece
    finally:
        aside.end(close)


class HelperThread:
    """A thread that runs one function after another, in a copy of the context.

    Python cannot end a thread. A late one continues until its function returns, and the result is
    lost. It is a daemon, so that the process can exit before.
    """

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._left = limits.timeout
        self._context = copy_context()
        self._done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        try:  # an idle thread: to start one for each call costs 0.1 ms
            # Popped without a look at the length: another thread may take the last one in between.
            self._helper = _IDLE.pop()
        except IndexError:
            self._helper = SimpleQueue()
            threading.Thread(target=_work, args=(self._helper,), daemon=True).start()

    def ask(self, work: Callable[[], T], *, last: bool = False) -> T:
        """Return the result of the work; the timeout applies to all calls together.

        Nothing may be called after the `last` one. Raises CallTimeout.
        """
        started = time.monotonic()
        self._helper.put((partial(self._context.run, work), self._done, last))
        while True:
            left = CHECK if self._left is None else started + self._left - time.monotonic()
            try:
                value, error = self._done.get(timeout=max(0.0, min(CHECK, left)))
            except Empty:
                if left <= CHECK and self._left is not None:
                    raise self._limits.overdue() from None
            else:
                break
        if self._left is not None:
            self._left = max(0.0, self._left - (time.monotonic() - started))
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def end(self, last: Callable[[], Any] | None = None) -> None:
        """Release the thread after one last function."""
        self._helper.put((partial(self._context.run, last or _nothing), self._done, True))


_Helper = SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any], bool]]
_IDLE: list[_Helper] = []
_MOST_IDLE = 32
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_IDLE.clear)  # a child has none of the threads


def _work(asked: _Helper) -> None:
    while True:
        work, done, last = asked.get()
        result: tuple[Any, BaseException | None]
        try:
            result = work(), None
        except BaseException as error:  # noqa: BLE001  (raised again in the waiting thread)
            result = None, error
        ends = last and len(_IDLE) >= _MOST_IDLE
        if last and not ends:
            _IDLE.append(asked)  # before the result, so that the next caller finds it
        done.put(result)
        # While the thread is idle, these would keep the last answer and its context alive.
        del work, done, result
        if ends:
            return


def _nothing() -> None:
    pass


def result_of(future: Future[T]) -> T:
    """Return a future's result, or raise its error; Ctrl-C ends the wait (see CHECK)."""
    wait_all([future])
    return future.result()


def wait_all(futures: Iterable[Future[Any]]) -> None:
    """Wait until all futures are done; Ctrl-C ends the wait (see CHECK)."""
    # concurrent.futures.wait() takes no notice of a future that was cancelled before it ran.
    for future in futures:
        while not future.done():
            with contextlib.suppress(CancelledError, TimeoutError):
                future.exception(CHECK)


class Stopwatch:
    """A stopwatch that runs from its creation, and is paused while any pause is open.

    It never goes back, whatever its clock does. It is safe to use from several threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = clock()
        self._elapsed = 0.0
        self._pauses = 0
        self._stopped = False

    @property
    def elapsed(self) -> float:
        """Return the seconds since its creation, without pauses."""
        with self._lock:
            self._advance()
            return self._elapsed

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Pause it; of several concurrent pauses, the last one to end resumes it."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def stop(self) -> None:
        """Pause it until `start`."""
        with self._lock:
            self._advance()
            self._stopped = True

    def start(self) -> float:
        """Resume it, unless it runs, and return the seconds since its creation, without pauses."""
        with self._lock:
            self._advance()
            self._stopped = False
            return self._elapsed

    def _count(self, change: int) -> None:
        with self._lock:
            self._advance()
            self._pauses += change

    def _advance(self) -> None:
        now = self._clock()
        if not self._pauses and not self._stopped:
            self._elapsed += max(0.0, now - self._last)
        self._last = now


class AttemptTracker:
    """The attempts in progress of one function, in any thread or task.

    After the function has returned, no attempt starts, and those in progress finish.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Condition()
        self._count = 0
        self._closed = False
        self._landed: Callable[[], object] | None = None

    def check(self) -> None:
        """Raise StepError if the function has returned."""
        if self._closed:
            raise StepError(
                f"{self._path}: a model of this call was asked after the call had ended; wait for "
                "threads and tasks before the function returns"
            )

    def begin(self) -> None:
        """Note that an attempt starts. Raises StepError if the function has returned."""
        with self._lock:
            self.check()
            self._count += 1

    def end(self) -> None:
        """Note that an attempt has finished and is recorded."""
        with self._lock:
            self._count -= 1
            if not self._count:
                self._lock.notify_all()
                if self._landed is not None:
                    self._landed()

    def close(self) -> None:
        """Prevent further attempts."""
        with self._lock:
            self._closed = True

    def land(self) -> None:
        """Wait until all attempts have finished, up to the grace period."""
        with self._lock:
            self._lock.wait_for(lambda: not self._count, GRACE)

    async def aland(self) -> None:
        """Wait as `land` does, on an event loop."""
        loop, landed = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if not self._count:
                return
            # Under the lock: the last attempt could end between the check and this line.
            self._landed = lambda: loop.call_soon_threadsafe(landed.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await landed.wait()
        finally:
            self._landed = None


class StopSignal:
    """The attempts in progress of a run, and whether another may start.

    It has no lock: a signal handler that waits for the thread that it interrupts would deadlock.
    Single operations on a set are atomic in Python.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._in_flight: set[int] = set()

    def stop(self) -> bool:
        """Prevent further attempts, and return whether one is in progress."""
        self.stopped = True
        return bool(self._in_flight)

    def check(self) -> None:
        """Raise KeyboardInterrupt if the run was stopped."""
        if self.stopped:
            raise KeyboardInterrupt("the run was told to stop")

    def begin(self, attempt: object) -> None:
        """Note that an attempt starts."""
        self._in_flight.add(id(attempt))

    def end(self, attempt: object) -> None:
        """Note that an attempt has finished."""
        self._in_flight.discard(id(attempt))


STOP_SIGNAL: ContextVar[StopSignal | None] = ContextVar("mergepoint_halt", default=None)


@contextmanager
def stop_signal() -> Iterator[StopSignal]:
    """Yield a stop signal for the runs inside `with`, in any thread that they use.

    It is for a handler of Ctrl-C. An exception from the handler would abort the call of its own
    thread, although it is paid, and would not stop the work in other threads. So the handler calls
    `stop`, and raises only if nothing is in progress. The next call raises KeyboardInterrupt
    instead.
    """
    halt = StopSignal()
    token = STOP_SIGNAL.set(halt)
    try:
        yield halt
    finally:
        STOP_SIGNAL.reset(token)
