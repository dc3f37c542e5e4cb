"""Doomed: a process that is listened to until it ends or is killed."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.crash.attended", "tests.crash.graphed"])

LOOK = 0.002
"""Seconds between two looks at what a process told."""

SLOW = 120.0
"""Seconds after which a process that tells nothing new counts as hanging."""


class Doomed:
    """A process and all that it told so far. It is killed when the `with` block is left."""

    def __init__(self, work: Callable[[Any, Connection], None], order: Any) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=work, args=(order, theirs))
        self._process.start()
        theirs.close()
        self.told: list[tuple[str, Any]] = []
        self.open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def hear(self, done: Callable[[], bool], *, until: float = float("inf")) -> None:
        """Listen until something holds, the process has ended, or the clock is at `until`.

        It looks now and then, and does not wait for news: who waits is woken by them, and on a
        busy machine that would stop the process just where it told something.

        Raises TimeoutError for a process that hangs.
        """
        news = time.monotonic()
        while self.open and not done() and (now := time.monotonic()) < until:
            time.sleep(min(LOOK, until - now))
            while self.open and self._pipe.poll():
                self._take()
                news = now
            if now - news > SLOW:
                raise TimeoutError(f"nothing came in {SLOW:.0f} s; the last was {self.told[-1:]}")

    def pause(self, seconds: float) -> None:
        """Listen for a while."""
        self.hear(lambda: False, until=time.monotonic() + seconds)

    def say(self, what: Any) -> None:
        """Tell the process something; one that has ended does not hear it."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send(what)

    def kill(self) -> None:
        """Kill it with signal 9, and take what it told before."""
        self._process.kill()
        self._process.join()
        while self.open:
            self._take()
        self._pipe.close()

    def all(self, what: str) -> list[Any]:
        """Return everything of one kind that it told. Raises AssertionError where it failed."""
        failed = [about for told, about in self.told if told == "failed"]
        assert not failed, f"a run failed by itself:\n{failed[0]}"
        return [about for told, about in self.told if told == what]

    def _take(self) -> None:
        try:
            self.told.append(self._pipe.recv())
        except (EOFError, ConnectionResetError):
            self.open = False
