"""Link: the way of Things from one who gives them to the one who takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self

from mergepoint.core.errors import RailError
from mergepoint.streams.arrivals import close
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.stops import Stopped
from mergepoint.streams.thing import Thing

if TYPE_CHECKING:
    from mergepoint.streams.motion import Motion


class Link:
    """What a stage gives, or the items of a recipe. A rail that ends its giver ends it, noted.

    `above` is where the giver takes from. `starts` is the recipe whose time its first Thing
    begins. It `waits` while somebody waits for the next Thing, and can then be cut.
    """

    __slots__ = (
        "_before",
        "_cuts",
        "_motion",
        "_stream",
        "_task",
        "_told",
        "_why",
        "above",
        "begins",
        "giver",
        "stage_id",
        "starts",
    )

    def __init__(
        self,
        stream: AsyncIterator[Thing],
        motion: Motion,
        *,
        giver: str,
        stage_id: str,
        above: Any = None,
        starts: PlannedRecipe | None = None,
        told: Callable[[str, Thing], None] | None = None,
    ) -> None:
        self.giver = giver
        self.stage_id = stage_id
        self.above = above
        self.starts = starts
        self.begins = "" if starts is None else starts.prefix
        self._stream = stream
        self._motion = motion
        self._told = told
        self._task: asyncio.Task[Any] | None = None
        self._why: Stopped | None = None
        self._before = 0
        self._cuts = 0

    @property
    def waits(self) -> bool:
        """Say whether somebody waits for the next Thing."""
        return self._task is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Thing:
        motion = self._motion
        motion.links[self] = None
        motion.watch()
        self._task = task = asyncio.current_task()
        self._before = 0 if task is None else task.cancelling()
        late = None if self.starts is None else motion.over((self.begins,))
        if late is not None:  # what is there is looked at, so that an end is no stop
            asyncio.get_running_loop().call_soon(self.cut, late)
        try:
            thing = await anext(self._stream)
        except BaseException as error:
            motion.links.pop(self, None)
            stopped = self._stopped_by(error)
            if stopped is None:
                raise
            motion.stops.note(self.stage_id, stopped)
            raise StopAsyncIteration from None
        finally:
            if self._cuts:
                self._let_go()
            self._task = None
            motion.moves += 1
        if late is not None:
            motion.links.pop(self, None)
            motion.stops.note(self.stage_id, late)
            await close(self._stream)
            raise StopAsyncIteration
        if self.starts is not None:
            motion.begin(self.starts)
        if self._told is not None:
            self._told(self.stage_id, thing)
        return thing

    async def aclose(self) -> None:
        """Close what gives."""
        self._motion.links.pop(self, None)
        await close(self._stream)

    def cut(self, why: Stopped) -> None:
        """End the giver if somebody waits for it, as a timeout would; and again, if need be."""
        if self._task is not None:
            self._why = why
            self._cuts += 1
            self._task.cancel()

    def _stopped_by(self, error: BaseException) -> RailError | None:
        """Give the rail that an error comes from: it was raised, or this was cut and no more."""
        if isinstance(error, RailError):
            return error
        task, why = self._task, self._why
        if why is None or task is None or not isinstance(error, asyncio.CancelledError):
            return None
        self._let_go()
        return why if task.cancelling() <= self._before else None

    def _let_go(self) -> None:
        task, cuts = self._task, self._cuts
        self._task = self._why = None
        self._cuts = 0
        if task is not None:
            for _ in range(cuts):
                task.uncancel()
