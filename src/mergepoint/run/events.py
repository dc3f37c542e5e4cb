"""Events on their way from a run to the one who listens."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context

from mergepoint.core.errors import RailError
from mergepoint.run.recorder import Event


class LoopEvents:
    """Events of a run on an event loop; once it has stopped it lets no call start."""

    def __init__(self) -> None:
        self.stopped = False
        self._heard: deque[Event] = deque()

    def __call__(self, event: Event) -> None:
        """Keep an event. Raises RailError for a call that starts after the stop."""
        if self.stopped and event.kind == "start":
            raise _nobody(event)
        self._heard.append(event)

    def drained(self) -> Iterator[Event]:
        """Give the events that came since the last time."""
        while self._heard:
            yield self._heard.popleft()


class PulledEvents:
    """Events of a run in a thread of its own, which goes on as they are taken.

    A call starts when the events before it have been taken, so a listener that stops has caused
    no call beyond those that it heard of.
    """

    def __init__(self) -> None:
        self._heard: deque[Event] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._done = False
        self._error: BaseException | None = None

    def __call__(self, event: Event) -> None:
        """Keep an event; a start waits its turn. Raises RailError for a start after the stop."""
        with self._changed:
            if event.kind == "start":
                self._changed.wait_for(lambda: self._stopped or not self._heard)
                if self._stopped:
                    raise _nobody(event)
            self._heard.append(event)
            self._changed.notify_all()

    def of(self, work: Callable[[], None]) -> Iterator[Event]:
        """Give the events of some work while it is done. Raises what the work raises."""
        context = copy_context()
        thread = threading.Thread(target=context.run, args=(self._run, work), daemon=True)
        thread.start()
        try:
            while (event := self._next()) is not None:
                yield event
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (raised again where the events are taken)
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _next(self) -> Event | None:
        with self._changed:
            self._changed.wait_for(lambda: self._heard or self._done)
            event = self._heard.popleft() if self._heard else None
            self._changed.notify_all()
            return event


def _nobody(event: Event) -> RailError:
    return RailError(f"{event.path}: nobody listens any more; the run has been stopped")
