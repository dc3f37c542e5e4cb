"""Intake: an input of a verb, closed once whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from types import TracebackType
from typing import Generic, TypeVar

from mergepoint.streams.flow.stream import Stream

T = TypeVar("T")


class Intake(Generic[T]):
    """An input, for one `async with`, which gives its iterator and closes it.

    It is `closing` as soon as that has begun, for whatever reason.
    Raises TypeError for what is no async iterator.
    """

    def __init__(self, items: AsyncIterable[T]) -> None:
        if not isinstance(items, AsyncIterable):
            raise TypeError(
                f"a stream is made of async iterators, not of {type(items).__name__}: `each` makes "
                "one of a list, a tuple or any other iterable"
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
        own = self._items if isinstance(self._items, Stream) else self._iterator
        close = getattr(own, "aclose", None)
        if close is not None:
            await close()

    async def abandon(self) -> None:
        """Close the input if nobody opened it: who was to do so was stopped before it ran."""
        if self._iterator is None:
            async with self:
                pass
