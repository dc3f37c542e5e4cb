"""Batched: a stream gathered into tuples, by count, by time and by what is in them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from typing import Generic, TypeVar

from mergepoint.streams.flow.bell import Bell
from mergepoint.streams.flow.intake import Intake
from mergepoint.streams.flow.lane import Lane
from mergepoint.streams.flow.limits import at_least
from mergepoint.streams.flow.stream import Stream

T = TypeVar("T")


def batched(
    items: AsyncIterable[T],
    *,
    size: int | None = None,
    seconds: float | None = None,
    full: Callable[[Sequence[T]], bool] | None = None,
) -> Stream[tuple[T, ...]]:
    """Give the items in tuples, each as soon as one limit is reached, and at the end the rest.

    `size` counts items. `seconds` are those of the event loop's clock since the first item of the
    batch; with it a task reads the input, one item ahead. `full` looks at the batch after each
    item, and says whether it is enough: a budget, a sum, a change of topic. Where the input, or
    `full`, raises, what was gathered comes first.

    Raises ValueError where no limit is given, or one that is never reached.
    """
    if size is None and seconds is None and full is None:
        raise ValueError("a batch needs a limit: give size, seconds or full")
    if size is not None:
        at_least(1, size=size)
    enough = _Enough(size, full)
    if seconds is None:
        intake = Intake(items)
        return Stream(_as_counted(intake, enough), intake.abandon)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds is a finite number above 0, not {seconds!r}")
    news = Bell()
    lane = Lane(items, limit=1, told=news.ring)
    return Stream(_as_timed(lane, enough, seconds, news), lane.intake.abandon)


class _Enough(Generic[T]):
    """Whether a batch is full, for its last item."""

    def __init__(self, size: int | None, full: Callable[[Sequence[T]], bool] | None) -> None:
        self._size = size
        self._full = full

    def __call__(self, batch: Sequence[T]) -> bool:
        if self._full is not None and self._full(batch):
            return True
        return len(batch) == self._size


async def _as_counted(intake: Intake[T], enough: _Enough[T]) -> AsyncGenerator[tuple[T, ...], None]:
    async with intake as items:
        batch: list[T] = []
        failure: Exception | None = None
        try:
            async for item in items:
                batch.append(item)
                if enough(batch):
                    yield tuple(batch)
                    batch = []
        except Exception as error:  # noqa: BLE001  (raised below, after what came before it)
            failure = error
        if batch:
            yield tuple(batch)
        if failure is not None:
            raise failure


class _Timer:
    """The time of one batch."""

    def __init__(self, seconds: float, news: Bell) -> None:
        self.up = False
        self._news = news
        self._handle = asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        self.up = True
        self._news.ring()

    def cancel(self) -> None:
        """Stop it, up or not."""
        self._handle.cancel()


async def _as_timed(
    lane: Lane[T], enough: _Enough[T], seconds: float, news: Bell
) -> AsyncGenerator[tuple[T, ...], None]:
    batch: list[T] = []
    timer: _Timer | None = None
    failure: Exception | None = None
    lane.begin()
    try:
        while failure is None and not lane.over:
            whole = False
            if lane.items:
                batch.append(lane.take())
                timer = timer or _Timer(seconds, news)
                try:
                    whole = enough(batch)
                except Exception as error:  # noqa: BLE001  (raised below, as above)
                    failure = error
            else:
                await news.wait()
            if timer is not None and (whole or timer.up):
                timer.cancel()
                yield tuple(batch)
                batch, timer = [], None
        if batch:
            yield tuple(batch)
        if failure is not None:
            raise failure
        lane.result()
    finally:
        if timer is not None:
            timer.cancel()
        await lane.end()
