"""A concurrent map over a stream: bounded, in order or not, cancelled as a whole."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
)
from contextlib import aclosing
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args, overload

from mergepoint.aio.stream import (
    InputStream,
    Notifier,
    Stream,
    awaitable,
    drive_in_context,
    finish_tasks,
    note_suppressed_errors,
    results_in_context,
    run_in_context,
)

T = TypeVar("T")

_END: Final = object()


async def in_own_task(stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of a generator that a task of its own advances and closes.

    A reader may then stop reading without closing. At its end `asyncio.run` closes all open
    generators at the same time, so a generator inside another is reported as "already running".
    Before that, it cancels and awaits tasks, and so the task closes the generators in their order.
    """
    requests: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
    task = asyncio.get_running_loop().create_task(_advanced(stream, requests), name="stream")
    try:
        while True:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            requests.put_nowait(answer)
            if task.done():  # the loop is closing, and no answer would come
                return
            item = await answer
            if item is _END:
                return
            yield item
    finally:
        task.cancel()
        await finish_tasks([task])
        if not task.cancelled():
            task.result()


async def _advanced(
    stream: AsyncGenerator[Any, None], requests: asyncio.Queue[asyncio.Future[Any]]
) -> None:
    """Answer each request with the next item, the end, or the error."""
    async with aclosing(stream):
        while True:
            answer = await requests.get()
            try:
                item = await anext(stream, _END)
            except BaseException as error:
                # An answer that is done was cancelled by its reader: nobody would see the error
                # there.
                if isinstance(error, asyncio.CancelledError) or answer.done():
                    answer.cancel()
                    raise
                answer.set_exception(error)
                return
            if not answer.done():
                answer.set_result(item)
            if item is _END:
                return


R = TypeVar("R")

Stop = Literal["cancel", "land"]
OnError: TypeAlias = Callable[[Exception, T], object]
Task: TypeAlias = asyncio.Task[Any]


@dataclass(frozen=True, slots=True)
class MapSettings:
    """The settings of a map; see `mapped`."""

    width: int
    prefetch: int
    ordered: bool
    stop: Stop
    last: tuple[type[Exception], ...] = ()
    on_error: OnError[Any] | None = None


@dataclass(slots=True)
class _Fan:
    """The results of a fan-out that are not consumed; `ahead` counts all but one."""

    results: deque[Any] = field(default_factory=deque)
    ahead: int = 0


