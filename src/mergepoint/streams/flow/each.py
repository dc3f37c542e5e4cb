"""Each: the items of an iterable as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

T = TypeVar("T")


async def each(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Give the items of an iterable one by one; none is taken before it is asked for."""
    for item in items:
        yield item
