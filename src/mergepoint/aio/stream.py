"""Streams that are read on one event loop, begin when they are read and end once."""

from __future__ import annotations

import asyncio
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
)
from contextvars import Context
from inspect import isasyncgen
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    """An async iterator that does nothing before its first item is requested.

    Close it with `aclose`, or use it with `async with`. Then no task of it is alive and every input
    is closed, even one that never began. A stream that is exhausted, raised an error, or was
    cancelled while it was read needs no closing. Only one task may read it at a time.

    Raises RuntimeError in another event loop than the one in which it began.
    """

    def __init__(
        self, results: AsyncGenerator[T, None], abandon: Callable[[], Awaitable[None]]
    ) -> None:
        self._results = results
        self._abandon = abandon  # closes the inputs of a body that never ran
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        self._enter()
        return self._results  # `async for` stays in one loop: skip the check per item

    def __anext__(self) -> Awaitable[T]:
        if asyncio.get_running_loop() is not self._loop:
            self._enter()
        return self._results.__anext__()

    @property
    def over(self) -> bool:
        """Return whether it has ended, or was closed: it holds nothing open."""
        return isasyncgen(self._results) and self._results.ag_frame is None

    def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "this stream began in another event loop, and its tasks belong to that loop: read "
                "and close it there, or create one stream per loop"
            )

    async def aclose(self) -> None:
        """End the stream. Raises errors that its inputs raise while they are closed."""
        if asyncio.get_running_loop() is not self._loop:
            self._enter()
        await self._results.aclose()
        # Closing a generator that never ran runs no `finally`, so its inputs are closed here.
        await self._abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


async def from_iterable(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield the items of an iterable, each when it is requested."""
    for item in items:
        yield item


class InputStream(Generic[T]):
    """An input for one `async with`, which returns its iterator and closes it once.

    `closing` is true as soon as the closing has begun, for whatever reason. Raises TypeError for an
    input that is not an async iterator.
    """

    def __init__(self, items: AsyncIterable[T]) -> None:
        if not isinstance(items, AsyncIterable):
            raise TypeError(
                f"a stream needs an async iterator, not {type(items).__name__}: `from_iterable` "
                "makes one from a list, a tuple or any other iterable"
            )
        self._items = items
        self._iterator: AsyncIterator[T] | None = None
        self.closing = False

    async def __aenter__(self) -> AsyncIterator[T]:
        self._iterator = aiter(self._items)
        return self._iterator

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing = True
        # A Stream's iterator is its bare generator. If that never ran, closing it would leave the
        # Stream's inputs open.
        own = self._items if isinstance(self._items, Stream) else self._iterator
        close = getattr(own, "aclose", None)
        if close is not None:
            await close()

    async def abandon(self) -> None:
        """Close the input if it was never opened, because its reader was stopped before it ran."""
        if self._iterator is None:
            async with self:
                pass


async def finish_tasks(tasks: Collection[asyncio.Task[Any]], *, outlasts: int = 0) -> None:
    """Wait until all tasks have ended.

    A cancellation of the caller is raised only then. It cancels the tasks, except for the first
    `outlasts` cancellations.
    """
    cancelled: asyncio.CancelledError | None = None
    # Wait again after a cancellation: a task that outlives its stream would use closed inputs.
    while pending := [task for task in tasks if not task.done()]:
        try:
            # Not `gather`, which cancels the tasks together with the caller.
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
            outlasts -= 1
            if outlasts >= 0:
                continue
            for task in pending:
                task.cancel()
    if cancelled is not None:
        raise cancelled


def note_suppressed_errors(
    raised: BaseException | None, tasks: Iterable[asyncio.Task[Any]]
) -> None:
    """Add notes about the tasks' other errors, which would be lost, to the error that is raised.

    If no error is raised, the results of these tasks are not needed, and neither are their errors.
    """
    for task in tasks:
        # Reading an error also keeps asyncio from reporting that it was never retrieved.
        error = None if task.cancelled() or not task.done() else task.exception()
        if error is not None and isinstance(raised, Exception) and error is not raised:
            raised.add_note(f"also failed, further on in the stream: {error!r}")


class Steps(Protocol):
    """A generator-like object: a coroutine, or a step of an async generator."""

    def send(self, value: Any, /) -> Any:
        """Resume it with a value."""

    def throw(self, error: BaseException, /) -> Any:
        """Resume it with an error."""


# A generator-based coroutine: only its `yield` passes what the steps wait for on to the task.
@types.coroutine
def drive_in_context(context: Context, steps: Steps, waited: Any) -> Generator[Any, Any, Any]:
    """Drive a coroutine that waits for something, in its context, and return its result."""
    run = context.run
    while True:
        try:
            value = yield waited
        except BaseException as error:  # noqa: BLE001  (every error is passed to the coroutine)
            go_on, value = steps.throw, error
        else:
            go_on = steps.send
        try:
            waited = run(go_on, value)
        except StopIteration as end:
            return end.value


async def run_in_context(context: Context, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call a function and await its result, all of it in the context.

    This needs no task: each step of the coroutine runs by `Context.run` in the caller's task.
    """
    made: Any = context.run(function, *args)
    # A coroutine and the step of an async generator have `send`; a future does not.
    steps = made if hasattr(made, "send") else _awaited(made)
    try:
        waited = context.run(steps.send, None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    return await drive_in_context(context, steps, waited)  # type: ignore[no-any-return]


async def results_in_context(context: Context, made: AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """Yield the results of a fan-out, each computed in the context, and close it there."""
    steps = context.run(aiter, made)
    try:
        while True:
            try:
                result = await run_in_context(context, steps.__anext__)
            except StopAsyncIteration:
                return
            yield result
    finally:
        # Closed in its own context: a context variable can only be reset where it was set.
        close = getattr(steps, "aclose", None)
        if close is not None:
            await run_in_context(context, close)


def awaitable(made: Any) -> Awaitable[Any]:
    """Return the result of a function if it can be awaited. Raises TypeError."""
    if not hasattr(made, "__await__"):
        raise TypeError(
            f"the function of a stream returned {type(made).__name__}: it must be async, or return "
            "an async iterator of results"
        )
    return made  # type: ignore[no-any-return]


async def _awaited(made: Awaitable[T]) -> T:
    return await made


class Notifier:
    """Wakes all tasks that wait. Each checks its condition again."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    def wait(self) -> asyncio.Future[None]:
        """Return a future to await until the next ring."""
        # Nothing is awaited between the caller's check of its condition and this line, so no
        # ring is lost in between.
        ring = asyncio.get_running_loop().create_future()
        self.waiting.append(ring)
        return ring

    def ring(self) -> None:
        """Wake all tasks that wait now."""
        if self.waiting:
            for ring in self.waiting:
                if not ring.done():  # a cancelled one stays in the list until now
                    ring.set_result(None)
            self.waiting.clear()
