"""A control group for one run, in which the kernel counts CPU time.

It uses cgroup v2 (admin-guide/cgroup-v2.rst of the kernel), which counts even without the cpu
controller. The group is a folder below the group of this process, if that is writable. Its creator
locks the folder while it is in use; an unlocked one is left over.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mergepoint.sandbox.job import CpuCounted
from mergepoint.sandbox.resource_usage import ProcessTime

_NAME = re.compile(r"mergepoint-sandbox-[0-9]+-[0-9a-f]{16}")
_TRIES = 5  # another process may remove a group before it is locked
_REMOVAL, _AGAIN = 1.0, 0.005  # seconds for the last process to leave, and a pause
_SHELL, _ENV = "/bin/sh", "/usr/bin/env"
_JOIN = f'{{ echo 0 >"$0"; }} 2>/dev/null; exec {_ENV} -i "$@"'


class Cgroup:
    """A group with the processes of one run, and a lock that marks it as used.

    `folder` is the descriptor with the lock.
    """

    def __init__(self, path: Path, folder: int) -> None:
        self.path, self._folder = path, folder
        self._before = 0.0

    @property
    def counted_by(self) -> CpuCounted:
        """Return the method of counting that a run records."""
        return "cgroup"

    def joined(self, command: Sequence[str]) -> list[str]:
        """Return a command that joins the group, then runs `command` without an environment.

        If it cannot join, it runs `command` anyway; `begin` detects that. The shell sets variables
        of its own (PWD), which would be readable in /proc/1/environ: hence `env -i`.
        """
        if "=" in command[0]:  # `env` would parse it as a variable
            return list(command)
        return [_SHELL, "-c", _JOIN, str(self.path / "cgroup.procs"), *command]

    def begin(self) -> bool:
        """Start counting, and return whether the processes are in the group.

        The time before belongs to bwrap and the interpreter's start.
        """
        with suppress(OSError):
            self._before = self._usage()
        return self._before > 0

    def look(self, spent: Sequence[ProcessTime], now: float) -> float:
        """Return the seconds that all processes used since the code began."""
        return self._usage() - self._before

    def kill(self) -> None:
        """End every process in the group, on kernels that have cgroup.kill (since 5.14)."""
        with suppress(OSError):
            (self.path / "cgroup.kill").write_bytes(b"1")

    def remove(self) -> None:
        """End all processes in the group, and remove it. If that fails, the next run does it."""
        self.kill()
        end = time.monotonic() + _REMOVAL
        while not _removed(self.path) and time.monotonic() < end:
            time.sleep(_AGAIN)
        os.close(self._folder)

    def _usage(self) -> float:
        facts = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(facts["usage_usec"]) / 1e6


def new_cgroup(proc: Path = Path("/proc/self")) -> Cgroup | None:
    """Create a group for one run, or return None if that is not possible.

    Groups that killed processes left behind are removed. `proc` is the /proc folder of this
    process.
    """
    with suppress(OSError):
        parent = own_group(proc)
        if parent is None or not all(os.access(one, os.X_OK) for one in (_SHELL, _ENV)):
            return None
        for name in filter(_NAME.fullmatch, os.listdir(parent)):  # noqa: PTH208  (names are enough)
            if leftover := _locked(parent / name):
                leftover.remove()
        for _ in range(_TRIES):
            path = parent / f"mergepoint-sandbox-{os.getpid()}-{secrets.token_hex(8)}"
            path.mkdir()
            if made := _locked(path):
                return made
            _removed(path)
    return None


def own_group(proc: Path) -> Path | None:
    """Return the folder of a process's group if its cgroup2 is mounted, or None."""
    groups = (proc / "cgroup").read_bytes().splitlines()
    own = next((Path(os.fsdecode(line[3:])) for line in groups if line.startswith(b"0::")), None)
    if own is None or ".." in own.parts:  # it is outside the visible namespace
        return None
    for line in (proc / "mountinfo").read_bytes().splitlines():
        place, _, kind = line.partition(b" - ")
        if kind.startswith(b"cgroup2 "):
            root, mounted = (Path(_unescaped(one)) for one in place.split()[3:5])
            if own.is_relative_to(root):
                return mounted / own.relative_to(root)
    return None


def _unescaped(path: bytes) -> str:
    """Return a path of mountinfo, in which spaces and similar characters are octal numbers."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), path))


def _locked(path: Path) -> Cgroup | None:
    """Return the group of a folder after locking it; None if it is locked or gone."""
    import fcntl  # POSIX only, and modules are imported everywhere

    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.stat()  # the previous owner may have removed it
        except OSError:
            os.close(folder)
        else:
            return Cgroup(path, folder)
    return None


def _removed(path: Path) -> bool:
    """Remove a group without processes, and return whether it is gone."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
