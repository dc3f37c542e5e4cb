"""Supervised: a run of code as seen from an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.code_run import CodeRun, ToolCall
from mergepoint.agent.sandbox.started import Started
from mergepoint.agent.sandbox.supervision import Collect, Supervision
from mergepoint.agent.sandbox.tool_line import Asked, call_tool

OnOutput = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Backend:
    """How a backend starts the process of a job, and takes what was made after its end."""

    name: str
    start: Callable[[CodeJob], Started]
    collect: Collect


def follow(
    job: CodeJob, backend: Backend, *, tell: Callable[[str | Asked | Supervision], None]
) -> CodeRun:
    """Run a job in this thread. `tell` hears of its supervision, its output and its calls."""
    begun = time.monotonic()
    started = backend.start(job)
    try:
        supervision = Supervision(job, started, on_output=tell, on_call=tell)
        tell(supervision)
        return supervision.follow(backend.name, begun=begun, collect=backend.collect)
    finally:
        started.close()


async def supervised(job: CodeJob, backend: Backend, *, on_output: OnOutput | None) -> CodeRun:
    """Run a job, and its tools on this loop. When this ends, nothing of it runs."""
    run = _Run(job, backend)
    try:
        return await run.listen(on_output)
    finally:
        await run.end()


class _Run:
    """A thread that follows a job, and what it tells the loop."""

    def __init__(self, job: CodeJob, backend: Backend) -> None:
        self._job, self._backend = job, backend
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[str | Asked | CodeRun | BaseException] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._unwanted = False
        self._supervision: Supervision | None = None
        self._call: asyncio.Task[None] | None = None
        threading.Thread(target=self._follow, name=backend.name, daemon=True).start()

    async def listen(self, on_output: OnOutput | None) -> CodeRun:
        """Hear what is told, until the run has come to its end."""
        while True:
            match await self._told.get():
                case str() as text:
                    if on_output is not None:
                        on_output(text)
                case Asked() as asked:
                    self._call = asyncio.create_task(self._answer(asked))
                case CodeRun() as run:
                    return run
                case error:
                    raise error

    async def end(self) -> None:
        """End what still runs, and wait for that."""
        self._unwanted = True
        if self._supervision is not None:
            self._supervision.stop()
        if self._call is not None:
            self._call.cancel()
        while not self._ended.is_set():
            with suppress(asyncio.CancelledError):  # a second one changes nothing
                await self._ended.wait()

    async def _answer(self, asked: Asked) -> None:
        try:
            call = await call_tool(asked, self._job.tools[asked.name])
        except asyncio.CancelledError:
            if self._unwanted:
                raise
            call = ToolCall(
                name=asked.name,
                arguments=asked.arguments,
                keywords=asked.keywords,
                error="RuntimeError: it was cancelled",
            )
        if self._supervision is not None:
            self._supervision.answer(call)

    def _follow(self) -> None:
        try:
            self._tell(follow(self._job, self._backend, tell=self._tell))
        except BaseException as error:  # noqa: BLE001  (raised where it is heard)
            self._tell(error)
        finally:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set)

    def _tell(self, what: str | Asked | Supervision | CodeRun | BaseException) -> None:
        if isinstance(what, Supervision):
            self._supervision = what
            if self._unwanted:
                what.stop()
            return
        try:
            self._loop.call_soon_threadsafe(self._told.put_nowait, what)
        except RuntimeError:  # the loop is closed, so nobody is left who wants it
            if self._supervision is not None:
                self._supervision.stop()
