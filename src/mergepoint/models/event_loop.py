"""One event loop for the coroutines of sync callers, in a thread of its own.

Model clients keep connections that belong to the loop on which they were opened, and
langchain-openai shares one client among all models of a process. If each call closed its loop, the
connections left behind would fail the next call ("Event loop is closed"). So sync callers share one
loop for the life of the process.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from mergepoint.models.timeouts import result_of, wait_all

T = TypeVar("T")

_CLEANUP = 2.0  # seconds for work to end after the second Ctrl-C
_DEPTH: ContextVar[int] = ContextVar("mergepoint_loop_depth", default=0)


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that runs on the background loop, in the caller's context.

    This works in every thread, even in one with a running loop (Jupyter), which is blocked
    meanwhile. Work that calls this again gets a second loop, since the first may be blocked by it.

    The first Ctrl-C cancels the work and waits for its end, so that calls in progress can finish
    within their grace period. The second one cancels again, which drops those calls.

    Raises the errors of the work, and KeyboardInterrupt.
    """
    job = _Job(work)
    try:
        job.start(_LOOPS.at(_DEPTH.get()))
        return result_of(job.done)
    except CancelledError:
        raise asyncio.CancelledError from None
    except BaseException:
        job.end()
        raise
    finally:
        del job  # break the cycle of error, traceback and frame


class _Job(Generic[T]):
    """One coroutine on the background loop, and the future that its caller waits for."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.done: Future[T] = Future()
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._canceled = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule the work; the loop runs it in a copy of this thread's context."""
        self._loop = loop
        loop.call_soon_threadsafe(self._begin)

    def end(self) -> None:
        """Cancel the work and wait for its end, which another interrupt cuts short."""
        loop = self._loop
        if self.done.done() or loop is None:
            self._work.close()
            return
        try:
            loop.call_soon_threadsafe(self._cancel)
            wait_all([self.done])
        except BaseException:
            loop.call_soon_threadsafe(self._cancel)
            with suppress(CancelledError, TimeoutError):
                self.done.exception(_CLEANUP)
            raise

    def _begin(self) -> None:
        # The interrupt came before the loop started the work: there is no task to cancel.
        if self._canceled:
            self._work.close()
            self.done.cancel()
            return
        # The loop runs this in a copy of the caller's context, so the caller's depth stays.
        _DEPTH.set(_DEPTH.get() + 1)
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        self._canceled = True
        if self._task is not None:
            self._task.cancel()

    def _settle(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.done.cancel()
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())


class _Loops:
    """The background loops of this process: one, and one more for each nested sync call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []
        self._of_parent: list[object] = []

    def at(self, depth: int) -> asyncio.AbstractEventLoop:
        """Return the loop of a nesting depth, started at its first use."""
        with self._lock:
            while len(self._running) <= depth:
                self._running.append(_started(f"mergepoint-loop-{len(self._running)}"))
            return self._running[depth][0]

    def close(self) -> None:
        """Cancel the remaining work on the loops and stop them, when the process exits."""
        for loop, thread in self._running:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(_CLEANUP)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLEANUP)
            # asyncio raises RuntimeError if a loop is closed while it runs.
            if not thread.is_alive():
                loop.close()
        self._running.clear()

    def forget(self) -> None:
        """Leave the loops to the parent process, after a fork: their threads are there.

        They are not closed, because parent and child share the selector: the parent's loop would
        no longer be woken.
        """
        # A new lock: a thread of the parent may have held the old one at the fork.
        self._lock = threading.Lock()
        self._of_parent += self._running
        self._running = []


def _started(name: str) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run_forever, args=(loop,), name=name, daemon=True)
    thread.start()
    return loop, thread


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped.

    A KeyboardInterrupt from a task (an instrumented model raises it in a stopped run) reaches the
    waiting caller, but asyncio also raises it here; the loop continues for the others.
    """
    asyncio.set_event_loop(loop)
    while True:
        with suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()
            return


_LOOPS = _Loops()
atexit.register(_LOOPS.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOOPS.forget)
