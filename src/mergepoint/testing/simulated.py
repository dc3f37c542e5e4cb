"""A simulated event loop: virtual time, and an order of tasks that a seed decides."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from itertools import count
from random import Random
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from mergepoint.core.errors import RailError
from mergepoint.testing.simulated_deadlock import Deadlock, waits_of
from mergepoint.testing.simulated_outside import Inside

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS = 1_000_000
"""How many steps a simulation may take, unless it says otherwise."""

Callback: TypeAlias = Callable[..., object]


class TooManySteps(RailError):
    """A simulation that took more steps than it may: some task turns without end."""


class SimulatedLoop(Inside):
    """An asyncio event loop for one thread, in which waiting takes no time.

    Of the tasks that could go on, `seed` decides which one does; one seed, one run. Callbacks
    keep their order, as asyncio promises, and with `seed=None` tasks do too. The clock starts at
    0 and goes on, to the next timer, when nothing is ready. Where there is no timer, Deadlock is
    raised; after `most` steps TooManySteps.

    Functions for executors run in the loop's thread, at a moment that the seed decides. What
    would reach outside (sockets, processes, signals, other threads) is refused with RuntimeError.

    `steps` counts what was run. If it is `traced`, `transcript` has a line for each step.
    """

    def __init__(
        self, *, seed: int | str | None = 0, most: int = STEPS, traced: bool = False
    ) -> None:
        super().__init__()
        self.steps = 0
        self.transcript: list[str] = []
        self._most = most
        self._traced = traced
        self._random = None if seed is None else Random(seed)  # noqa: S311  (no secret)
        self._now = 0.0
        self._in_order: deque[tuple[asyncio.Handle, Callback]] = deque()
        self._in_any_order: list[tuple[asyncio.Handle, Callback]] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Callback]] = []
        self._alarms: list[tuple[int, int, asyncio.Handle]] = []
        self._counter = count()
        self._names = count(1)
        self._thread = threading.get_ident()
        self._unseen: list[BaseException] = []

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function to its end, then end what it left, and close the loop.

        Errors that nobody saw, of tasks that were dropped and of callbacks, come as an
        ExceptionGroup.
        """
        try:
            try:
                result = self.run_until_complete(main())
            finally:
                self._end_tasks()
        finally:
            self.close()
        if self._unseen:
            raise BaseExceptionGroup("nobody in the simulation saw these errors", self._unseen)
        return result

    def time(self) -> float:
        """Give the simulated seconds since the loop was made."""
        return self._now

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call in a later step."""
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._add(handle, callback, free=_is_step(callback))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at a simulated time."""
        self._check_open()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._counter), handle, callback))
        return handle

    def call_at_step(
        self, step: int, callback: Callable[[*Ts], object], *args: *Ts
    ) -> asyncio.Handle:
        """Call before a step, counted from 0: so a fault comes at any await there is."""
        handle = asyncio.Handle(callback, args, self)
        heapq.heappush(self._alarms, (step, next(self._counter), handle))
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call in a later step. Raises RuntimeError in another thread."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "another thread calls into a simulated loop, at a moment that no seed decides: "
                "hand its work to `asyncio.to_thread` or `loop.run_in_executor`"
            )
        return self.call_soon(callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Make a task; without a name it is numbered in this loop, not in the process."""
        options["name"] = options.get("name") or f"task-{next(self._names)}"
        return super().create_task(coro, **options)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call a function in this thread, in a later step, as if no loop was running.

        A function that waits there for the loop to do something waits for ever.
        """
        future: asyncio.Future[T] = self.create_future()
        handle = asyncio.Handle(self._work, (future, func, args), self, Context())
        self._add(handle, func, free=True)
        return future

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an error that nobody saw."""
        self._unseen.append(context.get("exception") or RuntimeError(context["message"]))

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: Any) -> None:
        if future.done():
            return
        asyncio._set_running_loop(None)
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  (it is the result)
            future.set_exception(error)
        finally:
            asyncio._set_running_loop(self)

    def _check_open(self) -> None:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")

    def _add(self, handle: asyncio.Handle, callback: Callback, *, free: bool) -> None:
        """Make something ready; what is `free` has no place in the order."""
        line = self._in_any_order if free and self._random is not None else self._in_order
        line.append((handle, callback))

    def _run_once(self) -> None:
        """Make one step, where asyncio's own loop makes all that are ready."""
        if self._alarms and self._alarms[0][0] <= self.steps:
            heapq.heappop(self._alarms)[2]._run()
            return
        if self.steps >= self._most:
            raise TooManySteps(
                f"the simulation took {self.steps:,} steps and is not at its end: a task turns "
                "without end, or it needs a higher limit (`most`)"
            )
        if not (self._in_order or self._in_any_order):
            self._pass_time()
        handle, callback = self._next()
        if handle.cancelled():
            return
        if self._traced:
            self.transcript.append(f"{self._now!r} {_name(callback)}")
        self.steps += 1
        handle._run()
        del handle, callback  # an error of the task holds this frame, which must not hold the task

    def _next(self) -> tuple[asyncio.Handle, Callback]:
        """Give what runs now: the next callback, or any task."""
        free = self._in_any_order
        among = len(free) + bool(self._in_order)
        index = 0 if self._random is None else int(self._random.random() * among)
        if index == len(free):
            return self._in_order.popleft()
        free[index], free[-1] = free[-1], free[index]
        return free.pop()

    def _pass_time(self) -> None:
        """Let time pass until the next timer. Raises Deadlock where there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(self._now, waits_of(asyncio.all_tasks(self)))
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, handle, callback = heapq.heappop(timers)
            self._add(handle, callback, free=False)

    def _end_tasks(self) -> None:
        """Cancel all tasks and let them end, as `asyncio.run` does; close async generators."""
        self._most = self.steps + STEPS
        self._traced = False
        tasks = sorted(asyncio.all_tasks(self), key=asyncio.Task.get_name)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks))
        ended = [task for task in tasks if not task.cancelled()]
        self._unseen += [error for task in ended if (error := task.exception()) is not None]
        self.run_until_complete(self.shutdown_asyncgens())


def _is_step(callback: Callback) -> bool:
    """Say whether a callback makes a task go on; `task.cancel`, for one, does not."""
    name = getattr(callback, "__name__", "")
    return isinstance(getattr(callback, "__self__", None), asyncio.Task) and name != "cancel"


def _name(callback: Callback) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def simulate(
    main: Callable[[], Coroutine[Any, Any, T]], *, seed: int | str | None = 0, most: int = STEPS
) -> T:
    """Run a coroutine function on a simulated loop, and give its result.

    Raises Deadlock, TooManySteps, and what `main` raises.
    """
    return SimulatedLoop(seed=seed, most=most).run(main)
