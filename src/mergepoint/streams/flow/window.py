"""Window: calls side by side, what they made, and how far their input may be ahead of the taker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from mergepoint.streams.flow.apart import awaitable
from mergepoint.streams.flow.bell import Bell
from mergepoint.streams.flow.ending import note_others
from mergepoint.streams.flow.intake import Intake
from mergepoint.streams.flow.pump import Pump

T = TypeVar("T")
R = TypeVar("R")

Stop = Literal["cancel", "land"]
Task: TypeAlias = asyncio.Task[Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """How wide a map is, how far ahead, whether in order, how it stops, which errors are last."""

    width: int
    prefetch: int
    ordered: bool
    stop: Stop
    last: tuple[type[Exception], ...] = ()


@dataclass(slots=True)
class _Fan:
    """The results of a fan-out that are made and not taken; `ahead` counts all but one."""

    results: deque[Any] = field(default_factory=deque)
    ahead: int = 0


class Window(Generic[T, R]):
    """The calls of one map, at most `width` of them at a time.

    At most `width + prefetch` is held. An item counts from when it is pulled until its last
    result is taken, so the window begins at the oldest item that is not yet released; of a
    fan-out each result beyond the first counts too. The oldest call is always begun and waits for
    no room but the taker's, so those behind it cannot hold it up.
    """

    _copy: Callable[[], Context]
    _create: Callable[..., Task]
    _pump: Pump

    def __init__(self, intake: Intake[T], function: Callable[[T], Any], shape: Shape) -> None:
        self._intake = intake
        self._function = function
        self._shape = shape
        self._ordered = shape.ordered
        self._limit = shape.width + shape.prefetch
        self._strict = self._limit == 1  # nothing goes on before the taker asks again
        self._held = 0
        self._ready: deque[Task] = deque()  # in order: all; else those with news
        self._begun: dict[Task, None] = {}  # not in order: all
        self._fans: dict[Task | None, _Fan] = {}
        self._enter = self._ready.append if shape.ordered else self._begun.setdefault
        self._waiting: deque[T] = deque()  # pulled and not begun, which is for a prefetch only
        self._running = 0
        self._told = shape.prefetch > 0 or not shape.ordered  # of every call that is over
        self._news = Bell()
        self._room = Bell()
        self._ending = False
        self._last: BaseException | None = None  # comes when what had begun is taken
        self._name = f"call of {getattr(function, '__qualname__', type(function).__name__)}"

    async def results(self) -> AsyncGenerator[R, None]:
        """Give the results. Once this generator is over, nothing of it is alive."""
        self._start(asyncio.get_running_loop())
        ready, fans, ordered = self._ready, self._fans, self._ordered
        last = self._shape.last
        task: Task | None = None
        raised: BaseException | None = None
        try:
            while self._held or not self._pump.over:
                task = ready[0] if ready else None
                fan = fans.get(task) if fans else None
                if fan is not None and fan.results:
                    yield self._take(fan)
                elif task is not None and task.done():
                    self._release(task)
                    if not (last and self._comes_last(task)):
                        result = task.result()
                        if fan is None:
                            yield result
                    if last and self._is_last():
                        break
                elif ordered or task is None:
                    if self._strict:
                        self._room.ring()
                    await self._news.wait()
                else:
                    ready.popleft()
            self._over_at_last()
        except BaseException as error:
            raised = error
            raise
        finally:
            end = self._end(raised)
            task = raised = None  # an error that holds this frame must not be held by it
            await end

    def _release(self, task: Task) -> None:
        """Let go of a call that is over and whose results are taken."""
        self._ready.popleft()
        self._held -= 1
        if self._room.waiting:
            self._make_room()
        if not self._ordered:
            del self._begun[task]
        if self._fans and (fan := self._fans.pop(task, None)) is not None:
            self._held -= fan.ahead

    def _over_at_last(self) -> None:
        """Raise the error that comes last, or what the input raised."""
        if self._last is not None:
            raise self._last
        self._pump.result()

    def _is_last(self) -> bool:
        """Say whether nothing that had begun is left before an error that comes last."""
        return self._last is not None and not (self._ready if self._ordered else self._begun)

    def _comes_last(self, task: Task) -> bool:
        """Say whether a call has no result because of an error that comes last; keep the first."""
        if task.cancelled():
            return self._last is not None  # it had not begun
        error = task.exception()
        if not isinstance(error, self._shape.last):
            return False
        self._last = self._last or error
        return True

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._copy = copy_context().copy
        self._create = loop.create_task
        if loop.get_task_factory() is None:  # what the loop does then, for a quarter less
            self._create = asyncio.Task
        self._pump = Pump(self._pull(), self._intake, self._news.ring)

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
        counted, create, enter = self._shape.prefetch > 0, self._create, self._enter
        run, name, copy = self._run, self._name, self._copy
        async with self._intake as items:
            self._held += 1  # for the item that is to come
            try:
                async for item in items:
                    if not self._limit:
                        return
                    self._held += 1
                    if counted and not self._may_begin():
                        self._waiting.append(item)
                    else:  # `_begin`, written out: this is done for every item
                        enter(create(run(item), name=name, context=copy()))
                    while self._held > self._limit:
                        await self._room.wait()
            finally:
                self._held -= 1

    def _may_begin(self) -> bool:
        if self._running == self._shape.width:
            return False
        self._running += 1
        return True

    def _begin(self, item: T) -> None:
        self._enter(self._create(self._run(item), name=self._name, context=self._copy()))

    async def _run(self, item: T) -> Any:
        try:
            made = self._function(item)
            if type(made) is CoroutineType:
                return await made
            if not hasattr(made, "__aiter__"):
                return await awaitable(made)
            await self._spread(made)
        except BaseException:
            self._fail()
            raise
        finally:
            if self._news.waiting or self._told:
                self._over()

    def _over(self) -> None:
        if self._shape.prefetch:
            if self._waiting and self._limit:
                self._begin(self._waiting.popleft())
            else:
                self._running -= 1
        listens = self._news.waiting or not self._ordered
        if listens and self._tell() and not self._strict:
            self._room.ring()  # for when the taker has taken: it saves a turn of the loop

    def _fail(self) -> None:
        """Begin nothing more: neither what is not pulled, nor calls whose task has not yet run."""
        if not self._limit:
            return
        self._limit = 0
        calls = list(self._ready if self._ordered else self._begun)
        current = asyncio.current_task()
        behind = calls[calls.index(current) + 1 :] if self._ordered and current in calls else calls
        for call in behind:
            if not _has_run(call):
                call.cancel()

    def _tell(self) -> bool:
        """Tell the taker, if it waits for it, that the running call made something or is over."""
        task = asyncio.current_task()
        if task is None or (self._ordered and self._ready[0] is not task):
            return False
        if not self._ordered and not (self._fans and task in self._ready):
            self._ready.append(task)
        self._news.ring()
        return True

    async def _spread(self, made: AsyncIterable[Any]) -> None:
        """Take the results of a fan-out, ahead of the taker as far as there is room."""
        fan = self._fans[asyncio.current_task()] = _Fan()
        results = fan.results
        async with Intake(made) as stream:
            async for result in stream:
                results.append(result)
                self._tell()
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
        self._room.ring()  # a fan-out that waits for room lands with what it made
        calls = list(self._ready if self._ordered else self._begun)
        lands = self._shape.stop == "land"
        for call in calls:
            if not (lands and _has_run(call)):
                call.cancel()
        outlasts = int(lands and isinstance(raised, Exception))  # nobody has asked it to stop yet
        try:
            await self._pump.stop(beside=calls, outlasts=outlasts)
        finally:
            await self._intake.abandon()
            note_others(raised, calls)


def _has_run(call: Task) -> bool:
    coroutine = call.get_coro()
    return isinstance(coroutine, CoroutineType) and getcoroutinestate(coroutine) != CORO_CREATED
