"""Halt: a run that is told to stop lets its calls in flight land, and starts no new ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Halt:
    """The attempts in flight, and whether another may start.

    It takes no lock: a signal handler that waited for the thread that it interrupts would never
    end. Single operations on a set are whole in Python.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._in_flight: set[int] = set()

    def stop(self) -> bool:
        """Let no attempt start any more, and say whether one is in flight."""
        self.stopped = True
        return bool(self._in_flight)

    def check(self) -> None:
        """Raise KeyboardInterrupt where the run was told to stop."""
        if self.stopped:
            raise KeyboardInterrupt("the run was told to stop")

    def begin(self, attempt: object) -> None:
        """Note that an attempt goes out."""
        self._in_flight.add(id(attempt))

    def end(self, attempt: object) -> None:
        """Note that an attempt has landed."""
        self._in_flight.discard(id(attempt))


HALT: ContextVar[Halt | None] = ContextVar("mergepoint_halt", default=None)


@contextmanager
def halting() -> Iterator[Halt]:
    """Give the Halt of the runs inside of `with`, in any thread that they use.

    It is for a handler of Ctrl-C. An exception that the handler raised would cut off the call of
    its own thread, though it is paid, and would not stop the work in others. So it stops the
    Halt, and raises only where nothing is in flight; the door raises KeyboardInterrupt in place
    of the next call.
    """
    halt = Halt()
    token = HALT.set(halt)
    try:
        yield halt
    finally:
        HALT.reset(token)
