"""A clock for tests: the door's waits between attempts take no time, and are kept."""

from __future__ import annotations

import asyncio
from contextvars import Token
from types import TracebackType
from typing import Self

from mergepoint.models.attempts import CLOCK, Clock


class FakeClock:
    """Stands in for the door's clock inside of `with`; `waits` are the seconds of each wait.

    `now` (seconds since the epoch) goes on by what is waited. Nothing is added to waits at
    random, unless `chance` (from 0 up to 1) says so. Timeouts are not waits: they take real time.
    """

    def __init__(self, *, now: float = 0.0, chance: float = 0.0) -> None:
        self.waits: list[float] = []
        self.now = now
        self._chance = chance
        self._token: Token[Clock] | None = None

    def __enter__(self) -> Self:
        clock = Clock(self._sleep, self._asleep, lambda: self.now, lambda: self._chance)
        self._token = CLOCK.set(clock)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._token is not None:
            CLOCK.reset(self._token)
        self._token = None

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def _asleep(self, seconds: float) -> None:
        self._sleep(seconds)
        await asyncio.sleep(0)
