"""Leases: which process may write a run in a database, and how another one takes it over.

A run has a lease while it is written: a row that names the worker, which is the writing process,
and a fencing token. Taking a run over changes the token, and every write to PostgreSQL checks it.
So a worker that was believed dead, as after a pause, writes nothing once another one took over.

In PostgreSQL a worker has a row with the time at which its leases run out, by the server's clock. A
thread renews it. In SQLite a worker has a lock file next to the database, which its death unlocks.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.run_tables import RUN_TABLES
from mergepoint.journal.sql_database import Database
from mergepoint.journal.sql_engines import sql

LEASE_SECONDS = 30.0
"""Seconds after the last heartbeat of a worker until others may take over its runs."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of this process to write a run."""

    run_id: str
    token: int


@dataclass(frozen=True, slots=True)
class Holder:
    """The worker that has a run's lease, as the database describes it.

    `seconds` is the time until the lease runs out, and `process` identifies the process on its
    host; both are only known in PostgreSQL.
    """

    worker: str
    token: int
    host: str = ""
    pid: int = 0
    process: str = ""
    expires_at: Any = None
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.process == process_of(os.getpid()) != "":
            return f"this process (pid {self.pid}), which has it open already"
        found = re.fullmatch(r"(.*)-(\d+)-[0-9a-f]+", self.worker)
        host, pid = (self.host, self.pid) if self.host else found.groups() if found else ("", 0)
        return f"another process (pid {pid} on host {host!r})" if host else "another process"


class Leases(ABC):
    """The leases of this process in a database; see `SqlStore`.

    Args:
        database: The database, with the tables of runs.
        seconds: After which time without a heartbeat others may take over (PostgreSQL).
        flush: Let each commit survive a power failure (SQLite).
    """

    def __init__(self, database: Database, *, seconds: float, flush: bool) -> None:
        self.database = database
        self.seconds = seconds
        self.flush = flush
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())[:60]
        self.worker = f"{host}-{self._owner}-{token_hex(4)}"
        self._held: set[str] = set()
        self._mutex = threading.Lock()

    def begin(self, run_id: str, line: bytes) -> Lease | None:
        """Store the first line of a new run, and take its lease. Return None if the id is taken."""
        if self._owner == os.getpid() and run_id in self._held:
            return None
        with self._reserved(run_id, "run"):
            token = self._begin(RUN_TABLES.first_row(run_id, line))
            if token is None:
                self._leave(run_id)
                return None
            return Lease(run_id, token)

    def take(self, name: str, *, what: str = "run") -> Lease:
        """Take the lease of a run, or of another name of a `what`.

        If its worker may be dead, this waits until its lease runs out.

        Raises JournalError while a living worker has it.
        """
        self.database.make()
        with self._reserved(name, what):
            return Lease(name, self._take(name, what))

    def release(self, lease: Lease) -> None:
        """Release a run's lease, so that others can take it."""
        # A forked child has a copy of the lease, which is its parent's.
        if self._owner != os.getpid() or lease.run_id not in self._held:
            return
        try:
            self._release(lease)
        finally:
            self._leave(lease.run_id)

    def is_held(self, name: str) -> bool:
        """Return whether a living worker has the lease of a run."""
        if not self.database.is_current():
            return False
        found = self.database.attempt("look at a lease in", lambda it: self._look(it, name))
        return found is not None and not self._is_dead(found)

    def lost(self, lease: Lease) -> JournalError:
        """Return the error of a write whose lease another worker has taken."""
        found = self.database.attempt(
            "look at a lease in", lambda connection: self._look(connection, lease.run_id)
        )
        now = f"{found} has taken it over" if found else "another process has taken it over"
        return JournalError(
            f"run {lease.run_id!r} in {self.database.name} isn't written by this process any more: "
            f"{now}, because this process gave no sign of life for more than "
            f"{self.seconds:g} seconds (it was paused, or cut off from the server). Nothing of the "
            "record is stored; let the other process finish the run, or resume it when that one "
            "has ended"
        )

    @contextmanager
    def _reserved(self, name: str, what: str) -> Iterator[None]:
        """Keep other threads from the same name; its end is that of a failure, or of the lease."""
        if self._owner != os.getpid():
            self._reset()
        with self._mutex:
            if name in self._held:
                raise self._busy(what, name, f"this process (pid {self._owner}), {_OPEN_ALREADY}")
            if not self._held:
                self._enter()
            self._held.add(name)
        try:
            yield
        except BaseException:
            self._leave(name)
            raise

    def _leave(self, name: str) -> None:
        with self._mutex:
            self._held.discard(name)
            if not self._held:
                self._exit()

    def _busy(self, what: str, name: str, holder: object) -> JournalError:
        return JournalError(
            f"{self.database.name}: {what} {name!r} is being written by {holder}; wait until it "
            "has ended, or stop it, and try again"
        )

    @abstractmethod
    def _enter(self) -> None:
        """Show that this worker lives, before its first lease."""

    @abstractmethod
    def _exit(self) -> None:
        """Take notice that this worker has no lease any more."""

    @abstractmethod
    def _begin(self, row: Mapping[str, Any]) -> int | None: ...

    @abstractmethod
    def _take(self, name: str, what: str) -> int: ...

    @abstractmethod
    def _release(self, lease: Lease) -> None: ...

    @abstractmethod
    def _look(self, connection: sql.Connection, name: str) -> Holder | None: ...

    @abstractmethod
    def _is_dead(self, holder: Holder) -> bool: ...


_OPEN_ALREADY = "which has it open already"


# A process that died on this host is known at once. A number alone may be another process's by now,
# or one of another container, so its start and its namespace are compared too.


def process_of(pid: int) -> str:
    """Return what identifies a running process of this host, or "" if it can't be known."""
    started = _started(pid)
    return f"{_host()} {pid} {started}" if started and _host() else ""


def is_running(holder: Holder) -> bool | None:
    """Return whether a worker's process runs, or None if this host can't know."""
    place = _host()
    if not place or not holder.process.startswith(f"{place} "):
        return None
    return process_of(holder.pid) == holder.process


@cache
def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in ticks of its host, or "" if it doesn't run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended
