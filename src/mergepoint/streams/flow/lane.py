"""Lane: an input that is read by a task of its own, a little ahead of who takes from it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable
from typing import Generic, TypeVar

from mergepoint.streams.flow.bell import Bell
from mergepoint.streams.flow.intake import Intake
from mergepoint.streams.flow.pump import Pump

T = TypeVar("T")


class Lane(Generic[T]):
    """At most `limit` items of an input that are pulled and not taken.

    Nothing is pulled before `begin`; `told` is called when an item has come, and at the end.
    """

    _pump: Pump

    def __init__(self, items: AsyncIterable[T], *, limit: int, told: Callable[[], None]) -> None:
        self.items: deque[T] = deque()
        self.intake = Intake(items)
        self._limit = limit
        self._told = told
        self._room = Bell()

    def begin(self) -> None:
        """Begin to read."""
        self._pump = Pump(self._read(), self.intake, self._told)

    @property
    def over(self) -> bool:
        """Say whether all items were taken, and no more will come."""
        return not self.items and self._pump.over

    def take(self) -> T:
        """Give the oldest item, and make room for another."""
        self._room.ring()
        return self.items.popleft()

    def result(self) -> None:
        """Raise what the input raised."""
        self._pump.result()

    async def end(self) -> None:
        """End the reading. Raises what the input raises as it is closed."""
        try:
            await self._pump.stop()
        finally:
            await self.intake.abandon()

    async def _read(self) -> None:
        async with self.intake as items:
            async for item in items:
                if self._pump.stopping:
                    return
                self.items.append(item)
                self._told()
                while len(self.items) >= self._limit:
                    await self._room.wait()
