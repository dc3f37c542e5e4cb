"""Simulated time: an event loop with a virtual clock and deadlock detection."""

from __future__ import annotations

import asyncio
import gc
import heapq
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextvars import Context, Token
from itertools import count
from pathlib import Path
from random import Random
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, NoReturn, Self, TypeAlias, TypeVar, TypeVarTuple

from mergepoint.aio.stream import drive_in_context
from mergepoint.core.errors import RailError
from mergepoint.models.retry import CLOCK, Clock

_AWAITING = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future)


class Deadlock(RailError):
    """No task can continue: nothing is ready and no timer is set.

    `waiting` has one string per remaining task: its name, what it awaits, and its stack.
    """

    def __init__(self, seconds: float, waiting: tuple[str, ...]) -> None:
        self.seconds = seconds
        self.waiting = waiting
        lines = "".join(f"\n{one}" for one in waiting)
        super().__init__(
            f"deadlock after {seconds:g} simulated seconds: nothing is ready and no timer is set, "
            f"and these tasks wait:{lines}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds, self.waiting), self.__dict__


def _describe(task: asyncio.Task[Any]) -> str:
    """Return what a task awaits and where, innermost call last."""
    chain = list(_chain(task.get_coro()))
    frames = [frame for frame, _ in chain if frame is not None]
    last = chain[-1][1] if chain else None
    lines = [f"  {task.get_name()} waits for {_called(last)}", *map(_line, frames)]
    return "\n".join(lines)


def _called(awaited: object) -> str:
    if isinstance(awaited, asyncio.Task):
        return f"the task {awaited.get_name()}"
    if isinstance(awaited, asyncio.Future):
        return "a future without a result"
    return type(awaited).__name__


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"    {Path(code.co_filename).name}:{frame.f_lineno} in {code.co_qualname}"


def _chain(awaited: object) -> Iterator[tuple[FrameType | None, object]]:
    """Yield the frames from a coroutine down to what it awaits."""
    while awaited is not None:
        frame, inner = _step(awaited)
        yield frame, awaited
        awaited = inner


def _step(awaited: object) -> tuple[FrameType | None, object]:
    """Return the frame of an awaitable, and what it awaits itself."""
    if isinstance(awaited, CoroutineType):
        return awaited.cr_frame, awaited.cr_await
    if isinstance(awaited, AsyncGeneratorType):
        return awaited.ag_frame, awaited.ag_await
    if isinstance(awaited, GeneratorType):
        frame = awaited.gi_frame
        # This generator drives its coroutine by hand, so the coroutine is in a local variable.
        if frame is not None and frame.f_code is drive_in_context.__code__:
            return None, frame.f_locals["steps"]
        return frame, awaited.gi_yieldfrom
    if isinstance(awaited, asyncio.Future):
        return None, None
    # Wrappers such as an async generator's step don't expose what they hold.
    held = (one for one in gc.get_referents(awaited) if isinstance(one, _AWAITING))
    return None, next(held, None)


REFUSED = (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS = 1_000_000
"""Default limit on the steps of a simulation."""

Callback: TypeAlias = Callable[..., object]


class TooManySteps(RailError):
    """A simulation exceeded its limit of steps, probably because a task loops forever."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An asyncio event loop for one thread in which waiting takes no time.

    `seed` decides which of the ready tasks runs next: one seed, one run. Callbacks keep their
    order, as asyncio promises, and so do tasks with `seed=None`. The clock starts at 0 and jumps to
    the next timer when nothing is ready. Without a timer, Deadlock is raised; after `most` steps,
    TooManySteps.

    Functions for executors run in the loop's thread, at a moment that the seed decides. Anything
    that would reach outside (sockets, processes, signals, other threads) raises RuntimeError.

    `steps` counts the executed steps. With `traced`, `transcript` has one line per step.
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
        """Run a coroutine function, cancel its remaining tasks, and close the loop.

        Unhandled errors of dropped tasks and of callbacks are raised as an ExceptionGroup.
        """
        try:
            try:
                result = self.run_until_complete(main())
            finally:
                self._end_tasks()
        finally:
            self.close()
        if self._unseen:
            raise BaseExceptionGroup("the simulation didn't handle these errors", self._unseen)
        return result

    def time(self) -> float:
        """Return the simulated seconds since the loop was created."""
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
        # The counter keeps timers of one moment in order, and spares comparing handles.
        heapq.heappush(self._timers, (when, next(self._counter), handle, callback))
        return handle

    def call_at_step(
        self, step: int, callback: Callable[[*Ts], object], *args: *Ts
    ) -> asyncio.Handle:
        """Call before a step, counted from 0, to inject a fault at any await."""
        handle = asyncio.Handle(callback, args, self)
        heapq.heappush(self._alarms, (step, next(self._counter), handle))
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call in a later step. Raise RuntimeError in another thread."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "another thread called into a simulated loop, at a moment that no seed determines: "
                "pass its work to `asyncio.to_thread` or `loop.run_in_executor`"
            )
        return self.call_soon(callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task; default names are numbered per loop, not per process."""
        # asyncio numbers tasks per process, which would differ between two runs of one seed.
        options["name"] = options.get("name") or f"task-{next(self._names)}"
        return super().create_task(coro, **options)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call a function in this thread, in a later step, as if no loop was running.

        A function that blocks until the loop does something blocks forever.
        """
        future: asyncio.Future[T] = self.create_future()
        # An empty context: run_in_executor passes no context variables to its thread.
        handle = asyncio.Handle(self._work, (future, func, args), self, Context())
        self._add(handle, func, free=True)
        return future

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect an unhandled error."""
        self._unseen.append(context.get("exception") or RuntimeError(context["message"]))

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: Any) -> None:
        # The caller was canceled. An executor would not start the function either.
        if future.done():
            return
        # A worker thread has no running loop, and code such as asyncio.run checks that.
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
        """Make a callback ready; a `free` one has no place in the order."""
        # Without a seed there is one queue, so that tasks run in asyncio's order too.
        line = self._in_any_order if free and self._random is not None else self._in_order
        line.append((handle, callback))

    def _run_once(self) -> None:
        """Run one step, whereas asyncio's own loop runs all ready callbacks."""
        # An injected fault isn't a step: it must not shift the steps after it.
        if self._alarms and self._alarms[0][0] <= self.steps:
            heapq.heappop(self._alarms)[2]._run()
            return
        if self.steps >= self._most:
            raise TooManySteps(
                f"the simulation didn't finish in {self.steps:,} steps: a task loops "
                "forever, or it needs a higher limit (`most`)"
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
        # An error's traceback keeps this frame alive, which must not keep the task alive.
        del handle, callback

    def _next(self) -> tuple[asyncio.Handle, Callback]:
        """Return the next step: the next callback, or any ready task."""
        # Only task steps and executor work may be reordered. asyncio promises that other callbacks
        # run in order, so they count as one choice.
        free = self._in_any_order
        among = len(free) + bool(self._in_order)
        index = 0 if self._random is None else int(self._random.random() * among)
        if index == len(free):
            return self._in_order.popleft()
        # Swap with the last element: removing from the middle would be slow, and the order is
        # random anyway.
        free[index], free[-1] = free[-1], free[index]
        return free.pop()

    def _pass_time(self) -> None:
        """Advance the clock to the next timer. Raise Deadlock if there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(self._now, tuple(sorted(map(_describe, asyncio.all_tasks(self)))))
        # A timer may be set in the past; the clock must not run backward.
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, handle, callback = heapq.heappop(timers)
            self._add(handle, callback, free=False)

    def _end_tasks(self) -> None:
        """Cancel all tasks and let them finish, as `asyncio.run` does; close async generators."""
        # Cleanup gets steps of its own, because the limit may just have been reached.
        self._most = self.steps + STEPS
        self._traced = False
        # all_tasks returns a set: without sorting, one seed wouldn't mean one run.
        tasks = sorted(asyncio.all_tasks(self), key=asyncio.Task.get_name)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks))
        ended = [task for task in tasks if not task.cancelled()]
        self._unseen += [error for task in ended if (error := task.exception()) is not None]
        self.run_until_complete(self.shutdown_asyncgens())


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: SimulatedLoop, *args: object, **options: object) -> NoReturn:
        raise RuntimeError(
            f"{name}: a simulated loop has no sockets, processes, or signals, since no seed "
            "determines them; pass a fake to the code under test"
        )

    return refuse


for _refused in REFUSED:
    setattr(SimulatedLoop, _refused, _refusing(_refused))


def _is_step(callback: Callback) -> bool:
    """Return whether a callback resumes a task; `task.cancel`, for one, doesn't."""
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
    """Run a coroutine function on a simulated loop, and return its result.

    Raise Deadlock, TooManySteps, and the errors of `main`.
    """
    return SimulatedLoop(seed=seed, most=most).run(main)


class FakeClock:
    """Replaces the clock of model retries inside `with`; `waits` are the seconds of each wait.

    `now` (seconds since the epoch) advances with each wait. No random time is added, unless
    `chance` (from 0 up to 1) says so. Timeouts aren't waits: they take real time.
    """

    def __init__(self, *, now: float = 0.0, chance: float = 0.0) -> None:
        self.waits: list[float] = []
        self.now = now
        self._chance = chance
        self._token: Token[Clock] | None = None

    def __enter__(self) -> Self:
        clock = Clock(self._sleep, self._asleep, lambda: self.now, lambda: self._chance)
        self._token = CLOCK.set(clock)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._token is not None:
            CLOCK.reset(self._token)
        self._token = None

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def _asleep(self, seconds: float) -> None:
        self._sleep(seconds)
        # Suspend like a real wait, so that other tasks and cancellations get a turn.
        await asyncio.sleep(0)
