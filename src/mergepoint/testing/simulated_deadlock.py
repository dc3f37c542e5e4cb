"""Deadlock: who waits for whom, when nothing in a simulated loop can go on any more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

from mergepoint.core.errors import RailError
from mergepoint.streams.flow.apart import resumed

_AWAITING = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future)


class Deadlock(RailError):
    """Nothing is ready and no timer is set, so no task that is left can ever go on.

    `waiting` has a text for each of them: its name, what it waits for, and the stack.
    """

    def __init__(self, seconds: float, waiting: tuple[str, ...]) -> None:
        self.seconds = seconds
        self.waiting = waiting
        lines = "".join(f"\n{one}" for one in waiting)
        super().__init__(
            f"deadlock after {seconds:g} simulated seconds: nothing is ready and no timer is set, "
            f"and these wait:{lines}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds, self.waiting), self.__dict__


def waits_of(tasks: Iterable[asyncio.Task[Any]]) -> tuple[str, ...]:
    """Tell of each task what it waits for and where, innermost call last; in order of names."""
    return tuple(sorted(_told(task) for task in tasks))


def _told(task: asyncio.Task[Any]) -> str:
    chain = list(_chain(task.get_coro()))
    frames = [frame for frame, _ in chain if frame is not None]
    last = chain[-1][1] if chain else None
    lines = [f"  {task.get_name()} waits for {_called(last)}", *map(_line, frames)]
    return "\n".join(lines)


def _called(awaited: object) -> str:
    if isinstance(awaited, asyncio.Task):
        return f"the task {awaited.get_name()}"
    if isinstance(awaited, asyncio.Future):
        return "a future that nobody has set"
    return type(awaited).__name__


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"    {Path(code.co_filename).name}:{frame.f_lineno} in {code.co_qualname}"


def _chain(awaited: object) -> Iterator[tuple[FrameType | None, object]]:
    """Give the frames from a coroutine down to what it waits for."""
    while awaited is not None:
        frame, inner = _step(awaited)
        yield frame, awaited
        awaited = inner


def _step(awaited: object) -> tuple[FrameType | None, object]:
    """Give the frame of something that is awaited, and what it awaits itself."""
    if isinstance(awaited, CoroutineType):
        return awaited.cr_frame, awaited.cr_await
    if isinstance(awaited, AsyncGeneratorType):
        return awaited.ag_frame, awaited.ag_await
    if isinstance(awaited, GeneratorType):
        frame = awaited.gi_frame
        if (
            frame is not None and frame.f_code is resumed.__code__
        ):  # it drives its coroutine by hand
            return None, frame.f_locals["steps"]
        return frame, awaited.gi_yieldfrom
    if isinstance(awaited, asyncio.Future):
        return None, None
    # wrappers such as the step of an async generator have no names for what they hold
    held = (one for one in gc.get_referents(awaited) if isinstance(one, _AWAITING))
    return None, next(held, None)
