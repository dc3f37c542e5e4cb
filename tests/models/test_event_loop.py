"""The event loop that sync callers share."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from mergepoint.models.event_loop import run_sync

NAME: ContextVar[str] = ContextVar("name", default="nobody")


async def loop_of() -> asyncio.AbstractEventLoop:
    """Return the loop that runs this."""
    return asyncio.get_running_loop()


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, where each warning is an error."""
    return subprocess.run(  # noqa: S603  (the tests' own interpreter and code)
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_all_sync_callers_share_one_loop() -> None:
    """Calls one after another and from many threads run on the same loop, which stays open."""
    first = run_sync(loop_of())
    with ThreadPoolExecutor(4) as threads:
        others = list(threads.map(lambda _: run_sync(loop_of()), range(8)))
    assert {id(one) for one in others} == {id(first)}
    assert not first.is_closed()


def test_context_variables_are_carried_over() -> None:
    """The work sees the caller's variables; what it sets stays in the work."""

    async def rename() -> str:
        before = NAME.get()
        NAME.set("changed")
        return before

    token = NAME.set("caller")
    try:
        assert run_sync(rename()) == "caller"
        assert NAME.get() == "caller"
    finally:
        NAME.reset(token)


def test_it_works_where_a_loop_runs() -> None:
    """Inside of a running loop, as in a notebook, the caller waits and gets the result."""

    async def notebook() -> bool:
        return run_sync(loop_of()) is not asyncio.get_running_loop()

    assert asyncio.run(notebook())


def test_work_that_calls_again_gets_another_loop() -> None:
    """Sync code on the loop, or in a thread below it, can run coroutines without a deadlock."""

    async def direct() -> Any:
        return run_sync(loop_of())

    async def in_a_thread() -> Any:
        return await asyncio.to_thread(lambda: run_sync(loop_of()))

    own = run_sync(loop_of())
    nested = run_sync(direct())
    assert nested is not own
    assert run_sync(in_a_thread()) is nested


def test_errors_come_through_and_the_loop_goes_on() -> None:
    """What the work raises is raised as it is, KeyboardInterrupt included."""

    async def fail(error: BaseException) -> None:
        raise error

    own = run_sync(loop_of())
    for error in (ValueError("x"), KeyboardInterrupt("told to stop"), SystemExit(3)):
        with pytest.raises(type(error)) as raised:
            run_sync(fail(error))
        assert raised.value is error
    with pytest.raises(asyncio.CancelledError):
        run_sync(fail(asyncio.CancelledError()))
    assert run_sync(loop_of()) is own


def test_the_first_interrupt_lets_the_work_end() -> None:
    """Ctrl-C cancels the work and waits until it has cleaned up; then it is raised."""
    done: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            done.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        run_sync(work())
    assert done == ["cleaned up"]


def test_the_second_interrupt_cancels_again() -> None:
    """Work that goes on after the first cancellation is cancelled by the second Ctrl-C."""
    seen: list[str] = []

    async def work() -> None:
        while len(seen) < 2:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(1)  # pressed while the caller was busy: it is pressed again
            except asyncio.CancelledError:
                seen.append("cancelled")

    with pytest.raises(KeyboardInterrupt):
        run_sync(work())
    assert seen == ["cancelled", "cancelled"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_makes_its_own_loop() -> None:
    """After a fork the child starts a loop, and the parent's goes on working."""
    code = (
        "import asyncio, os, sys\n"
        "from mergepoint.models.event_loop import run_sync\n"
        "async def answer():\n"
        "    await asyncio.sleep(0)\n"
        "    return 7\n"
        "run_sync(answer())\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(run_sync(answer()))\n"
        "_, status = os.waitpid(child, 0)\n"
        "print(os.waitstatus_to_exitcode(status), run_sync(answer()))\n"
    )
    ran = python(code)
    assert (ran.stdout, ran.stderr) == ("7 7\n", "")


def test_a_process_ends_with_tasks_left() -> None:
    """Work that somebody left on the loop holds up no exit, and says nothing there."""
    code = (
        "import asyncio\n"
        "from mergepoint.models.event_loop import run_sync\n"
        "async def leave():\n"
        "    leave.task = asyncio.ensure_future(asyncio.sleep(3600))\n"
        "run_sync(leave())\n"
    )
    ran = python(code)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_callers_in_threads_do_not_wait_for_each_other() -> None:
    """Two callers whose coroutines wait for each other both come to their end."""
    met = threading.Barrier(2, timeout=60)

    async def meet() -> int:
        return await asyncio.to_thread(met.wait)

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(lambda _: run_sync(meet()), range(2))) == [0, 1]
