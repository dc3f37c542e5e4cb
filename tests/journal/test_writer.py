"""Writes that an event loop hands to a journal's thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from mergepoint.journal.writer import Writer


def failing(error: Exception) -> Callable[[], None]:
    """Return a write that fails."""

    def write() -> None:
        raise error

    return write


def test_closing_waits_for_a_write_that_is_under_way() -> None:
    """Closing ends when the disk has what nobody awaits, though it has left the queue."""
    begun, may_end, done = threading.Event(), threading.Event(), list[str]()

    def slow() -> None:
        begun.set()
        may_end.wait(10)
        done.append("written")

    async def main() -> list[str]:
        writer = Writer()
        writer.submit(slow, awaited=False)
        await asyncio.to_thread(begun.wait, 10)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        await asyncio.to_thread(writer.close)
        return list(done)

    assert asyncio.run(main()) == ["written"]


def test_closing_tells_of_the_write_under_way_that_failed() -> None:
    """The error of a write that nobody awaits is raised at the end at the latest."""
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        may_end.wait(10)
        raise OSError("no space left on device")

    async def main() -> None:
        writer = Writer()
        writer.submit(slow, awaited=False)
        await asyncio.to_thread(begun.wait, 10)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        await asyncio.to_thread(writer.close)

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(main())


def test_the_next_awaited_write_tells_of_one_that_nobody_awaited() -> None:
    """An answer is not used while a record before it is missing."""

    async def main() -> None:
        writer = Writer()
        writer.submit(failing(OSError("no space left on device")), awaited=False)
        try:
            await writer.submit(lambda: None)
        finally:
            writer.close()

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(main())


def test_an_awaited_write_raises_its_own_error_once() -> None:
    """Who awaits a write hears of it, and nobody else."""

    async def main() -> None:
        writer = Writer()
        with pytest.raises(OSError, match="torn"):
            await writer.submit(failing(OSError("torn")))
        await writer.submit(lambda: None)
        writer.close()

    asyncio.run(main())


FORKING = """
import asyncio, os, threading
from mergepoint.journal.writer import Writer

begun, may_end = threading.Event(), threading.Event()

def slow():
    begun.set()
    may_end.wait(10)

async def main():
    writer = Writer()
    writer.submit(slow, awaited=False)
    writer.submit(lambda: print("of the parent", os.getpid() == parent, flush=True), awaited=False)
    await asyncio.to_thread(begun.wait, 10)
    if not (child := os.fork()):
        writer.close()
        os._exit(0)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    may_end.set()
    await asyncio.to_thread(writer.close)
    print("child ended", status, flush=True)

parent = os.getpid()
asyncio.run(main())
"""


def test_a_forked_process_closes_while_its_parent_writes() -> None:
    """A child neither waits for a write of its parent's thread nor writes it a second time."""
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["of the parent True", "child ended 0"]
