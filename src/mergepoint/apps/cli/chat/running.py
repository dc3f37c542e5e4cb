"""Running: one turn at a time on one event loop, which Ctrl-C ends without ending the program."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

T = TypeVar("T")


class TurnLoop:
    """An event loop for many turns; models keep their connections from one to the next.

    Ctrl-C cancels the turn that runs, and with it the program in the sandbox; calls of a model in
    flight land first, and a second Ctrl-C drops them.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._runner.__exit__(*error)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Give what the work gives. Raises KeyboardInterrupt where Ctrl-C ended it."""
        loop = self._runner.get_loop()
        task = loop.create_task(work)
        pressed: list[int] = []

        def cancel(*_: Any) -> None:
            pressed.append(1)
            loop.call_soon_threadsafe(task.cancel)

        with _hearing(cancel):
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError:
                if pressed:
                    raise KeyboardInterrupt from None
                raise


@contextmanager
def _hearing(cancel: Any) -> Iterator[None]:
    """Let Ctrl-C call a function for a while; only a main thread hears of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
