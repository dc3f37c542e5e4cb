"""Merged: several streams as one, as their items come or in an order that is declared."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeVar, get_args

from mergepoint.streams.flow.bell import Bell
from mergepoint.streams.flow.lane import Lane
from mergepoint.streams.flow.limits import at_least
from mergepoint.streams.flow.stream import Stream

T = TypeVar("T")

Order = Literal["arrival", "turns", "declared"]


def merged(
    *inputs: AsyncIterable[T],
    order: Order = "arrival",
    key: Callable[[T], Any] | None = None,
    prefetch: int = 0,
) -> Stream[T]:
    """Give the items of all inputs, each of which is read by a task of its own.

    `order` says which comes next: `"arrival"` what is there, of the input that has waited longest;
    `"turns"` one of each input in a round; `"declared"` all of the first input, then all of the
    second. With `key` it is the item with the smallest key among the first of each input: inputs
    that are sorted come out sorted, those with equal keys as the inputs are declared. All but
    `"arrival"` give the same however fast the inputs are.

    At most `1 + prefetch` items of an input are pulled and not taken. An input's error comes at
    its turn, after its items.
    """
    at_least(0, prefetch=prefetch)
    if order not in get_args(Order):
        raise ValueError(f"order is one of {', '.join(get_args(Order))}, not {order!r}")
    if key is not None and order != "arrival":
        raise ValueError(f"give either an order ({order!r}) or a key, which is an order of its own")
    news = Bell()
    lanes = [Lane(items, limit=1 + prefetch, told=news.ring) for items in inputs]
    choose = _smallest(key) if key is not None else _CHOICES[order]
    rotates = key is None and order != "declared"

    async def abandon() -> None:
        async with AsyncExitStack() as stack:
            for lane in lanes:
                stack.push_async_callback(lane.intake.abandon)

    return Stream(_merge(lanes, news, choose, rotating=rotates), abandon)


Lanes = Sequence[Lane[T]]
Choose = Callable[[Lanes[T]], Lane[T] | None]


async def _merge(
    inputs: Lanes[T], news: Bell, choose: Choose[T], *, rotating: bool
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
                if rotating:
                    lanes.remove(chosen)
                    lanes.append(chosen)
                yield chosen.take()


def _arrived(lanes: Lanes[T]) -> Lane[T] | None:
    return next((lane for lane in lanes if lane.items or lane.over), None)


def _first(lanes: Lanes[T]) -> Lane[T] | None:
    return _arrived(lanes[:1])


def _smallest(key: Callable[[T], Any]) -> Choose[T]:
    def choose(lanes: Lanes[T]) -> Lane[T] | None:
        if not all(lane.items or lane.over for lane in lanes):
            return None
        ended = next((lane for lane in lanes if lane.over), None)
        return ended or min(lanes, key=lambda lane: key(lane.items[0]))

    return choose


_CHOICES: dict[Order, Choose[Any]] = {
    "arrival": _arrived,
    "turns": _first,
    "declared": _first,
}
