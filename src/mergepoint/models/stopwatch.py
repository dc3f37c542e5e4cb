"""Stopwatch: elapsed time that can stand still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Runs from when it is made, and stands still while any pause is open, or it is stopped.

    It never goes back, whatever its clock does. Safe to use from several threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = clock()
        self._elapsed = 0.0
        self._pauses = 0
        self._stopped = False

    @property
    def elapsed(self) -> float:
        """Give the seconds since it was made, without those of pauses."""
        with self._lock:
            self._advance()
            return self._elapsed

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stand still; of several pauses at once the last to end lets time go on."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def stop(self) -> None:
        """Stand still until it is started again."""
        with self._lock:
            self._advance()
            self._stopped = True

    def start(self) -> None:
        """Run on; one that runs is left as it is."""
        with self._lock:
            self._advance()
            self._stopped = False

    def _count(self, change: int) -> None:
        with self._lock:
            self._advance()
            self._pauses += change

    def _advance(self) -> None:
        now = self._clock()
        if not self._pauses and not self._stopped:
            self._elapsed += max(0.0, now - self._last)
        self._last = now
