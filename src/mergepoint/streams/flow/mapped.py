"""Mapped: a function over a stream, lazy and bounded, one call at a time or many side by side."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from contextvars import copy_context
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import Any, TypeVar, get_args, overload

from mergepoint.streams.flow.apart import apart, awaitable, results_apart, resumed
from mergepoint.streams.flow.intake import Intake
from mergepoint.streams.flow.limits import at_least
from mergepoint.streams.flow.stream import Stream
from mergepoint.streams.flow.window import Shape, Stop, Window

T = TypeVar("T")
R = TypeVar("R")


@overload
def mapped(
    items: AsyncIterable[T],
    function: Callable[[T], AsyncIterable[R]],
    *,
    width: int,
    prefetch: int = ...,
    ordered: bool = ...,
    stop: Stop = ...,
    last: tuple[type[Exception], ...] = ...,
) -> Stream[R]: ...


@overload
def mapped(
    items: AsyncIterable[T],
    function: Callable[[T], Awaitable[R]],
    *,
    width: int,
    prefetch: int = ...,
    ordered: bool = ...,
    stop: Stop = ...,
    last: tuple[type[Exception], ...] = ...,
) -> Stream[R]: ...


def mapped(
    items: AsyncIterable[T],
    function: Callable[[T], Any],
    *,
    width: int,
    prefetch: int = 0,
    ordered: bool = True,
    stop: Stop = "cancel",
    last: tuple[type[Exception], ...] = (),
) -> Stream[Any]:
    """Give what a function makes of each item: a result, or the results of a fan-out.

    `function` is async, or gives an async iterator of results. At most `width` of its calls are
    in flight, each in its own copy of the context in which the stream began. At most `width +
    prefetch` items are pulled and not yet taken, counted from the oldest that is not released; of
    a fan-out each result beyond the first counts too, so a higher `prefetch` lets fan-outs run
    ahead. With a width of 1 and no prefetch nothing is made that was not asked for, and unless
    its calls land there is no task at all.

    Results come in the order of their items, or with `ordered=False` as they are made. An error
    comes at its turn, after the results before it, and nothing is begun after it is known; one of
    the types `last` comes after all that had begun. When a
    stream ends before its time, calls in flight are cancelled. With `stop="land"` they come to
    their end, and who closes or cancels the stream waits for that; who then cancels once more
    cancels them.

    Raises ValueError for numbers below their least, TypeError for an input that is no async
    iterator and, in its turn, for a function that is not async.
    """
    at_least(1, width=width)
    at_least(0, prefetch=prefetch)
    if stop not in get_args(Stop):
        raise ValueError(f"stop is one of {', '.join(get_args(Stop))}, not {stop!r}")
    intake = Intake(items)
    if width + prefetch == 1 and stop == "cancel":  # to land, a call needs a task of its own
        return Stream(_one_by_one(intake, function), intake.abandon)
    window: Window[T, Any] = Window(intake, function, Shape(width, prefetch, ordered, stop, last))
    return Stream(window.results(), intake.abandon)


async def _one_by_one(intake: Intake[T], function: Callable[[T], Any]) -> AsyncGenerator[Any, None]:
    """Call in the task of the taker: nothing is begun that is not asked for."""
    copy = copy_context().copy
    quick = iscoroutinefunction(function)  # nothing of it runs when it is called
    async with intake as items:
        async for item in items:
            context = copy()
            made = function(item) if quick else context.run(function, item)
            if type(made) is CoroutineType:  # `apart`, written out: a third of what a call costs
                try:
                    waited = context.run(made.send, None)
                except StopIteration as end:
                    result = end.value
                else:
                    result = await resumed(context, made, waited)
                yield result
            elif hasattr(made, "__aiter__"):
                async with aclosing(results_apart(context, made)) as results:
                    async for result in results:
                        yield result
            else:
                yield await apart(context, awaitable, made)
