"""Ctrl-C in the moment before the main thread begins to wait."""

from __future__ import annotations

import _thread
import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mergepoint import Block, Step
from mergepoint.engine.callbacks import PulledEvents
from mergepoint.engine.interpreter import interpret
from mergepoint.models.event_loop import run_sync
from mergepoint.models.timeouts import HelperThread, TimeLimits

LONG = 5.0
"""Seconds after which the work ends that nothing interrupted."""


class Work:
    """Work in another thread that lasts until the main thread has heard Ctrl-C."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.heard = threading.Event()
        self.late = False

    def __call__(self) -> None:
        """Wait."""
        self.begun.set()
        if not self.heard.wait(LONG):
            self.late = True


Waiting = Callable[[Work], object]


def on_loop(work: Work) -> None:
    """Wait for a coroutine on the shared loop."""
    run_sync(asyncio.to_thread(work))


def in_thread(work: Work) -> None:
    """Wait for a call in a helper thread."""
    HelperThread(TimeLimits("x", None)).ask(work, last=True)


def in_branches(work: Work) -> None:
    """Wait for the branches of a parallel block."""

    def prompt(_: Any) -> str:
        work()
        return "Write a line."

    steps = [Step(prompt, name=name, merge="none") for name in ("a", "b")]
    interpret(Block(steps, parallel="threads"), model="offline")


def in_events(work: Work) -> None:
    """Wait for the next event of a run in a thread of its own."""
    list(PulledEvents().of(work))


@pytest.mark.parametrize("waiting", [on_loop, in_thread, in_branches, in_events])
def test_an_interrupt_that_wakes_nobody_ends_the_wait(waiting: Waiting) -> None:
    """SIGINT is marked as arrived without waking the main thread, as if it came too early."""
    work = Work()

    def handle(*_: object) -> None:
        work.heard.set()
        raise KeyboardInterrupt

    def press() -> None:
        work.begun.wait()
        time.sleep(0.2)  # until the main thread waits
        _thread.interrupt_main()

    before = signal.signal(signal.SIGINT, handle)
    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            waiting(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not work.late