class MapWindow(Generic[T, R]):
    """The calls of one map, at most `width` of them at a time.

    At most `width + prefetch` items are in the window. An item counts from when it is read until
    its last result is consumed, so the window begins at the oldest item that is not yet released.
    Each result of a fan-out beyond the first counts too. The oldest call is always started and
    waits only for the consumer, so later calls cannot block it: there is no deadlock.
    """

    _context: Context
    _loop: asyncio.AbstractEventLoop
    # Opens, reads and closes the input. Generators that keep a cancel scope or a context variable
    # open across a `yield` must be advanced and closed by one task.
    _reader: Task

    def __init__(
        self, intake: InputStream[T], function: Callable[[T], Any], settings: MapSettings
    ) -> None:
        self._intake = intake
        self._function = function
        self._settings = settings
        self._ordered = settings.ordered
        self._limit = settings.width + settings.prefetch
        self._strict = self._limit == 1  # no work before the consumer asks again
        self._held = 0
        # Ordered: all calls. Unordered: those with a result, and all of them are in `_begun`.
        self._ready: deque[Task] = deque()
        self._begun: dict[Task, None] = {}
        self._fans: dict[Task | None, _Fan] = {}
        self._waiting: deque[T] = deque()  # read and not started, with a prefetch only
        self._running = 0
        # Whether every call that is over is reported, not only the one that the consumer awaits.
        self._reports_all = settings.prefetch > 0 or not settings.ordered
        self._news = Notifier()
        self._room = Notifier()
        self._ending = False
        # Raised when the results of the started calls are consumed: they were made and may be paid.
        self._last: BaseException | None = None
        self._name = f"call of {getattr(function, '__qualname__', type(function).__name__)}"

    async def results(self) -> AsyncGenerator[R, None]:
        """Yield the results. Once this generator is over, no task of it is alive."""
        self._start(asyncio.get_running_loop())
        ready, fans, ordered = self._ready, self._fans, self._ordered
        last = self._settings.last
        task: Task | None = None
        raised: BaseException | None = None
        try:
            while self._held or not self._reader.done():
                task = ready[0] if ready else None
                fan = fans.get(task) if fans else None
                if fan is not None and fan.results:
                    yield self._take(fan)
                elif task is not None and task.done():
                    self._release(task)
                    unsound = last and (task.cancelled() or task.exception() is not None)
                    if not (unsound and self._comes_last(task)):
                        result = task.result()
                        if fan is None:
                            yield result
                    # No started call is left before the error that comes last.
                    if self._last is not None and not (ready if ordered else self._begun):
                        break
                elif ordered or task is None:
                    # Only here does a strict map make room: the consumer asks for a result.
                    if self._strict:
                        self._room.ring()
                    await self._news.wait()
                else:
                    # A fan-out that has no result now: `_tell` queues it again with the next one.
                    ready.popleft()
            self._over_at_last()
        except BaseException as error:
            raised = error
            raise
        finally:
            end = self._end(raised)
            task = raised = None  # break the cycle of error, traceback and frame
            await end

    def _release(self, task: Task) -> None:
        """Release a call that is over and whose results are consumed."""
        self._ready.popleft()
        self._held -= 1
        if self._room.waiting:
            self._make_room()
        if not self._ordered:
            del self._begun[task]
        if self._fans and (fan := self._fans.pop(task, None)) is not None:
            self._held -= fan.ahead

    def _over_at_last(self) -> None:
        """Raise the error that comes last, or the input's error."""
        if self._last is not None:
            raise self._last
        self._reader.result()

    def _comes_last(self, task: Task) -> bool:
        """Return whether an error that comes last took a call's result; keep the first one."""
        if task.cancelled():
            return self._last is not None  # it had not started
        error = task.exception()
        if not isinstance(error, self._settings.last):
            return False
        self._last = self._last or error
        return True

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._context = copy_context()
        self._loop = loop
        self._reader = loop.create_task(self._pull(), name="reader")
        self._reader.add_done_callback(lambda _: self._news.ring())

    def _take(self, fan: _Fan) -> Any:
        if fan.ahead:
            fan.ahead -= 1
            self._held -= 1
        self._make_room()
        return fan.results.popleft()

    def _make_room(self) -> None:
        if not self._strict:
            self._room.ring()

    async def _pull(self) -> None:
        async with self._intake as items:
            self._held += 1  # reserve the place of the next item
            try:
                async for item in items:
                    # A call failed meanwhile, or the input swallowed its cancellation.
                    if not self._limit:
                        return
                    self._held += 1
                    if self._settings.prefetch and not self._may_begin():
                        self._waiting.append(item)
                    else:
                        self._begin(item)
                    while self._held > self._limit:
                        await self._room.wait()
            finally:
                # Otherwise `results` would wait forever for the call of the reserved place.
                self._held -= 1

    def _may_begin(self) -> bool:
        if self._running == self._settings.width:
            return False
        self._running += 1
        return True

    def _begin(self, item: T) -> None:
        context = self._context.copy()
        call = self._loop.create_task(self._run(item), name=self._name, context=context)
        if self._ordered:
            self._ready.append(call)
        else:
            self._begun[call] = None

    async def _run(self, item: T) -> Any:
        try:
            made = self._function(item)
            if type(made) is CoroutineType:
                return await made
            if not hasattr(made, "__aiter__"):
                return await awaitable(made)
            await self._spread(made)
        except BaseException as error:
            if self._settings.on_error is not None and isinstance(error, Exception):
                self._settings.on_error(error, item)
            self._fail()
            raise
        finally:
            if self._news.waiting or self._reports_all:
                self._over()

    def _over(self) -> None:
        if self._settings.prefetch:
            if self._waiting and self._limit:
                # The next call gets the place of this one, so `_running` stays the same.
                self._begin(self._waiting.popleft())
            else:
                self._running -= 1
        listens = self._news.waiting or not self._ordered
        if listens and self._tell() and not self._strict:
            self._room.ring()  # notify now: waiting for the consumer costs one iteration

    def _fail(self) -> None:
        """Start no more calls, neither for unread items nor in tasks that have not yet run."""
        if not self._limit:
            return
        self._limit = 0
        calls = list(self._ready if self._ordered else self._begun)
        current = asyncio.current_task()
        # In order, results of earlier calls come before the error, so these calls still run.
        behind = calls[calls.index(current) + 1 :] if self._ordered and current in calls else calls
        for call in behind:
            if not _has_run(call):
                call.cancel()

    def _tell(self) -> bool:
        """Notify the consumer, if it waits for the current call, and return whether it does."""
        task = asyncio.current_task()
        if task is None or (self._ordered and self._ready[0] is not task):
            return False
        # Each call is queued once: a fan-out reports every result, and is in the queue already.
        if not self._ordered and not (self._fans and task in self._ready):
            self._ready.append(task)
        self._news.ring()
        return True

    async def _spread(self, made: AsyncIterable[Any]) -> None:
        """Read the results of a fan-out, ahead of the consumer as far as there is room."""
        fan = self._fans[asyncio.current_task()] = _Fan()
        results = fan.results
        async with InputStream(made) as stream:
            async for result in stream:
                results.append(result)
                self._tell()
                # Not without results: the consumer may wait for this fan-out and make no room.
                while results and self._held >= self._limit and not self._ending:
                    await self._room.wait()
                if self._ending:
                    return
                if results:
                    fan.ahead += 1
                    self._held += 1

    async def _end(self, raised: BaseException | None) -> None:
        self._limit = 0
        self._ending = True
        self._room.ring()  # a fan-out that waits for room ends with its results so far
        calls = list(self._ready if self._ordered else self._begun)
        lands = self._settings.stop == "land"
        for call in calls:
            if not (lands and _has_run(call)):
                call.cancel()
        outlasts = int(lands and isinstance(raised, Exception))  # no cancellation was requested yet
        try:
            await self._stop_reader(calls, outlasts)
        finally:
            # A reader that was cancelled before its first step has not opened the input.
            await self._intake.abandon()
            note_suppressed_errors(raised, calls)

    async def _stop_reader(self, calls: list[Task], outlasts: int) -> None:
        """End the reader, and wait for it and for the calls (see `finish_tasks`).

        Raises the error that the input raises while it is closed. An error from before is dropped.
        """
        reader = self._reader
        late = not reader.done()
        if not self._intake.closing:  # a second cancellation would interrupt the closing
            reader.cancel()
        try:
            await finish_tasks([reader, *calls], outlasts=outlasts)
        finally:
            # Read also while a cancellation is raised: asyncio reports errors that nobody read.
            failed = not reader.cancelled() and reader.exception() is not None
        if late and failed:
            reader.result()


