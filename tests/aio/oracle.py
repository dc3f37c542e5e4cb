"""Oracle: what the verbs mean, one item after the other and without a loop."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from tests.aio.laws import Told
from tests.aio.parts import Item

T = TypeVar("T")

Missed = list[str] | None
Oracle = Callable[[Missed], Iterator[Any]]
"""Gives what comes one after the other; with a list it goes on after errors, and notes them."""


def noting(items: Iterator[T], missed: Missed) -> Iterator[T]:
    """Yield items; an error ends them, and with a list it is noted there."""
    try:
        yield from items
    except Told as error:
        if missed is None:
            raise
        missed.append(str(error))


def first(item: Item) -> int:
    """Return the position of an item in its source."""
    return item[0]


def heavy(batch: Sequence[Item]) -> bool:
    """Return whether a batch is full, by what is in it."""
    return sum(item[0] for item in batch) >= 6


def in_batches(
    items: Iterator[Item], size: int | None, full: Callable[[Sequence[Item]], bool] | None
) -> Iterator[tuple[Item, ...]]:
    """Yield items in batches; what was gathered comes before an error."""
    batch: list[Item] = []
    failure: Told | None = None
    try:
        for item in items:
            batch.append(item)
            if len(batch) == size or (full is not None and full(batch)):
                yield tuple(batch)
                batch = []
    except Told as error:
        failure = error
    if batch:
        yield tuple(batch)
    if failure is not None:
        raise failure


def in_turns(lanes: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """Give one item of each lane in a round."""
    waiting = list(lanes)
    while waiting:
        lane = waiting.pop(0)
        for item in lane:
            yield item
            waiting.append(lane)
            break


def in_order(lanes: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """Return the smallest first item of all lanes."""
    return heapq.merge(*lanes, key=first)


MIXES: Mapping[str | None, Callable[[Sequence[Iterator[Item]]], Iterator[Item]]] = {
    "arrival": chain.from_iterable,
    "declared": chain.from_iterable,
    "turns": in_turns,
    None: in_order,
}
