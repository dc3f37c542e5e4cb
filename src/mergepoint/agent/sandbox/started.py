"""Started: a process that is about to run the code, and what it is held by."""

from __future__ import annotations

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.sandbox import inside
from mergepoint.core.errors import SandboxMissing
from mergepoint.report.lettering import shown

STARTING = 10.0
"""Seconds within which a process has to be ready, and after its end to be gone."""

_READY = b"ready\n"


@dataclass(slots=True)
class Started:
    """A process that has the code, with our end of its line.

    `folders` are descriptors of its /proc, work folder and temporary folder, and `init` one of the
    process whose end is the end of all. What nothing confines has neither.
    """

    process: subprocess.Popen[bytes]
    line: socket.socket
    opened: contextlib.ExitStack
    folders: Sequence[int] = ()
    init: int | None = None

    @property
    def output(self) -> IO[bytes]:
        """Give what it prints on."""
        return _output(self.process)

    @property
    def ended(self) -> bool:
        """Whether it has ended. Its number stays taken, so that `kill` meets nobody else."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, how) is not None

    def kill(self) -> int:
        """End all that runs, and wait until it has ended. Gives the status, as a shell would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.init is not None:
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait(STARTING)
        if self.init is not None:
            waiting = select.poll()
            waiting.register(self.init, select.POLLIN)
            if not waiting.poll(STARTING * 1000):
                raise SandboxMissing("a sandbox does not end; look for its bwrap process")
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """Give back every descriptor."""
        self.opened.close()


Command = Callable[[Sequence[str]], Sequence[str]]
"""Gives the whole command for the arguments of the interpreter."""


def start(
    job: CodeJob,
    command: Command,
    *,
    confined: bool,
    keep: Sequence[int] = (),
    info: int | None = None,
    **options: Any,
) -> Started:
    """Start a process for a job and wait until it is about to run the code.

    `keep` are descriptors that it inherits, `info` one on which we hear of its init.

    Raises SandboxMissing where it does not come so far, with what it said.
    """
    with contextlib.ExitStack() as opened:
        ours, theirs = socket.socketpair()
        opened.enter_context(ours)
        with theirs, _written(job) as text:
            kept = (text.fileno(), theirs.fileno())
            how = "confined" if confined else "free"
            python = ["-I", "-B", "-u", "-c", _program(), *map(str, kept), how]
            process = _process(command(python), (*kept, *keep), **options)
        started = Started(opened.enter_context(process), ours, opened)
        try:
            started.folders = _ready(ours, count=len(inside.FOLDERS) if confined else 0)
            for folder in started.folders:
                opened.callback(os.close, folder)
            if info is not None:
                started.init = os.pidfd_open(_init(info))
                opened.callback(os.close, started.init)
        except (OSError, ValueError, LookupError) as error:
            process.kill()
            raise SandboxMissing(f"it does not start: {_said(process)}") from error
        started.opened = opened.pop_all()
    return started


def _process(
    command: Sequence[str], kept: tuple[int, ...], **options: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (the interpreter, on our own program)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=kept,
        start_new_session=True,
        **options,
    )


def _written(job: CodeJob) -> IO[bytes]:
    """Write the job as `inside` reads it. Halves of surrogate pairs become their escapes."""
    limits = job.limits
    tasks = limits.processes + 8 if _tasks_count_in_a_namespace() else 0  # the watch comes first
    numbers = (math.ceil(limits.cpu) + 1, limits.memory, tasks, limits.files)
    text = f"{' '.join(map(str, numbers))}\n{' '.join(job.tools)}\n{job.code}"
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    file.write(text.encode("utf-8", "backslashreplace"))
    file.flush()
    return file


@cache
def _program() -> str:
    return Path(inside.__file__).read_text(encoding="utf-8")


@cache
def _tasks_count_in_a_namespace() -> bool:
    """Say whether RLIMIT_NPROC counts within a user namespace: since Linux 5.14."""
    numbers = re.findall(r"\d+", platform.release())[:2]
    return [int(one) for one in numbers] >= [5, 14]


def _ready(line: socket.socket, count: int) -> tuple[int, ...]:
    line.settimeout(STARTING)
    # No byte more: the first call of a tool may be right behind it.
    said, folders, _, _ = socket.recv_fds(line, len(_READY), count)
    if said != _READY or len(folders) != count:
        for folder in folders:
            os.close(folder)
        raise ConnectionError("it is not ready")
    return tuple(folders)


def _init(info: int) -> int:
    """Give the number of the namespace's first process, which bwrap has told by now."""
    os.set_blocking(info, False)
    return int(json.loads(os.read(info, 4096))["child-pid"])


def _said(process: subprocess.Popen[bytes]) -> str:
    process.wait(STARTING)
    said = _output(process).read(2000).decode("utf-8", "replace")
    return shown(" ".join(said.split())) or f"it ended with {process.returncode}, without a word"


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None  # noqa: S101  (it is started with a pipe)
    return process.stdout