def _has_run(call: Task) -> bool:
    # The coroutine's state is the only sign: a task does not tell whether its first step has run.
    coroutine = call.get_coro()
    return isinstance(coroutine, CoroutineType) and getcoroutinestate(coroutine) != CORO_CREATED


@overload
def mapped(
    items: AsyncIterable[T],
    function: Callable[[T], AsyncIterable[R]],
    *,
    width: int,
    prefetch: int = ...,
    ordered: bool = ...,
    stop: Stop = ...,
    last: tuple[type[Exception], ...] = ...,
    on_error: OnError[T] | None = ...,
) -> Stream[R]: ...


@overload
def mapped(
    items: AsyncIterable[T],
    function: Callable[[T], Awaitable[R]],
    *,
    width: int,
    prefetch: int = ...,
    ordered: bool = ...,
    stop: Stop = ...,
    last: tuple[type[Exception], ...] = ...,
    on_error: OnError[T] | None = ...,
) -> Stream[R]: ...


def mapped(
    items: AsyncIterable[T],
    function: Callable[[T], Any],
    *,
    width: int,
    prefetch: int = 0,
    ordered: bool = True,
    stop: Stop = "cancel",
    last: tuple[type[Exception], ...] = (),
    on_error: OnError[T] | None = None,
) -> Stream[Any]:
    """Return the result of a function for each item, or all results if it is a fan-out.

    At most `width + prefetch` items are read and not yet consumed, counted from the oldest that is
    not released. Each result of a fan-out beyond the first counts too, so a higher `prefetch` lets
    fan-outs run ahead. With a width of 1 and no prefetch, nothing runs before the consumer asks for
    it, and with `stop="cancel"` there is no task at all.

    Args:
        items: The input.
        function: Async, or returns an async iterator of results (a fan-out). Each call runs in its
            own
        copy of the context in which the stream began.
        width: The maximum number of concurrent calls.
        prefetch: The number of items to read ahead.
        ordered: Whether results come in the order of their items, or as they are produced. An error
        comes at its turn, after the results before it, and no call is started after it is known.
        stop: How calls in progress end if the stream ends early. `"cancel"` cancels them.
        `"land"` lets them finish, and closing the stream waits for that; a second cancellation
        cancels them.
        last: Types of errors that come after the results of all calls that had started.
        on_error: Called with the error of a call and its item, before the error is raised.

    Raises:
        ValueError: A number is too small.
        TypeError: The input is not an async iterator, or (in its turn) the function is not async.
    """
    for name, number, least in (("width", width, 1), ("prefetch", prefetch, 0)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} must be an integer, not {number!r}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}, not {number}")
    if stop not in get_args(Stop):
        raise ValueError(f"stop must be one of {', '.join(get_args(Stop))}, not {stop!r}")
    intake = InputStream(items)
    if (
        width + prefetch == 1 and stop == "cancel"
    ):  # a call needs a task of its own to outlive its consumer
        return Stream(_one_by_one(intake, function, on_error), intake.abandon)
    window: MapWindow[T, Any] = MapWindow(
        intake, function, MapSettings(width, prefetch, ordered, stop, last, on_error)
    )
    return Stream(window.results(), intake.abandon)


async def _one_by_one(
    intake: InputStream[T], function: Callable[[T], Any], on_error: OnError[T] | None
) -> AsyncGenerator[Any, None]:
    """Call in the task of the consumer: no call starts before its result is needed."""
    copy = copy_context().copy
    async with intake as items:
        async for item in items:
            context = copy()
            try:
                made = context.run(function, item)
                # `run_in_context` is inlined: with a call of it, an item takes 4.9 instead of 2.7
                # times as long as in a loop by hand (python tests/benchmarks/run.py streams).
                if type(made) is CoroutineType:
                    try:
                        waited = context.run(made.send, None)
                    except StopIteration as end:
                        result = end.value
                    else:
                        result = await drive_in_context(context, made, waited)
                elif hasattr(made, "__aiter__"):
                    async with aclosing(results_in_context(context, made)) as results:
                        async for result in results:
                            yield result
                    continue
                else:
                    result = await run_in_context(context, awaitable, made)
            except Exception as error:
                if on_error is not None:
                    on_error(error, item)
                raise
            yield result
