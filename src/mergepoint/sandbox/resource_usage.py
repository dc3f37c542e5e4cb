"""The resource usage of a sandbox, measured from outside, in /proc and in a control group.

Limits that the kernel sets per process do not add up: twenty processes of 300 MB are each below
512 MB. So all of them are counted, in the namespace's own /proc.

CPU time is counted by cgroup v2 (admin-guide/cgroup-v2.rst of the kernel), even without the cpu
controller. The control group of a run is a folder below the group of this process, if that is
writable. Its creator locks the folder while it is in use; an unlocked one is left over.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from mergepoint.sandbox.job import CpuCounted

_KIB = 1024
_PIPE = 65_536  # maximum bytes in a pipe: the filter prevents larger ones
_LOCKS_READ = 1 << 18  # bytes of the list of locks, some thousands of them


@dataclass(frozen=True, slots=True)
class ProcessTime:
    """The CPU time of a process in seconds: its own, and that of children it has waited for."""

    process: int
    begun: bytes
    own: float
    children: float


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """The usage of a namespace's processes: bytes, and a count that includes threads.

    `locks` is the number of their locks on files.
    """

    memory: int
    spent: tuple[ProcessTime, ...]
    tasks: int
    locks: int = 0


class CpuTime(Protocol):
    """A counter of the CPU time of all processes of a run."""

    @property
    def counted_by(self) -> CpuCounted:
        """Return the method of counting that a run records."""

    def look(self, spent: Sequence[ProcessTime], now: float) -> float:
        """Add the times of processes at a time; return the total seconds so far."""


class CpuMeter:
    """Adds up the CPU time of all processes of a namespace by sampling.

    The kernel adds the time of a child to its parent only if the parent waits for it, and not if
    the parent ignores SIGCHLD. So the last known time of each process counts. Processes that begin
    and end between two samples are detected by gaps in the process ids, which are consecutive: then
    a processor counts as busy for as long as they may have lived.
    """

    def __init__(self) -> None:
        self._living: dict[tuple[int, bytes], float] = {}
        self._ended = 0.0
        self._reaped = 0.0
        self._unseen = 0.0
        self._highest = 0
        self._longest = 0.0  # seconds between two looks, since a process was new
        self._looked: float | None = None
        self._new_at = 0.0
        self._new_total = 0.0

    @property
    def counted_by(self) -> CpuCounted:
        """Return the method of counting that a run records."""
        return "supervisor"

    @property
    def total(self) -> float:
        """Return the seconds so far."""
        seen = self._ended + sum(self._living.values())
        # Two lower bounds of the same time: their sum would count children twice.
        return max(seen, self._reaped) + self._unseen

    def look(self, spent: Sequence[ProcessTime], now: float) -> float:
        """Add the times at a time of a monotonic clock; return the total seconds so far."""
        # With the start time, because a process id can be used again.
        living = {(one.process, one.begun): one.own for one in spent}
        new = [process for process, begun in living.keys() - self._living.keys()]
        self._ended += sum(own for key, own in self._living.items() if key not in living)
        self._living = living
        self._reaped = max(self._reaped, sum(one.own + one.children for one in spent))
        if self._looked is not None:
            self._longest = max(self._longest, now - self._looked)
        if new:
            self._estimate(new, now)
        self._looked = now
        return self.total

    def _estimate(self, new: Sequence[int], now: float) -> None:
        """Add an estimate for processes whose ids were skipped since the last new process."""
        # Lower ids than before: they have wrapped around.
        begins = self._highest if max(new) > self._highest else 1
        passed_over = max(new) - begins - len(new)
        if self._looked is not None and passed_over > 0:
            most = min(passed_over * self._longest, now - self._new_at)
            self._unseen += max(0.0, most - (self.total - self._new_total))
        self._highest, self._longest = max(new), 0.0
        self._new_at, self._new_total = now, self.total


def usage(proc: int, *, exact: bool = False) -> ResourceUsage:
    """Return the usage of the namespace whose /proc this descriptor is.

    Memory is resident and swapped memory, with page tables and the buffers of sockets and pipes.
    Pages that several processes share count for each of them; `exact` counts them once, and takes
    longer.
    """
    memory, tasks = 0, 0
    spent: list[ProcessTime] = []
    pipes: set[str] = set()
    for process in os.listdir(proc):
        if not process.isdigit():
            continue
        with suppress(OSError, ValueError):  # it has ended meanwhile
            facts = dict(_facts(_read(f"{process}/status", proc)))
            pages = facts.get("VmRSS", 0) + facts.get("VmSwap", 0)
            if exact:
                with suppress(PermissionError):  # then the greater number counts
                    parts = dict(_facts(_read(f"{process}/smaps_rollup", proc)))
                    pages = parts.get("Pss", 0) + parts.get("SwapPss", 0)
            memory += _KIB * (pages + facts.get("VmPTE", 0))
            if process == "1":
                sockets = max(0, _read("1/net/unix", proc).count(b"\n") - 1)
                memory += sockets * _held_by_a_socket()
            else:
                tasks += facts["Threads"]
            spent.append(_spent(process, proc))
            pipes |= _pipes(process, proc)
    return ResourceUsage(memory + _PIPE * len(pipes), tuple(spent), tasks, _locks(proc))


def _spent(process: str, proc: int) -> ProcessTime:
    # Split after the last parenthesis: the name before it can contain any character.
    fields = _read(f"{process}/stat", proc).rpartition(b")")[2].split()
    own, children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    ticks = os.sysconf("SC_CLK_TCK")
    return ProcessTime(int(process), fields[19], own / ticks, children / ticks)


def _pipes(process: str, proc: int) -> set[str]:
    """Return the open pipes of a process, if access is allowed."""
    found: set[str] = set()
    with suppress(PermissionError):
        folder = os.open(f"{process}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
        try:
            for file in os.listdir(folder):  # noqa: PTH208  (it is a descriptor)
                with suppress(FileNotFoundError):
                    found.add(os.readlink(file, dir_fd=folder))
        finally:
            os.close(folder)
    return {one for one in found if one.startswith("pipe:")}


def _locks(proc: int) -> int:
    """Return the number of file locks of the processes, as far as the list is read."""
    file = os.open("locks", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        number, left = 0, _LOCKS_READ
        while left > 0 and (part := os.read(file, left)):  # a page at a time
            number += part.count(b"\n")
            left -= len(part)
        return number
    finally:
        os.close(file)


@cache
def _held_by_a_socket() -> int:
    """Return the maximum bytes in a socket, socket(7): the filter prevents larger buffers."""
    with suppress(OSError):  # a network namespace may hide it
        return int(Path("/proc/sys/net/core/wmem_default").read_bytes())
    return 212_992


def _facts(status: bytes) -> Iterator[tuple[str, int]]:
    for line in status.splitlines():
        name, _, value = line.partition(b":")
        number = value.split()[:1]
        if number and number[0].isdigit():
            yield name.decode(), int(number[0])


def _read(name: str, proc: int) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        parts = []
        while part := os.read(file, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(file)


# Control groups, in which the kernel counts CPU time.

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
