"""Supervision: one run of code, from its start to its end, in a thread of its own.

A thread, so that the limits hold while an event loop is busy, and one that lives as long as the
run: the kernel ends a sandbox with the thread that started it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from selectors import EVENT_READ, DefaultSelector

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.code_run import CodeRun, Stop, ToolCall
from mergepoint.agent.sandbox.made_files import Made
from mergepoint.agent.sandbox.output import Output
from mergepoint.agent.sandbox.started import Started
from mergepoint.agent.sandbox.tool_line import Asked, ToolLine
from mergepoint.agent.sandbox.watch import usage

TICK = 0.01
"""Seconds between two looks at what is used."""
_AGAIN = 0.002

Collect = Callable[[Started], Made]
"""Takes what the code made, after its end."""


class Supervision:
    """Follows a started job. `follow` blocks; `stop` and `answer` are for other threads."""

    def __init__(
        self,
        job: CodeJob,
        started: Started,
        *,
        on_output: Callable[[str], None],
        on_call: Callable[[Asked], None],
    ) -> None:
        self._limits = job.limits
        self._started = started
        self._on_output, self._on_call = on_output, on_call
        self._output = Output(job.limits.output)
        self._line = ToolLine(started.line, job.tools)
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)  # noqa: FBT003  (it takes no keyword)
        self._answers: list[ToolCall] = []
        self._unwanted = False
        self._cpu = 0.0
        self._room = 2 * len(job.files) + job.limits.file_count

    def stop(self) -> None:
        """End the run, and all that runs in it."""
        self._unwanted = True
        self._rouse()

    def answer(self, call: ToolCall) -> None:
        """Tell the code what came of the call that it asked for."""
        self._answers.append(call)
        self._rouse()

    def follow(self, backend: str, *, begun: float, collect: Collect) -> CodeRun:
        """Follow the run to its end. `begun` is when it began, on the monotonic clock."""
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
            stopped=stopped,
            truncated=self._output.truncated,
            seconds=seconds,
            tool_calls=tuple(self._line.calls),
            made=made.files,
            left_out=made.left_out,
        )

    def _until_stopped(self, deadline: float) -> Stop | None:
        next_look = 0.0
        os.set_blocking(self._started.output.fileno(), False)
        with DefaultSelector() as waiting, _end_of(self._started.process.pid) as end:
            waiting.register(self._woken, EVENT_READ)
            waiting.register(self._started.output, EVENT_READ)
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

    def _wait(self, waiting: DefaultSelector) -> None:
        """Move what can be moved; no longer than until the next look."""
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
            elif key.fileobj is self._started.output:
                if not self._read():
                    waiting.unregister(self._started.output)
            elif key.data is line and (call := line.move()):
                self._on_call(call)

    def _read(self) -> bool:
        """Take what there is of the output. False at its end."""
        try:
            data = os.read(self._started.output.fileno(), 65536)
        except BlockingIOError:
            return True
        self._say(data, last=not data)
        return bool(data)

    def _drain(self) -> None:
        """Take what is left in the pipe, of processes that are gone."""
        data = b""
        with suppress(BlockingIOError):
            while not self._output.truncated and (
                data := os.read(self._started.output.fileno(), 65536)
            ):
                self._say(data)
        self._say(b"", last=True)

    def _say(self, data: bytes, *, last: bool = False) -> None:
        if text := self._output.take(data, last=last):
            self._on_output(text)

    def _look(self) -> Stop | None:
        """Say which limit is passed by all processes together."""
        if not self._started.folders:
            return None
        proc, *kept = self._started.folders
        used, limits = usage(proc), self._limits
        if used.memory > limits.memory:
            time.sleep(_AGAIN)  # a child counts twice until it has its own program
            if usage(proc, exact=True).memory > limits.memory:
                return "memory"
        self._cpu = max(self._cpu, used.cpu)
        if used.tasks > limits.processes:
            return "processes"
        if any(_entries(folder) > self._room for folder in kept):
            return "files"
        return "cpu" if self._cpu > limits.cpu else None

    def _rouse(self) -> None:
        with suppress(OSError):  # it is awake, or has ended
            self._wake.send(b".")


def _entries(folder: int) -> int:
    room = os.fstatvfs(folder)
    return room.f_files - room.f_ffree


@contextmanager
def _end_of(process: int) -> Iterator[int | None]:
    """Give what becomes readable when a process ends, where the system has that."""
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    end = os.pidfd_open(process)
    try:
        yield end
    finally:
        os.close(end)
