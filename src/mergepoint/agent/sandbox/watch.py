"""Watch: what a namespace uses, looked at from outside.

Limits that the kernel sets for each process do not add up: twenty processes of 300 MB are each
below 512. So all of them are counted, in the namespace's own /proc.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of a namespace use: bytes, seconds, and a count that includes threads."""

    memory: int
    cpu: float
    tasks: int


def usage(proc: int, *, exact: bool = False) -> Usage:
    """Give what is used in the namespace whose /proc this descriptor is.

    Memory is resident and swapped, with page tables and what sockets can hold. Pages that several
    processes share count for each of them; `exact` counts them once, and takes longer.
    """
    memory, cpu, tasks = 0, 0.0, 0
    for process in os.listdir(proc):
        if not process.isdigit():
            continue
        with suppress(OSError, ValueError):  # it has ended since
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
            times = _read(f"{process}/stat", proc).rpartition(b")")[2].split()
            cpu += sum(map(int, times[11:15])) / _TICKS
    return Usage(memory, cpu, tasks)


def _proportional(process: str, proc: int) -> int:
    parts = dict(_facts(_read(f"{process}/smaps_rollup", proc)))
    return parts.get("Pss", 0) + parts.get("SwapPss", 0)


def _sockets(proc: int) -> int:
    return max(0, _read("1/net/unix", proc).count(b"\n") - 1)


@cache
def _held_by_a_socket() -> int:
    """Give the most bytes that wait in a socket, socket(7): the filter lets none ask for more."""
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
