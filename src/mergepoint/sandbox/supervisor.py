"""The supervisor: a thread that follows one run of code and enforces its limits."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector

from mergepoint.sandbox.job import CodeJob, CodeRun, Stop, ToolCall
from mergepoint.sandbox.process import Output, Printed, SandboxProcess
from mergepoint.sandbox.resource_usage import usage
from mergepoint.sandbox.tool_channel import ToolChannel, ToolRequest, call_tool
from mergepoint.sandbox.workdir import CollectedFiles

# Supervision needs a thread, so that the limits are enforced while an event loop is busy. The
# thread lives as long as the run: the kernel ends a sandbox with the thread that started it.


TICK = 0.01
"""Seconds between two measurements of the usage."""
_AGAIN = 0.002
LOCKS = 1_000
"""The maximum of file locks of all processes. Each takes kernel memory that is not counted."""

Collect = Callable[[SandboxProcess], CollectedFiles]
"""Collects the files of the code after its end."""


class Supervision:
    """Follows a started job. `follow` blocks; `stop` and `answer` are for other threads."""

    def __init__(
        self,
        job: CodeJob,
        started: SandboxProcess,
        *,
        on_output: Callable[[str], None],
        on_call: Callable[[ToolRequest], None],
    ) -> None:
        self._limits = job.limits
        self._started = started
        self._on_output, self._on_call = on_output, on_call
        self._output = Output(job.limits.output)
        self._line = ToolChannel(started.line, job.tools)
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)  # noqa: FBT003  (it takes no keyword)
        self._answers: list[ToolCall] = []
        self._unwanted = False
        self._room = 2 * len(job.files) + job.limits.file_count

    def stop(self) -> None:
        """End the run and all its processes."""
        self._unwanted = True
        self._rouse()

    def answer(self, call: ToolCall) -> None:
        """Send the result of a tool call to the code."""
        self._answers.append(call)
        self._rouse()

    def follow(self, backend: str, *, begun: float, collect: Collect) -> CodeRun:
        """Follow the run to its end. `begun` is its start, on the monotonic clock."""
        started = self._started
        try:
            stopped = self._until_stopped(begun + self._limits.wall)
        finally:
            status = started.kill()
            self._woken.close()
            self._wake.close()
        seconds = time.monotonic() - begun
        self._drain()
        made = collect(started)
        if stopped is None and self._output.truncated:
            stopped = "output"
        return CodeRun(
            backend=backend,
            exit_code=None if stopped else status,
            output=self._output.text,
            stdout=self._output.of("stdout"),
            stderr=self._output.of("stderr"),
            stopped=stopped,
            truncated=self._output.truncated,
            seconds=seconds,
            tool_calls=tuple(self._line.calls),
            made=made.files,
            left_out=made.left_out,
            cpu_counted=started.cpu.counted_by if started.folders else None,
        )

    def _until_stopped(self, deadline: float) -> Stop | None:
        next_look = 0.0
        with DefaultSelector() as waiting, _end_of(self._started.process.pid) as end:
            waiting.register(self._woken, EVENT_READ)
            self._hear(waiting)
            if end is not None:
                waiting.register(end, EVENT_READ)
            while True:
                self._wait(waiting)
                now = time.monotonic()
                if self._unwanted:
                    return "cancelled"
                if self._output.truncated:
                    return "output"
                if self._started.ended:
                    return None
                if now >= deadline:
                    return "wall"
                if now >= next_look:
                    if stop := self._look():
                        return stop
                    spent = time.monotonic() - now
                    next_look = now + max(TICK, 5 * spent)  # at most a sixth of a processor

    def _hear(self, waiting: DefaultSelector) -> None:
        for stream, pipe in self._started.pipes.items():
            os.set_blocking(pipe.fileno(), False)
            waiting.register(pipe, EVENT_READ, stream)

    def _wait(self, waiting: DefaultSelector) -> None:
        """Transfer data, at most until the next measurement."""
        line, events = self._line, self._line.events
        registered = [key for key in waiting.get_map().values() if key.data is line]
        for key in registered:
            waiting.unregister(key.fd)
        if events:
            waiting.register(line.end, events, line)
        for key, _ in waiting.select(TICK):
            if key.fileobj is self._woken:
                self._woken.recv(4096)
                while self._answers:
                    line.answer(self._answers.pop(0))
            elif key.data in self._started.pipes:
                if not self._read(key.data):
                    waiting.unregister(key.fileobj)
            elif key.data is line and (call := line.move()):
                self._on_call(call)

    def _read(self, stream: Printed) -> bool:
        """Read available data of a stream, and return False at its end."""
        try:
            data = os.read(self._started.pipes[stream].fileno(), 65536)
        except BlockingIOError:
            return True
        self._say(data, stream, last=not data)
        return bool(data)

    def _drain(self) -> None:
        """Read the rest of the pipes after the processes have ended."""
        for stream, pipe in self._started.pipes.items():
            data = b""
            with suppress(BlockingIOError):
                while not self._output.truncated and (data := os.read(pipe.fileno(), 65536)):
                    self._say(data, stream)
            self._say(b"", stream, last=True)

    def _say(self, data: bytes, stream: Printed, *, last: bool = False) -> None:
        if text := self._output.take(data, stream=stream, last=last):
            self._on_output(text)

    def _look(self) -> Stop | None:
        """Return the limit that all processes together exceed, or None."""
        if not self._started.folders:
            return None
        proc, *kept = self._started.folders
        used, limits = usage(proc), self._limits
        if used.memory > limits.memory:
            time.sleep(_AGAIN)  # a child counts twice until it executes its own program
            if usage(proc, exact=True).memory > limits.memory:
                return "memory"
        cpu = self._started.cpu.look(used.spent, time.monotonic())
        if used.tasks > limits.processes:
            return "processes"
        if used.locks > LOCKS or any(_entries(folder) > self._room for folder in kept):
            return "files"
        return "cpu" if cpu > limits.cpu else None

    def _rouse(self) -> None:
        with suppress(OSError):  # it is awake, or has ended
            self._wake.send(b".")


def _entries(folder: int) -> int:
    room = os.fstatvfs(folder)
    return room.f_files - room.f_ffree


@contextmanager
def _end_of(process: int) -> Iterator[int | None]:
    """Yield a descriptor that becomes readable when a process ends, or None."""
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    end = os.pidfd_open(process)
    try:
        yield end
    finally:
        os.close(end)


OnOutput = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Backend:
    """The functions of a backend that start a job's process and collect its files."""

    name: str
    start: Callable[[CodeJob], SandboxProcess]
    collect: Collect


