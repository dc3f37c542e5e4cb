"""Teed: one stream for several readers, none of whom is far ahead of the others."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from mergepoint.streams.flow.bell import Bell
from mergepoint.streams.flow.intake import Intake
from mergepoint.streams.flow.limits import at_least
from mergepoint.streams.flow.pump import Pump
from mergepoint.streams.flow.stream import Home, Stream

T = TypeVar("T")


def teed(items: AsyncIterable[T], readers: int = 2, *, prefetch: int = 0) -> tuple[Stream[T], ...]:
    """Give streams that each have all items of one input.

    An item is pulled when a reader asks for it, unless another has `1 + prefetch` items that it
    did not take: the slowest holds the others back. So every reader has to be read side by side
    with the others, or closed; one that is closed holds nobody. The input is closed with the last
    of them. Its error comes to each reader, after the items.
    """
    at_least(1, readers=readers)
    at_least(0, prefetch=prefetch)
    tee = _Tee(items, limit=1 + prefetch)
    home = Home()
    ends = [_Reader[T]() for _ in range(readers)]
    tee.readers += ends
    return tuple(Stream(tee.read(end), partial(tee.leave, end), home=home) for end in ends)


@dataclass(slots=True, eq=False)
class _Reader(Generic[T]):
    """What one reader has not taken, and whether it asks for more."""

    items: deque[T] = field(default_factory=deque)
    asks: bool = False


class _Tee(Generic[T]):
    def __init__(self, items: AsyncIterable[T], *, limit: int) -> None:
        self.readers: list[_Reader[T]] = []
        self._intake = Intake(items)
        self._limit = limit
        self._pump: Pump | None = None
        self._news = Bell()
        self._room = Bell()

    async def read(self, reader: _Reader[T]) -> AsyncGenerator[T, None]:
        """Give the items to one reader."""
        pump = self._pump = self._pump or Pump(self._pull(), self._intake, self._news.ring)
        try:
            while reader.items or not pump.over:
                if reader.items:
                    self._room.ring()
                    yield reader.items.popleft()
                else:
                    reader.asks = True
                    self._room.ring()
                    await self._news.wait()
            pump.result()
        finally:
            await self.leave(reader)

    async def leave(self, reader: _Reader[T]) -> None:
        """Let a reader hold nobody any more; with the last one the input is closed."""
        if reader not in self.readers:
            return
        self.readers.remove(reader)
        self._room.ring()
        if not self.readers:
            try:
                if self._pump is not None:
                    await self._pump.stop()
            finally:
                await self._intake.abandon()

    async def _pull(self) -> None:
        async with self._intake as items:
            async for item in items:
                if not self.readers:
                    return
                for reader in self.readers:
                    reader.items.append(item)
                    reader.asks = False
                self._news.ring()
                while not self._wanted():
                    await self._room.wait()

    def _wanted(self) -> bool:
        asked = any(reader.asks for reader in self.readers)
        return asked and all(len(reader.items) < self._limit for reader in self.readers)
