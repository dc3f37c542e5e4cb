"""Under way: a model's own code, run where the door knows that its call is under way.

Some models answer `_generate` by way of their own `_stream`, or ask another model: none of that
is a call of its own. The mark must not be seen by who takes the pieces of a stream, since they may
call models while they do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from mergepoint.models.passage import CALL, ModelCall

T = TypeVar("T")

_END = object()


def asked(call: ModelCall, ask: Callable[[], T]) -> T:
    """Give what a model's method gives."""
    token = CALL.set(call)
    try:
        return ask()
    finally:
        CALL.reset(token)


def streamed(call: ModelCall, start: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Give the pieces of a model's stream."""
    stream: Any = iter(asked(call, start))
    try:
        while (piece := asked(call, partial(next, stream, _END))) is not _END:
            yield piece
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            asked(call, close)


async def aasked(call: ModelCall, ask: Callable[[], Awaitable[T]]) -> T:
    """Give what a model's method gives, in a task that does nothing else."""
    CALL.set(call)
    return await ask()


def astreamed(call: ModelCall, start: Callable[[], AsyncIterator[Any]]) -> AsyncIterator[Any]:
    """Give a model's stream, in a task that does nothing but read it."""
    CALL.set(call)
    return start()
