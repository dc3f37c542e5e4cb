"""The resource usage of a namespace, measured from outside.

Limits that the kernel sets per process do not add up: twenty processes of 300 MB are each below
512. So all of them are counted, in the namespace's own /proc.
"""

from __future__ import annotations

import os
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
        return max(seen, self._reaped) + self._unseen

    def look(self, spent: Sequence[ProcessTime], now: float) -> float:
        """Add the times at a time of a monotonic clock; return the total seconds so far."""
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
        begins = (
            self._highest if max(new) > self._highest else 1
        )  # the process ids have wrapped around
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
                    pages = _proportional(process, proc)
            memory += _KIB * (pages + facts.get("VmPTE", 0))
            if process == "1":
                memory += _sockets(proc) * _held_by_a_socket()
            else:
                tasks += facts["Threads"]
            spent.append(_spent(process, proc))
            pipes |= _pipes(process, proc)
    return ResourceUsage(memory + _PIPE * len(pipes), tuple(spent), tasks, _locks(proc))


def _spent(process: str, proc: int) -> ProcessTime:
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


def _proportional(process: str, proc: int) -> int:
    parts = dict(_facts(_read(f"{process}/smaps_rollup", proc)))
    return parts.get("Pss", 0) + parts.get("SwapPss", 0)


def _sockets(proc: int) -> int:
    return max(0, _read("1/net/unix", proc).count(b"\n") - 1)


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
