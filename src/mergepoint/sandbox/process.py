"""The process that runs the code, and its output."""

from __future__ import annotations

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from mergepoint.core.errors import SandboxMissing
from mergepoint.report.text_layout import shown
from mergepoint.sandbox import bootstrap
from mergepoint.sandbox.cgroup import Cgroup
from mergepoint.sandbox.job import CodeJob
from mergepoint.sandbox.resource_usage import CpuMeter, CpuTime

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
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.group is not None:
            self.group.kill()
        status = self.process.wait(STARTING)
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
        with theirs, _written(job) as text:
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
            raise SandboxMissing(f"it does not start: {_said(process)}") from error
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
        started.init = os.pidfd_open(_init(info))
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


def _written(job: CodeJob) -> IO[bytes]:
    """Write the job for `bootstrap`. Lone surrogates are escaped."""
    limits = job.limits
    tasks = (
        limits.processes + 8 if _tasks_count_in_a_namespace() else 0
    )  # the supervisor's own limit applies first
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


def _init(info: int) -> int:
    """Return the process id of the namespace's first process, which bwrap has reported by now."""
    os.set_blocking(info, False)
    return int(json.loads(os.read(info, 4096))["child-pid"])


def _said(process: subprocess.Popen[bytes]) -> str:
    process.wait(STARTING)
    pipes = _pipes(process).values()
    said = " ".join(pipe.read(2000).decode("utf-8", "replace") for pipe in pipes)
    return shown(" ".join(said.split())) or f"it ended with {process.returncode}, without a word"


def _pipes(process: subprocess.Popen[bytes]) -> Mapping[Printed, IO[bytes]]:
    assert process.stdout is not None  # noqa: S101  (it is started with pipes)
    assert process.stderr is not None  # noqa: S101
    return {"stdout": process.stdout, "stderr": process.stderr}