def follow(
    job: CodeJob, backend: Backend, *, tell: Callable[[str | ToolRequest | Supervision], None]
) -> CodeRun:
    """Run a job in this thread. `tell` receives its supervision, its output and its tool calls."""
    begun = time.monotonic()
    started = backend.start(job)
    try:
        supervision = Supervision(job, started, on_output=tell, on_call=tell)
        tell(supervision)
        return supervision.follow(backend.name, begun=begun, collect=backend.collect)
    finally:
        started.close()


async def supervised(job: CodeJob, backend: Backend, *, on_output: OnOutput | None) -> CodeRun:
    """Run a job, with its tools on this loop. When it returns, none of its processes runs."""
    run = _Run(job, backend)
    try:
        return await run.listen(on_output)
    finally:
        await run.end()


class _Run:
    """A thread that follows a job, and its messages to the event loop."""

    def __init__(self, job: CodeJob, backend: Backend) -> None:
        self._job, self._backend = job, backend
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[str | ToolRequest | CodeRun | BaseException] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._unwanted = False
        self._supervision: Supervision | None = None
        self._call: asyncio.Task[None] | None = None
        threading.Thread(target=self._follow, name=backend.name, daemon=True).start()

    async def listen(self, on_output: OnOutput | None) -> CodeRun:
        """Receive messages until the run has ended."""
        while True:
            match await self._told.get():
                case str() as text:
                    if on_output is not None:
                        on_output(text)
                case ToolRequest() as asked:
                    self._call = asyncio.create_task(self._answer(asked))
                case CodeRun() as run:
                    return run
                case error:
                    raise error

    async def end(self) -> None:
        """End running work, and wait for its end."""
        self._unwanted = True
        if self._supervision is not None:
            self._supervision.stop()
        if self._call is not None:
            self._call.cancel()
        while not self._ended.is_set():
            with suppress(asyncio.CancelledError):  # a second one changes nothing
                await self._ended.wait()

    async def _answer(self, asked: ToolRequest) -> None:
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
        except BaseException as error:  # noqa: BLE001  (raised by the receiver)
            self._tell(error)
        finally:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set)

    def _tell(self, what: str | ToolRequest | Supervision | CodeRun | BaseException) -> None:
        if isinstance(what, Supervision):
            self._supervision = what
            if self._unwanted:
                what.stop()
            return
        try:
            self._loop.call_soon_threadsafe(self._told.put_nowait, what)
        except RuntimeError:  # the loop is closed, so there is no receiver
            if self._supervision is not None:
                self._supervision.stop()
