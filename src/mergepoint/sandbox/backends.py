"""Backends that run model-generated code: their choice, Monty, and one without confinement."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from mergepoint.core.errors import SandboxMissing, install_command
from mergepoint.journal.writer import in_threads
from mergepoint.sandbox.bootstrap import WORK, error
from mergepoint.sandbox.bubblewrap import Bubblewrap
from mergepoint.sandbox.job import (
    MAX_CALLS,
    CodeJob,
    CodeRun,
    Stop,
    ToolCall,
    ToolRequest,
    call_tool,
    collect_outputs,
    work_folder,
)
from mergepoint.sandbox.process import (
    Backend,
    OnOutput,
    Output,
    Printed,
    SandboxProcess,
    start,
    supervised,
)

_FILE_NAME_OF_MONTY = "<python-input-0>"
_LIMITS: dict[str, Stop] = {"feed time limit": "cpu", "memory limit": "memory"}


@dataclass(frozen=True, slots=True)
class Monty:
    """Runs code with pydantic-monty, a subset of Python with few modules and no packages.

    It limits wall and CPU time, memory as its interpreter counts it, output, and the data written
    to the work folder. `processes` has no meaning, since there are none, and `file_count` limits
    the files that are collected; file operations and tool calls share one limit. A sleep is cut to
    one second.
    """

    @property
    def name(self) -> str:
        """Return the name that each run records."""
        return "monty"

    def probe(self) -> None:
        """Run a self-test. Raises SandboxMissing if it fails."""
        monty = _library()
        try:
            with monty.Monty(max_processes=1) as pool, pool.checkout() as session:
                found = session.feed_run("1 + 1")
        except (monty.MontyError, OSError) as failed:
            raise SandboxMissing(f"its worker does not start: {failed}") from failed
        if found != 2:
            raise SandboxMissing(f"its worker says that 1 + 1 is {found!r}")

    async def run(self, job: CodeJob, *, on_output: OnOutput | None = None) -> CodeRun:
        """Run a job. Raises SandboxMissing if pydantic-monty is not installed."""
        monty = _library()
        begun = time.monotonic()
        async with in_threads(work_folder(job)) as folder:
            monty_run = _MontyRun(job, folder, monty)
            try:
                await monty_run.listen(on_output)
            finally:
                await monty_run.end()
            made = collect_outputs(folder, job)
        return CodeRun(
            backend=self.name,
            exit_code=None if monty_run.stopped else monty_run.status,
            output=monty_run.output.text,
            stdout=monty_run.output.of("stdout"),
            stderr=monty_run.output.of("stderr"),
            stopped=monty_run.stopped,
            truncated=monty_run.output.truncated,
            seconds=time.monotonic() - begun,
            tool_calls=tuple(monty_run.calls),
            made=made.files,
            left_out=made.left_out,
        )


def _library() -> Any:
    try:
        return import_module("pydantic_monty")
    except ImportError as missing:
        raise SandboxMissing(
            f"pydantic-monty is not installed: {install_command('monty')}"
        ) from missing


class _MontyRun:
    """A worker in a thread that runs the code, and its messages to the event loop."""

    def __init__(self, job: CodeJob, folder: Path, monty: Any) -> None:
        self._job, self._folder, self._monty = job, folder, monty
        self.output = Output(job.limits.output)
        self.calls: list[ToolCall] = []
        self.status = 0
        self.stopped: Stop | None = None
        self._worker: int | None = None
        self._call: concurrent.futures.Future[ToolCall] | None = None
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()
        self._done = asyncio.ensure_future(asyncio.to_thread(self._feed))
        self._done.add_done_callback(lambda _: self._messages.put_nowait(None))

    async def listen(self, on_output: OnOutput | None) -> None:
        """Receive output until the worker is done or the time is over."""
        try:
            async with asyncio.timeout(self._job.limits.wall) as clock:
                while (text := await self._messages.get()) is not None:
                    if on_output is not None:
                        on_output(text)
        except TimeoutError:
            if not clock.expired():
                raise
            self._stop("wall")
        else:
            self._done.result()

    async def end(self) -> None:
        """End running work, and wait for its end."""
        self._stop("cancelled")
        while not self._done.done():
            with suppress(asyncio.CancelledError):  # a second one changes nothing
                await asyncio.wait([self._done])

    def _stop(self, reason: Stop) -> None:
        if self._done.done() or self.stopped is not None:
            return
        self.stopped = reason
        if self._call is not None:
            self._call.cancel()
        self._kill()

    def _kill(self) -> None:
        if self._worker is not None:
            with suppress(ProcessLookupError):
                os.kill(self._worker, getattr(signal, "SIGKILL", signal.SIGTERM))

    def _feed(self) -> None:
        monty, limits = self._monty, self._job.limits
        options = {
            "limits": {
                "max_feed_duration_secs": limits.cpu,
                "max_memory": limits.memory,
                "max_suspensions": MAX_CALLS + 4 * limits.file_count,
            },
            # A worker that sleeps reports only when it wakes up, even after its death.
            "os_policy": {"sleep_system_max": 1.0},
        }
        place = monty.MountDir(
            host_path=self._folder,
            virtual_path=WORK,
            mode="read-write",
            write_bytes_limit=limits.files,
        )
        with monty.Monty(max_processes=1) as pool, place, pool.checkout(**options) as session:
            self._worker = session.worker_pid
            # `_stop` may have come before the worker was known, and could not kill it.
            if self.stopped is not None:
                return
            try:
                session.feed_run(
                    self._job.code.encode("utf-8", "backslashreplace").decode(),
                    external_lookup={name: self._tool(name) for name in self._job.tools},
                    print_callback=self._print,
                    mount=place,
                    cwd=WORK,
                )
            except monty.MontyError as failed:
                self._failed(failed)
            # From here, its process id may belong to another process.
            self._worker = None

    def _failed(self, failed: Any) -> None:
        """Write the reason of the failure: a limit, or a traceback."""
        text = str(failed)
        crashed = isinstance(failed, self._monty.MontyCrashedError)
        if self.output.truncated:
            self.stopped = self.stopped or "output"
        for limit, reason in _LIMITS.items():
            if f"Error: {limit} exceeded" in text:
                self.stopped = self.stopped or reason
        if self.stopped is not None:
            return
        self.status = 1
        told = text if crashed else failed.display()
        self._emit(told.replace(_FILE_NAME_OF_MONTY, "code.py") + "\n", "stderr", last=True)

    def _print(self, stream: str, text: str) -> None:
        self._emit(text, "stderr" if stream == "stderr" else "stdout")
        if self.output.truncated:
            self._kill()

    def _emit(self, text: str, stream: Printed, *, last: bool = False) -> None:
        data = text.encode("utf-8", "backslashreplace")
        added = self.output.take(data, stream=stream, last=last)
        self._loop.call_soon_threadsafe(self._messages.put_nowait, added)

    def _tool(self, name: str) -> Callable[..., Any]:
        def tool(*arguments: Any, **keywords: Any) -> Any:
            if len(self.calls) >= MAX_CALLS:
                raise RuntimeError(f"at most {MAX_CALLS} calls of tools are answered")
            # Tools receive JSON data here too, as through the channel of the other backends.
            given = json.loads(json.dumps([arguments, keywords]))
            asked = ToolRequest(name, tuple(given[0]), given[1])
            coming = call_tool(asked, self._job.tools[name])
            self._call = asyncio.run_coroutine_threadsafe(coming, self._loop)
            # `_stop` may have come between the check above and the new call.
            if self.stopped is not None:
                self._call.cancel()
            call = self._call.result()
            self.calls.append(call)
            if call.error is not None:
                kind, _, message = call.error.partition(": ")
                raise error(kind, message)
            return call.result

        return tool


@dataclass(frozen=True, slots=True)
class UnsafeSubprocess:
    """Runs code in a process that NOTHING CONFINES.

    Warning: the code can read and delete your files, open connections, and leave daemons, as you
    can. Use it for code that you would run yourself, and on machines that are confined already,
    such as a disposable container. It is used only by name, and each run records its name.

    Only wall time, output and the collected files are limited; CPU, memory, processes and the size
    of files are not. Its process group is ended; processes that leave the group continue. The
    environment is not passed on, which hides it only from honest code.
    """

    @property
    def name(self) -> str:
        """Return the name that each run records."""
        return "unsafe_subprocess"

    def probe(self) -> None:
        """Raise SandboxMissing if processes inherit no descriptors, as on Windows."""
        if not hasattr(os, "killpg"):
            raise SandboxMissing(f"it needs Linux, macOS or WSL, and this is {sys.platform}")

    async def run(self, job: CodeJob, *, on_output: OnOutput | None = None) -> CodeRun:
        """Run a job without any confinement."""
        async with in_threads(work_folder(job)) as folder:
            environment = {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(folder),
                "LANG": "C.UTF-8",
            }

            def begin(job: CodeJob) -> SandboxProcess:
                return start(
                    job,
                    lambda rest: [sys.executable, *rest],
                    confined=False,
                    cwd=folder,
                    env=environment,
                )

            backend = Backend(self.name, begin, lambda _: collect_outputs(folder, job))
            return await supervised(job, backend, on_output=on_output)


SAFE = ("bubblewrap", "monty")
"""The backends that are tried without a name, in order."""

_BACKENDS: dict[str, type[Bubblewrap | Monty | UnsafeSubprocess]] = {
    "bubblewrap": Bubblewrap,
    "monty": Monty,
    "unsafe_subprocess": UnsafeSubprocess,
}
_FIXES = f"""To fix this, do one of these:
  - install bubblewrap (on Debian and Ubuntu: apt-get install bubblewrap)
  - {install_command("monty")}, a subset of Python
  - write a custom runner (see mergepoint.agent.CodeRunner); on a machine that is confined already,
    use code_runner("unsafe_subprocess"), which confines nothing"""


class CodeRunner(Protocol):
    """A backend that runs code. To add your own, write a class with a name and this method.

    `on_output` is called with pieces of the output as they arrive, on the event loop that runs the
    job. A cancelled job leaves no running process.
    """

    @property
    def name(self) -> str:
        """Return the backend's name, which each run records."""

    async def run(self, job: CodeJob, *, on_output: Callable[[str], None] | None = None) -> CodeRun:
        """Run a job until it ends, or until a limit stops it."""


def code_runner(name: str | None = None) -> CodeRunner:
    """Return the runner with a name, or the first safe one that works here.

    The names are `bubblewrap`, `monty` and `unsafe_subprocess`; the last is used only by name.

    Raises SandboxMissing if the runner (or without a name, each safe one) does not work here, with
    the reasons and fixes, and ValueError for an unknown name.
    """
    if name is not None and name not in _BACKENDS:
        raise ValueError(f"no code runner {name!r}; known runners: {', '.join(_BACKENDS)}")
    reasons = {}
    for one in (name,) if name else SAFE:
        try:
            _probed(one, os.environ.get("PATH"))
        except SandboxMissing as error:
            reasons[one] = str(error)
        else:
            return _BACKENDS[one]()
    told = "".join(f"\n  {one}: {reason}" for one, reason in reasons.items())
    raise SandboxMissing(f"no sandbox works on this machine:{told}\n{_FIXES}")


@cache
def _probed(name: str, path: str | None) -> None:
    """Run a backend's self-test once per process and search path. Raises SandboxMissing.

    The test of bubblewrap starts a process, a tenth of a second. A failed one is tried again, since
    its error says what to install.
    """
    _BACKENDS[name]().probe()
