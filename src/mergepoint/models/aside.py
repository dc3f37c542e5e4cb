"""Aside: work in a thread of its own, for one who waits only so long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from mergepoint.models.landing import Limits

T = TypeVar("T")


_END = object()


def in_time(work: Callable[[], T], limits: Limits) -> T:
    """Give what the work gives. Raises CallTimeout where the limits have a timeout."""
    if limits.timeout is None:
        return work()
    aside = Aside(limits)
    try:
        return aside.ask(work)
    finally:
        aside.end()


def pieces_in_time(start: Callable[[], Iterable[T]], limits: Limits) -> Generator[T, None, None]:
    """Give the pieces of a stream; the time that the consumer takes does not count.

    Raises CallTimeout where the limits have a timeout.
    """
    if limits.timeout is None:
        yield from start()
        return
    aside = Aside(limits)
    close = None
    try:
        stream: Any = iter(aside.ask(start))
        close = getattr(stream, "close", None)
        while (piece := aside.ask(partial(next, stream, _END))) is not _END:
            yield piece
    finally:
        aside.end(close)


class Aside:
    """A thread that does what it is asked, one thing after another, in a copy of the context.

    Python cannot end a thread. One that is late goes on until its work returns, and what it
    gives is lost; it is a daemon, so that a process can end before.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.timeout
        self._asked: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        thread = threading.Thread(target=copy_context().run, args=(self._work,), daemon=True)
        thread.start()

    def ask(self, work: Callable[[], T]) -> T:
        """Give what the work gives; the waits of all that is asked add up. Raises CallTimeout."""
        started = time.monotonic()
        self._asked.put(work)
        try:
            value, error = self._done.get(timeout=self._left)
        except Empty:
            raise self._limits.overdue() from None
        if self._left is not None:
            self._left = max(0.0, self._left - (time.monotonic() - started))
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def end(self, last: Callable[[], Any] | None = None) -> None:
        """Let the thread end when it comes to it, with one last thing to do."""
        if last is not None:
            self._asked.put(last)
        self._asked.put(None)

    def _work(self) -> None:
        while (work := self._asked.get()) is not None:
            try:
                self._done.put((work(), None))
            except BaseException as error:  # noqa: BLE001  (raised again where it is waited for)
                self._done.put((None, error))
