"""Stream: what the verbs give. Nothing happens before it is asked, nothing is left when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Home:
    """The event loop that a stream began in, or several streams that share an input."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> asyncio.AbstractEventLoop:
        """Give the running loop, which is from now on the only one. Raises RuntimeError."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "this stream began in another event loop, and what it is made of lives there: ask "
                "and close it in that loop, or make a stream for each loop"
            )
        return loop


class Stream(Generic[T]):
    """An async iterator that does nothing before it is first asked.

    Close it with `aclose`, or use it with `async with`. Then no task of it is alive and every
    input is closed, where it never began too; a stream that came to its end, raised, or was
    cancelled while it was asked needs no closing. One task asks at a time.

    Raises RuntimeError in another event loop than the one in which it began.
    """

    def __init__(
        self,
        results: AsyncGenerator[T, None],
        abandon: Callable[[], Awaitable[None]],
        *,
        home: Home | None = None,
    ) -> None:
        self._results = results
        self._abandon = abandon  # closes the inputs of a body that never ran
        self._home = home or Home()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        self._loop = self._home.enter()
        return self._results  # one `async for` is in one loop, and is spared a check for each item

    def __anext__(self) -> Awaitable[T]:
        if asyncio.get_running_loop() is not self._loop:
            self._loop = self._home.enter()
        return self._results.__anext__()

    async def aclose(self) -> None:
        """End the stream. Raises what its inputs raise as they are closed."""
        self._loop = self._home.enter()
        await self._results.aclose()
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
