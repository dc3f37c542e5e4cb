"""Apart: what runs in a context of its own, in the task of who waits for it."""

from __future__ import annotations

import types
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator
from contextvars import Context
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Steps(Protocol):
    """What is advanced step by step: a coroutine, or a step of an async generator."""

    def send(self, value: Any, /) -> Any:
        """Go on."""

    def throw(self, error: BaseException, /) -> Any:
        """Go on with an error."""


@types.coroutine
def resumed(context: Context, steps: Steps, waited: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that waits for something, in its context, and give its result."""
    run = context.run
    while True:
        try:
            value = yield waited
        except BaseException as error:  # noqa: BLE001  (whatever it is, the coroutine is told)
            go_on, value = steps.throw, error
        else:
            go_on = steps.send
        try:
            waited = run(go_on, value)
        except StopIteration as end:
            return end.value


async def apart(context: Context, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call a function and wait for its result, all of it in the context."""
    made: Any = context.run(function, *args)
    steps = made if hasattr(made, "send") else _awaited(made)
    try:
        waited = context.run(steps.send, None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    return await resumed(context, steps, waited)  # type: ignore[no-any-return]


async def results_apart(context: Context, made: AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """Give the results of a fan-out, each made in the context, and close it there."""
    steps = context.run(aiter, made)
    try:
        while True:
            try:
                result = await apart(context, steps.__anext__)
            except StopAsyncIteration:
                return
            yield result
    finally:
        close = getattr(steps, "aclose", None)
        if close is not None:
            await apart(context, close)


def awaitable(made: Any) -> Awaitable[Any]:
    """Give what a function made, if it can be waited for. Raises TypeError."""
    if not hasattr(made, "__await__"):
        raise TypeError(
            f"the function of a stream gave {type(made).__name__}: it has to be async, or to give "
            "an async iterator of results"
        )
    return made  # type: ignore[no-any-return]


async def _awaited(made: Awaitable[T]) -> T:
    return await made
