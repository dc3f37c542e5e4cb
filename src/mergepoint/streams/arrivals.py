"""Arrivals: the items of a stage as its block pulls them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from mergepoint.streams.block_error import BlockError
from mergepoint.streams.thing import Thing


class Arrivals:
    """Items that are told of as they arrive, and that are closed once, whoever forgets it.

    Raises BlockError for an item that is no Thing, or that no stage and no input let out.
    """

    def __init__(self, items: AsyncIterator[Thing], arrived: Callable[[Thing], None]) -> None:
        self._items = items
        self._arrived = arrived
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Thing:
        if self._closed:
            raise StopAsyncIteration
        item = await anext(self._items)
        if not isinstance(item, Thing) or item.made is not None:
            raise BlockError(f"was given {item!r}, which no stream let out; see entered(...)")
        self._arrived(item)
        return item

    async def aclose(self) -> None:
        """Close the items; nothing comes after."""
        self._closed = True
        await close(self._items)


async def close(items: AsyncIterator[Any]) -> None:
    """Close an iterator, if it can be."""
    aclose = getattr(items, "aclose", None)
    if aclose is not None:
        await aclose()
