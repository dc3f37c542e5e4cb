"""The process that runs the code, its output, and the thread that supervises it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import math
import os
import platform
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Any, Literal

from mergepoint.core.errors import SandboxMissing
from mergepoint.core.text import shown
from mergepoint.sandbox import bootstrap
from mergepoint.sandbox.job import (
    CodeJob,
    CodeRun,
    CollectedFiles,
    Stop,
    ToolCall,
    ToolChannel,
    ToolRequest,
    call_tool,
)
from mergepoint.sandbox.resource_usage import Cgroup, CpuMeter, CpuTime, usage

Printed = Literal["stdout", "stderr"]


class Output:
    """Decodes bytes of stdout and stderr as they arrive, up to a maximum size.

    Invalid UTF-8 becomes U+FFFD, line ends become newlines, and invisible characters are escaped.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._texts: dict[Printed, _Text] = {"stdout": _Text(), "stderr": _Text()}
        self._kept: list[str] = []
        self.truncated = False

    @property
    def text(self) -> str:
        """Return all text so far, in the order of arrival."""
        return "".join(self._kept)

    def of(self, stream: Printed) -> str:
        """Return the text of one of the two streams so far."""
        return "".join(self._texts[stream].kept)

    def take(self, data: bytes, *, stream: Printed = "stdout", last: bool = False) -> str:
        """Accept bytes, and return the text that they add."""
        self.truncated |= len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        added = self._texts[stream].take(data, last=last)
        self._kept.append(added)
        return added


