"""Pump: the one task that advances an input and closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from mergepoint.streams.flow.ending import ended
from mergepoint.streams.flow.intake import Intake


class Pump:
    """A task of its own for work that opens an input, reads it and closes it.

    Generators that hold a cancel scope or a context variable open across a `yield` must be
    advanced and closed by one task. `told` is called when the work is over.
    """

    def __init__(
        self, work: Coroutine[Any, Any, None], intake: Intake[Any], told: Callable[[], None]
    ) -> None:
        self.stopping = False  # an input may swallow its cancellation and give another item
        self._intake = intake
        self._task = asyncio.get_running_loop().create_task(work, name="pump")
        self._task.add_done_callback(lambda _: told())

    @property
    def over(self) -> bool:
        """Say whether the work is over."""
        return self._task.done()

    def result(self) -> None:
        """Raise what the work raised."""
        self._task.result()

    async def stop(self, *, beside: Collection[asyncio.Task[Any]] = (), outlasts: int = 0) -> None:
        """End the work, and wait for it and for the tasks beside it (see `ended`).

        Raises what the input raises as it is closed; an error from before has no turn any more.
        """
        late = not self._task.done()
        self.stopping = True
        if not self._intake.closing:  # else a first stop would reach it as a second one
            self._task.cancel()
        try:
            await ended([self._task, *beside], outlasts=outlasts)
        finally:
            failed = not self._task.cancelled() and self._task.exception() is not None
        if late and failed:
            self._task.result()
