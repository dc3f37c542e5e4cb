"""Streams from streams: batches, merges, and copies for several readers."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar, get_args

from mergepoint.aio.map import Prefetcher, SourceReader
from mergepoint.aio.stream import InputStream, Notifier, Stream, StreamOwner, at_least

T = TypeVar("T")


def batched(
    items: AsyncIterable[T],
    *,
    size: int | None = None,
    seconds: float | None = None,
    full: Callable[[Sequence[T]], bool] | None = None,
) -> Stream[tuple[T, ...]]:
    """Return the items in tuples, each as soon as one limit is reached, and the rest at the end.

    If the input or `full` raises an error, the items gathered so far come first.

    Args:
        items: The input.
        size: The number of items in a batch.
        seconds: The time since the first item of the batch, on the event loop's clock. With it, a
            task
        reads the input, one item ahead.
        full: Called with the batch after each item; returns whether the batch is complete: by a
        budget, a sum, or a change of topic.

    Raises:
        ValueError: No limit is set, or one that is never reached.
    """
    if size is None and seconds is None and full is None:
        raise ValueError("A batch needs a limit: set size, seconds or full")
    if size is not None:
        at_least(1, size=size)
    enough = _Enough(size, full)
    if seconds is None:
        intake = InputStream(items)
        return Stream(_as_counted(intake, enough), intake.abandon)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds must be a finite number above 0, not {seconds!r}")
    news = Notifier()
    lane = Prefetcher(items, limit=1, on_change=news.ring)
    return Stream(_as_timed(lane, enough, seconds, news), lane.intake.abandon)


class _Enough(Generic[T]):
    """The check whether a batch is complete, made after each item."""

    def __init__(self, size: int | None, full: Callable[[Sequence[T]], bool] | None) -> None:
        self._size = size
        self._full = full

    def __call__(self, batch: Sequence[T]) -> bool:
        if self._full is not None and self._full(batch):
            return True
        return len(batch) == self._size


async def _as_counted(
    intake: InputStream[T], enough: _Enough[T]
) -> AsyncGenerator[tuple[T, ...], None]:
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
    """The timer of one batch."""

    def __init__(self, seconds: float, news: Notifier) -> None:
        self.up = False
        self._news = news
        self._handle = asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        self.up = True
        self._news.ring()

    def cancel(self) -> None:
        """Stop the timer, whether it is up or not."""
        self._handle.cancel()


async def _as_timed(
    lane: Prefetcher[T], enough: _Enough[T], seconds: float, news: Notifier
) -> AsyncGenerator[tuple[T, ...], None]:
    batch: list[T] = []
    timer: _Timer | None = None
    failure: Exception | None = None
    lane.begin()
    try:
        while failure is None and not lane.over:
            # A failure of `full` must not lose the batch: it is emitted below before the error is
            # raised.
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


Order = Literal["arrival", "turns", "declared"]


def merged(
    *inputs: AsyncIterable[T],
    order: Order = "arrival",
    key: Callable[[T], Any] | None = None,
    prefetch: int = 0,
) -> Stream[T]:
    """Return the items of all inputs; a task per input reads it.

    At most `1 + prefetch` items of an input are read and not consumed. An input's error is raised
    at its turn, after its items.

    Args:
        inputs: The streams to merge.
        order: The next item. `"arrival"`: an available one, of the input that has waited longest.
        `"turns"`: one of each input per round. `"declared"`: all of the first input, then all of
        the second. Only `"arrival"` depends on how fast the inputs are.
        key: Take the item with the smallest key among the first of each input instead. Sorted
            inputs
        produce a sorted stream; items with equal keys come in the order of the inputs.
        prefetch: The number of items to read ahead per input.
    """
    at_least(0, prefetch=prefetch)
    if order not in get_args(Order):
        raise ValueError(f"order must be one of {', '.join(get_args(Order))}, not {order!r}")
    if key is not None and order != "arrival":
        raise ValueError(f"Set either an order ({order!r}) or a key, which is an order of its own")
    news = Notifier()
    lanes = [Prefetcher(items, limit=1 + prefetch, on_change=news.ring) for items in inputs]
    choose = _smallest(key) if key is not None else _CHOICES[order]
    rotates = key is None and order != "declared"

    async def abandon() -> None:
        # A stack closes every input, even if one of them raises while it is closed.
        async with AsyncExitStack() as stack:
            for lane in lanes:
                stack.push_async_callback(lane.intake.abandon)

    return Stream(_merge(lanes, news, choose, rotating=rotates), abandon)


Lanes = Sequence[Prefetcher[T]]
Choose = Callable[[Lanes[T]], Prefetcher[T] | None]


async def _merge(
    inputs: Lanes[T], news: Notifier, choose: Choose[T], *, rotating: bool
) -> AsyncGenerator[T, None]:
    lanes = list(inputs)
    async with AsyncExitStack() as stack:
        for lane in lanes:
            lane.begin()
            stack.push_async_callback(lane.end)
        while lanes:
            chosen = choose(lanes)
            if chosen is None:
                await news.wait()
            elif chosen.over:
                chosen.result()
                lanes.remove(chosen)
            else:
                # To the back of the row: an input that has waited longer is looked at first.
                if rotating:
                    lanes.remove(chosen)
                    lanes.append(chosen)
                yield chosen.take()


def _arrived(lanes: Lanes[T]) -> Prefetcher[T] | None:
    return next((lane for lane in lanes if lane.items or lane.over), None)


def _first(lanes: Lanes[T]) -> Prefetcher[T] | None:
    return _arrived(lanes[:1])


def _smallest(key: Callable[[T], Any]) -> Choose[T]:
    def choose(lanes: Lanes[T]) -> Prefetcher[T] | None:
        # The smallest item is known only when every input shows its first one.
        if not all(lane.items or lane.over for lane in lanes):
            return None
        # Ended inputs go first: `_merge` removes them, so `min` sees only inputs that have an item.
        ended = next((lane for lane in lanes if lane.over), None)
        return ended or min(lanes, key=lambda lane: key(lane.items[0]))

    return choose


_CHOICES: dict[Order, Choose[Any]] = {
    "arrival": _arrived,
    "turns": _first,
    "declared": _first,
}


def teed(items: AsyncIterable[T], readers: int = 2, *, prefetch: int = 0) -> tuple[Stream[T], ...]:
    """Return streams that each yield all items of one input.

    An item is read when a reader needs it, unless another reader has `1 + prefetch` items that it
    has not consumed: the slowest reader limits the others. So read all of them concurrently, or
    close those that you don't need. The input is closed with the last of them. Its error is raised
    in each reader, after the items.
    """
    at_least(1, readers=readers)
    at_least(0, prefetch=prefetch)
    tee = _Tee(items, limit=1 + prefetch)
    home = StreamOwner()
    ends = [_Reader[T]() for _ in range(readers)]
    tee.readers += ends
    return tuple(Stream(tee.read(end), partial(tee.leave, end), home=home) for end in ends)


# Compared by identity: `leave` must not remove another reader that has equal items.
@dataclass(slots=True, eq=False)
class _Reader(Generic[T]):
    """The items that one reader has not consumed, and whether it waits for more."""

    items: deque[T] = field(default_factory=deque)
    asks: bool = False


class _Tee(Generic[T]):
    def __init__(self, items: AsyncIterable[T], *, limit: int) -> None:
        self.readers: list[_Reader[T]] = []
        self._intake = InputStream(items)
        self._limit = limit
        self._source: SourceReader | None = None
        self._news = Notifier()
        self._room = Notifier()

    async def read(self, reader: _Reader[T]) -> AsyncGenerator[T, None]:
        """Yield the items to one reader."""
        source = self._source = self._source or SourceReader(
            self._pull(), self._intake, self._news.ring
        )
        try:
            while reader.items or not source.over:
                if reader.items:
                    # The reader task runs after `popleft`: nothing is awaited in between.
                    self._room.ring()
                    yield reader.items.popleft()
                else:
                    reader.asks = True
                    self._room.ring()
                    await self._news.wait()
            source.result()
        finally:
            await self.leave(reader)

    async def leave(self, reader: _Reader[T]) -> None:
        """Remove a reader, so that it no longer limits the others; the last closes the input."""
        if reader not in self.readers:
            return
        self.readers.remove(reader)
        self._room.ring()
        if not self.readers:
            try:
                if self._source is not None:
                    await self._source.stop()
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