class _Text:
    """The text of one stream."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._carriage = False

    def take(self, data: bytes, *, last: bool) -> str:
        text = self._decoder.decode(data, last)
        # "\r\n" can be split between two reads: the "\r" has become a newline already.
        joins = self._carriage and text.startswith("\n")
        if text:  # an incomplete character adds no text yet
            self._carriage = text.endswith("\r")
        text = text[1:] if joins else text
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        added = "\n".join(shown(line, keep="\t") for line in lines)
        self.kept.append(added)
        return added


STARTING = 10.0
"""Seconds for a process to become ready, and to be gone after its end."""

_READY = b"ready\n"


@dataclass(slots=True)
class SandboxProcess:
    """A process that has the code, with our end of its tool channel.

    `folders` are descriptors of its /proc, work folder and temporary folder, and `init` one of the
    process whose end ends all others. An unconfined process has neither. `cpu` counts the CPU time
    of all processes, which are in `group` if there is one.
    """

    process: subprocess.Popen[bytes]
    line: socket.socket
    opened: contextlib.ExitStack
    folders: Sequence[int] = ()
    init: int | None = None
    cpu: CpuTime = field(default_factory=CpuMeter)
    group: Cgroup | None = None

    @property
    def pipes(self) -> Mapping[Printed, IO[bytes]]:
        """Return the pipes of its output."""
        return _pipes(self.process)

    @property
    def ended(self) -> bool:
        """Return whether it has ended. Its id stays reserved, so `kill` hits no other process."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, how) is not None

    def kill(self) -> int:
        """End all its processes, wait for that, and return the status as a shell would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.init is not None:
                # When the first process of a PID namespace ends, the kernel kills all others.
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.group is not None:
            self.group.kill()
        status = self.process.wait(STARTING)
        # bwrap can end before the namespace does; files must not be collected until then.
        if self.init is not None:
            waiting = select.poll()
            waiting.register(self.init, select.POLLIN)
            if not waiting.poll(STARTING * 1000):
                raise SandboxMissing("a sandbox does not end; look for its bwrap process")
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """Close every descriptor."""
        self.opened.close()


Command = Callable[[Sequence[str]], Sequence[str]]
"""Returns the whole command for the arguments of the interpreter."""


def start(
    job: CodeJob,
    command: Command,
    *,
    confined: bool,
    keep: Sequence[int] = (),
    info: int | None = None,
    group: Cgroup | None = None,
    **options: Any,
) -> SandboxProcess:
    """Start a process for a job and wait until it is about to run the code.

    `keep` are descriptors that it inherits, `info` one that reports its init. All its processes are
    in `group`, which is removed at the end, here or by `SandboxProcess.close`.

    Raises SandboxMissing, with its output, if it does not get that far.
    """
    with contextlib.ExitStack() as opened:
        if group is not None:
            opened.callback(group.remove)
        ours, theirs = socket.socketpair()
        opened.enter_context(ours)
        # Our copy of their end is closed, or the channel would stay open when the process ends.
        with theirs, _write_job(job) as text:
            kept = (text.fileno(), theirs.fileno())
            how = "confined" if confined else "free"
            python = ["-I", "-B", "-u", "-c", _program(), *map(str, kept), how]
            words = command(python) if group is None else group.joined(command(python))
            process = _process(words, (*kept, *keep), **options)
        started = SandboxProcess(opened.enter_context(process), ours, opened, group=group)
        try:
            _watch(started, folders=len(bootstrap.FOLDERS) if confined else 0, info=info)
        except (OSError, ValueError, LookupError) as error:
            process.kill()
            raise SandboxMissing(f"it does not start: {_startup_output(process)}") from error
        # Only now does the caller own the descriptors; a failure above closes them here.
        started.opened = opened.pop_all()
    return started


def _watch(started: SandboxProcess, *, folders: int, info: int | None) -> None:
    """Wait until a process is about to run the code, and receive its descriptors."""
    started.folders = _ready(started.line, count=folders)
    for folder in started.folders:
        started.opened.callback(os.close, folder)
    if started.group is not None and started.group.begin():
        started.cpu = started.group
    if info is not None:
        # bwrap has reported the first process of the namespace by now.
        os.set_blocking(info, False)
        started.init = os.pidfd_open(int(json.loads(os.read(info, 4096))["child-pid"]))
        started.opened.callback(os.close, started.init)


def _process(
    command: Sequence[str], kept: tuple[int, ...], **options: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (the interpreter, on our own program)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=kept,
        start_new_session=True,
        **options,
    )


def _write_job(job: CodeJob) -> IO[bytes]:
    """Write the job for `bootstrap`. Lone surrogates are escaped."""
    limits = job.limits
    # Eight more than the supervisor allows, so that its own limit applies first.
    tasks = limits.processes + 8 if _tasks_count_in_a_namespace() else 0
    numbers = (math.ceil(limits.cpu) + 1, limits.memory, tasks, limits.files)
    text = f"{' '.join(map(str, numbers))}\n{' '.join(job.tools)}\n{job.code}"
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    file.write(text.encode("utf-8", "backslashreplace"))
    file.flush()
    return file


@cache
def _program() -> str:
    return Path(bootstrap.__file__).read_text(encoding="utf-8")


@cache
def _tasks_count_in_a_namespace() -> bool:
    """Return whether RLIMIT_NPROC counts per user namespace: since Linux 5.14."""
    numbers = re.findall(r"\d+", platform.release())[:2]
    return [int(one) for one in numbers] >= [5, 14]


def _ready(line: socket.socket, count: int) -> tuple[int, ...]:
    line.settimeout(STARTING)
    # Not a byte more: the first call of a tool may follow immediately.
    said, folders, _, _ = socket.recv_fds(line, len(_READY), count)
    if said != _READY or len(folders) != count:
        for folder in folders:
            os.close(folder)
        raise ConnectionError("it is not ready")
    return tuple(folders)


def _startup_output(process: subprocess.Popen[bytes]) -> str:
    process.wait(STARTING)
    pipes = _pipes(process).values()
    said = " ".join(pipe.read(2000).decode("utf-8", "replace") for pipe in pipes)
    return shown(" ".join(said.split())) or f"it ended with {process.returncode} without any output"


def _pipes(process: subprocess.Popen[bytes]) -> Mapping[Printed, IO[bytes]]:
    assert process.stdout is not None  # noqa: S101  (it is started with pipes)
    assert process.stderr is not None  # noqa: S101
    return {"stdout": process.stdout, "stderr": process.stderr}


# Supervision: a thread that follows one run of code and enforces its limits.

# Supervision needs a thread, so that the limits are enforced while an event loop is busy. The
# thread lives as long as the run: the kernel ends a sandbox with the thread that started it.

TICK = 0.01
"""Seconds between two measurements of the usage."""
_RECHECK = 0.002
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
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)  # noqa: FBT003  (it takes no keyword)
        self._answers: list[ToolCall] = []
        self._stop_requested = False
        self._room = 2 * len(job.files) + job.limits.file_count

    def stop(self) -> None:
        """End the run and all its processes."""
        self._stop_requested = True
        self._notify()

    def answer(self, call: ToolCall) -> None:
        """Send the result of a tool call to the code."""
        self._answers.append(call)
        self._notify()

    def follow(self, backend: str, *, begun: float, collect: Collect) -> CodeRun:
        """Follow the run to its end. `begun` is its start, on the monotonic clock."""
        started = self._started
        try:
            stopped = self._until_stopped(begun + self._limits.wall)
        finally:
            # Kill before reading the rest: a surviving child could keep filling a pipe.
            status = started.kill()
            self._wake_receiver.close()
            self._wake_sender.close()
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
        next_check = 0.0
        with DefaultSelector() as waiting, _end_descriptor(self._started.process.pid) as end:
            waiting.register(self._wake_receiver, EVENT_READ)
            for stream, pipe in self._started.pipes.items():
                os.set_blocking(pipe.fileno(), False)
                waiting.register(pipe, EVENT_READ, stream)
            if end is not None:
                waiting.register(end, EVENT_READ)
            while True:
                self._wait(waiting)
                now = time.monotonic()
                if self._stop_requested:
                    return "cancelled"
                if self._output.truncated:
                    return "output"
                # Before the wall limit: a run that ended in time was not stopped.
                if self._started.ended:
                    return None
                if now >= deadline:
                    return "wall"
                if now >= next_check:
                    if stop := self._exceeded_limit():
                        return stop
                    spent = time.monotonic() - now
                    next_check = now + max(TICK, 5 * spent)  # at most a sixth of a processor

    def _wait(self, waiting: DefaultSelector) -> None:
        """Transfer data, at most until the next measurement."""
        line, events = self._line, self._line.events
        registered = [key for key in waiting.get_map().values() if key.data is line]
        for key in registered:
            waiting.unregister(key.fd)
        # The events change with each message, and a selector refuses an empty set.
        if events:
            waiting.register(line.end, events, line)
        for key, _ in waiting.select(TICK):
            if key.fileobj is self._wake_receiver:
                # Drain before the answers are read: one that arrives in between wakes the thread
                # again.
                self._wake_receiver.recv(4096)
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
        self._emit(data, stream, last=not data)
        return bool(data)

    def _drain(self) -> None:
        """Read the rest of the pipes after the processes have ended."""
        for stream, pipe in self._started.pipes.items():
            data = b""
            with suppress(BlockingIOError):
                while not self._output.truncated and (data := os.read(pipe.fileno(), 65536)):
                    self._emit(data, stream)
            self._emit(b"", stream, last=True)

    def _emit(self, data: bytes, stream: Printed, *, last: bool = False) -> None:
        if text := self._output.take(data, stream=stream, last=last):
            self._on_output(text)

    def _exceeded_limit(self) -> Stop | None:
        """Return the limit that all processes together exceed, or None."""
        if not self._started.folders:
            return None
        proc, *kept = self._started.folders
        used, limits = usage(proc), self._limits
        if used.memory > limits.memory:
            time.sleep(_RECHECK)  # a child counts twice until it executes its own program
            if usage(proc, exact=True).memory > limits.memory:
                return "memory"
        cpu = self._started.cpu.look(used.spent, time.monotonic())
        if used.tasks > limits.processes:
            return "processes"
        if used.locks > LOCKS or any(_inodes(folder) > self._room for folder in kept):
            return "files"
        return "cpu" if cpu > limits.cpu else None

    def _notify(self) -> None:
        with suppress(OSError):  # it is awake, or has ended
            self._wake_sender.send(b".")


def _inodes(folder: int) -> int:
    room = os.fstatvfs(folder)
    return room.f_files - room.f_ffree


@contextmanager
def _end_descriptor(process: int) -> Iterator[int | None]:
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
        self._messages: asyncio.Queue[str | ToolRequest | CodeRun | BaseException] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._stop_requested = False
        self._supervision: Supervision | None = None
        self._call: asyncio.Task[None] | None = None
        threading.Thread(target=self._follow, name=backend.name, daemon=True).start()

    async def listen(self, on_output: OnOutput | None) -> CodeRun:
        """Receive messages until the run has ended."""
        while True:
            match await self._messages.get():
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
        self._stop_requested = True
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
            if self._stop_requested:
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
            # `end` can come before the thread has started its process.
            if self._stop_requested:
                what.stop()
            return
        try:
            self._loop.call_soon_threadsafe(self._messages.put_nowait, what)
        except RuntimeError:  # the loop is closed, so there is no receiver
            if self._supervision is not None:
                self._supervision.stop()
