"""Flights: calls that belong together, until the last of them has landed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from mergepoint.core.errors import StepError
from mergepoint.models.landing import GRACE


class Flights:
    """The attempts in flight of one function, in any thread or task.

    When the function has ended, none starts any more, and those that are paid come to their end.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Condition()
        self._count = 0
        self._closed = False
        self._landed: Callable[[], object] | None = None

    def check(self) -> None:
        """Raise StepError where the function has ended."""
        if self._closed:
            raise StepError(
                f"{self._path}: a model of this call was asked after the call had ended; wait for "
                "threads and tasks before the function returns"
            )

    def begin(self) -> None:
        """Note that an attempt goes out. Raises StepError where the function has ended."""
        with self._lock:
            self.check()
            self._count += 1

    def end(self) -> None:
        """Note that an attempt has landed, and is on record."""
        with self._lock:
            self._count -= 1
            if not self._count:
                self._lock.notify_all()
                if self._landed is not None:
                    self._landed()

    def close(self) -> None:
        """Let no attempt start any more."""
        with self._lock:
            self._closed = True

    def land(self) -> None:
        """Wait until all have landed, as long as the grace limit allows."""
        with self._lock:
            self._lock.wait_for(lambda: not self._count, GRACE)

    async def aland(self) -> None:
        """Do what `land` does, on an event loop."""
        loop, landed = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if not self._count:
                return
            self._landed = lambda: loop.call_soon_threadsafe(landed.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await landed.wait()
        finally:
            self._landed = None
