"""Leases: which process may write a run in a database, and how another one takes it over.

A run has a lease while it is written: a row that names the worker, which is the writing process,
and a fencing token. Taking a run over changes the token, and every write to PostgreSQL checks it.
So a worker that was believed dead, as after a pause, writes nothing once another one took over.

In PostgreSQL a worker has a row with the time at which its leases run out, by the server's clock. A
thread renews it. In SQLite a worker has a lock file next to the database, which its death unlocks.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any
from weakref import WeakSet, finalize, ref

from mergepoint.journal.checked_lines import (
    JournalError,
    JournalFileError,
    LockableFile,
    is_locked,
    open_locked,
    remove_locked,
)
from mergepoint.journal.run_tables import LEASES, RUN_TABLES, RUNS
from mergepoint.journal.sql_database import Database, write_transaction
from mergepoint.journal.sql_engines import (
    SHARING,
    IntegrityError,
    close_quietly,
    set_up_sqlite,
    sql,
)

_LOG = logging.getLogger("mergepoint.journal")

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
        if self.process == _process(os.getpid()) != "":
            return f"this process (pid {self.pid}), which has it open already"
        found = re.fullmatch(r"(.*)-(\d+)-[0-9a-f]+", self.worker)
        host, pid = (self.host, self.pid) if self.host else found.groups() if found else ("", 0)
        return f"another process (pid {pid} on host {host!r})" if host else "another process"


class Leases:
    """The leases of this process in a database; use `leases_of`.

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

    def _enter(self) -> None:
        """Show that this worker lives, before its first lease."""
        raise NotImplementedError

    def _exit(self) -> None:
        """Take notice that this worker has no lease any more."""

    def _begin(self, row: Mapping[str, Any]) -> int | None:
        raise NotImplementedError

    def _take(self, name: str, what: str) -> int:
        raise NotImplementedError

    def _release(self, lease: Lease) -> None:
        raise NotImplementedError

    def _look(self, connection: sql.Connection, name: str) -> Holder | None:
        raise NotImplementedError

    def _is_dead(self, holder: Holder) -> bool:
        raise NotImplementedError


_OPEN_ALREADY = "which has it open already"


def leases_of(database: Database, *, seconds: float, flush: bool) -> Leases:
    """Return the leases of this process in a database, the same for all stores with it."""
    options = seconds, flush
    known = database.engine.leases
    with SHARING:
        found: Leases | None = known.get(options)
        if found is None:
            kind = FileLeases if database.kind == "sqlite" else ServerLeases
            found = known[options] = kind(database, seconds=seconds, flush=flush)
        return found


class FileLeases(Leases):
    """Leases in SQLite: the lock file of a worker tells whether it lives.

    All journals are written over one connection, while there are any.
    """

    def _reset(self) -> None:
        super()._reset()
        self._writing = threading.RLock()
        self._flushing = threading.Lock()
        self._commits = 0
        self._flushed = 0
        # A forked process keeps its parent's connection, because closing it would close it there.
        self._forgotten = getattr(self, "_connection", None)
        self._connection: sql.Connection | None = None
        self._file: tuple[LockableFile, Path] | None = None

    @contextmanager
    def transaction(self) -> Iterator[tuple[sql.Connection, Callable[[], None]]]:
        """Begin a write transaction; yield its connection and its commit."""
        with self._writing:
            assert self._connection is not None  # noqa: S101  (a lease was taken)
            with write_transaction(self.database, self._connection, flush=None) as commit:
                yield self._connection, commit
            self._commits += 1

    def checkpoint(self) -> None:
        """Flush what was committed; threads that ask at the same time share a flush."""
        committed = self._commits
        with self._flushing:
            if self._flushed >= committed:
                return
            found = self._commits
            # Not over the connection for writing: others write while the disk is waited for.
            with self.database.connected() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
            self._flushed = found

    def _enter(self) -> None:
        with self.database.errors("open"):
            connection = self.database.engine.private_connection()
            try:
                set_up_sqlite(connection, flush=self.flush)
                path = _lock_of(connection, self.worker)
                self._file = _locked_by_us(path), path
            except BaseException:
                close_quietly(connection)
                raise
        self._connection = connection

    def _exit(self) -> None:
        connection, self._connection = self._connection, None
        file, self._file = self._file, None
        if connection is not None:
            close_quietly(connection)
        if file is not None:
            remove_locked(*file)

    def _begin(self, row: Mapping[str, Any]) -> int | None:
        name = row[RUN_TABLES.key]
        with (
            self.database.errors("write the header of a run to"),
            self.transaction() as (connection, commit),
        ):
            try:
                connection.execute(RUNS.insert(), dict(row))
            except IntegrityError:
                return None
            token = self._replace(connection, name)
            commit()
        return token

    def _take(self, name: str, what: str) -> int:
        with self.database.errors("take a lease in"), self.transaction() as (connection, commit):
            found = self._look(connection, name)
            if found is not None and found.worker != self.worker and not self._is_dead(found):
                raise self._busy(what, name, found)
            token = self._replace(connection, name)
            commit()
        return token

    def _replace(self, connection: sql.Connection, name: str) -> int:
        newest = sql.select(sql.func.coalesce(sql.func.max(LEASES.c.token), 0))
        token = int(connection.execute(newest).scalar_one()) + 1
        connection.execute(LEASES.delete().where(LEASES.c.run_id == name))
        row = {"run_id": name, "worker": self.worker, "token": token}
        connection.execute(LEASES.insert(), row)
        return token

    def _release(self, lease: Lease) -> None:
        with self.database.errors("release a lease in"), self.transaction() as (it, commit):
            it.execute(LEASES.delete().where(LEASES.c.run_id == lease.run_id))
            commit()

    def _look(self, connection: sql.Connection, name: str) -> Holder | None:
        query = sql.select(LEASES.c.worker, LEASES.c.token).where(LEASES.c.run_id == name)
        found = connection.execute(query).first()
        return None if found is None else Holder(found.worker, found.token)

    def _is_dead(self, holder: Holder) -> bool:
        if self._owner == os.getpid() and holder.worker == self.worker:
            return not self._held
        with self.database.connected() as connection:
            return not is_locked(_lock_of(connection, holder.worker))


def _locked_by_us(path: Path) -> LockableFile:
    try:
        return open_locked(path)
    except JournalError:  # may be an OSError too
        raise
    except OSError as error:
        raise JournalFileError(
            f"cannot make the lock of this process, {path}: {error.strerror}; let the database be "
            "in a folder that can be written",
            error,
            path,
        ) from error


def _lock_of(connection: sql.Connection, worker: str) -> Path:
    """Return the lock file of a worker, next to an SQLite database."""
    # The first row is of the main database; a second one may be of temporary tables.
    main = connection.exec_driver_sql("PRAGMA database_list").all()[0]
    return Path(f"{main[2]}.{worker}.lock")


_BEAT = sql.text(
    "INSERT INTO mergepoint_workers AS w (worker, host, pid, process, expires_at) VALUES "
    "(:worker, :host, :pid, :process, clock_timestamp() + make_interval(secs => :seconds)) "
    "ON CONFLICT (worker) DO UPDATE SET expires_at = excluded.expires_at"
)
_BEGIN = sql.text(
    "WITH begun AS (INSERT INTO mergepoint_runs (run_id, created_at, checksum, header) "
    "VALUES (:run_id, :created_at, :checksum, :header) ON CONFLICT (run_id) DO NOTHING "
    "RETURNING run_id) "
    # A lease without a run is left of one that was deleted.
    "INSERT INTO mergepoint_leases AS l (run_id, worker) SELECT run_id, :worker FROM begun "
    "ON CONFLICT (run_id) DO UPDATE SET worker = excluded.worker, token = DEFAULT RETURNING token"
)
_BEGUN_BY_US = sql.text(
    "SELECT l.token FROM mergepoint_runs r JOIN mergepoint_leases l USING (run_id) "
    "WHERE r.run_id = :run_id AND r.checksum = :checksum AND r.header = :header "
    "AND l.worker = :worker"
)
_LOOK = sql.text(
    "SELECT l.worker, l.token, w.host, w.pid, w.process, w.expires_at, "
    "CAST(extract(epoch FROM w.expires_at - clock_timestamp()) AS double precision) AS seconds "
    "FROM mergepoint_leases l LEFT JOIN mergepoint_workers w USING (worker) "
    "WHERE l.run_id = :run_id"
)
_TAKE_NEW = sql.text(
    "INSERT INTO mergepoint_leases (run_id, worker) VALUES (:run_id, :worker) "
    "ON CONFLICT (run_id) DO NOTHING RETURNING token"
)
# Its worker may have shown that it lives since we looked, and another one may have been faster.
_TAKE_OVER = sql.text(
    "UPDATE mergepoint_leases AS l SET worker = :worker, token = DEFAULT "
    "WHERE run_id = :run_id AND token = :token AND (:is_dead OR NOT EXISTS (SELECT 1 FROM "
    "mergepoint_workers w WHERE w.worker = l.worker AND w.expires_at > clock_timestamp())) "
    "RETURNING token"
)
# The commit isn't awaited: if the server crashes now, the lease runs out by itself.
_RELEASE = sql.text(
    "WITH quick AS (SELECT set_config('synchronous_commit', 'off', true)) "
    "DELETE FROM mergepoint_leases USING quick WHERE run_id = :run_id AND token = :token"
)
_END = sql.text(
    "WITH released AS (DELETE FROM mergepoint_leases WHERE worker = :worker) "
    "DELETE FROM mergepoint_workers WHERE worker = :worker"
)
_FORGET = sql.text(
    "DELETE FROM mergepoint_workers WHERE expires_at < clock_timestamp() - interval '1 day'"
)


class ServerLeases(Leases):
    """Leases in PostgreSQL: a heartbeat of the worker, by the server's clock."""

    def __init__(self, database: Database, *, seconds: float, flush: bool) -> None:
        super().__init__(database, seconds=seconds, flush=flush)
        _AT_EXIT.add(self)

    def _reset(self) -> None:
        super()._reset()
        self._beaten = -math.inf  # by the clock of `time.monotonic`
        self._unreleased: list[Lease] = []
        self._thread: threading.Thread | None = None

    def beat(self, *, patience: float | None = None) -> None:
        """Write a heartbeat."""
        values = {
            "worker": self.worker,
            "host": socket.gethostname(),
            "pid": self._owner,
            "process": _process(self._owner),
            "seconds": self.seconds,
        }
        begun = time.monotonic()
        self.database.attempt(
            "write a heartbeat to", lambda it: it.execute(_BEAT, values), patience=patience
        )
        self._beaten = begun

    def maintain(self) -> None:
        """Renew the leases, if there are any, and release those that could not be released."""
        if self._owner != os.getpid():
            return
        try:
            if self._held or self._unreleased:
                self.beat(patience=0)
            while self._unreleased:
                self._release(self._unreleased[-1], patience=0)
                self._unreleased.pop()
        except JournalError as error:  # the next write waits for the server, or says why not
            _LOG.debug("no heartbeat of %s: %s", self.worker, error)

    def end(self) -> None:
        """Release everything at the end of the process, without waiting for the server."""
        if self._owner == os.getpid() and self._thread is not None:
            with suppress(JournalError):
                self.database.attempt("leave", self._end_over, patience=0)

    def _end_over(self, connection: sql.Connection) -> None:
        connection.execute(_END, {"worker": self.worker})

    def _enter(self) -> None:
        if time.monotonic() - self._beaten > self.seconds / 3:
            self.beat()
        if self._thread is None:
            self.database.attempt("tidy up", lambda connection: connection.execute(_FORGET))
            stop = threading.Event()
            self._thread = threading.Thread(
                target=_beats,
                args=(ref(self), self.seconds / 3, stop),
                name="mergepoint-heartbeat",
                daemon=True,
            )
            self._thread.start()
            finalize(self, stop.set)

    def _begin(self, row: Mapping[str, Any]) -> int | None:
        values = {**row, "worker": self.worker}

        def begin(connection: sql.Connection) -> int | None:
            token = connection.execute(_BEGIN, values).scalar()
            # If the server's answer was lost, the first try has stored the same header.
            return token or connection.execute(_BEGUN_BY_US, values).scalar()

        return self.database.attempt("write the header of a run to", begin)

    def _take(self, name: str, what: str) -> int:
        first: Holder | None = None
        while True:
            token, found = self.database.attempt("take a lease in", lambda it: self._try(it, name))
            if token is not None:
                return token
            if found is None:  # another one took it, and has ended since
                continue
            if first is None or (found.worker, found.token) != (first.worker, first.token):
                first = found
                self._check_living(found, name, what)
                _LOG.warning(
                    "%s: %s %r was being written by %s; waiting up to %.0f seconds, until its "
                    "lease runs out",
                    *(self.database.name, what, name, found, found.seconds),
                )
            elif found.expires_at > first.expires_at:  # a heartbeat
                raise self._busy(what, name, found)
            time.sleep(max(0.02, min(found.seconds, 1.0, self.seconds / 10)))

    def _check_living(self, found: Holder, name: str, what: str) -> None:
        if _is_running(found) and found.seconds > 0:
            raise self._busy(what, name, found)

    def _try(self, connection: sql.Connection, name: str) -> tuple[int | None, Holder | None]:
        """Return the token of a lease that could be taken, or else who has it."""
        values: dict[str, Any] = {"run_id": name, "worker": self.worker}
        found = self._look(connection, name)
        if found is None:
            return connection.execute(_TAKE_NEW, values).scalar(), None
        # A lease of ours that we don't know was not released, or its acknowledgement was lost.
        is_ours = found.worker == self.worker
        if is_ours or self._is_dead(found):
            values |= {"token": found.token, "is_dead": is_ours or _is_running(found) is False}
            return connection.execute(_TAKE_OVER, values).scalar(), found
        return None, found

    def _release(self, lease: Lease, *, patience: float | None = None) -> None:
        values = {"run_id": lease.run_id, "token": lease.token}
        try:
            self.database.attempt(
                "release a lease in", lambda it: it.execute(_RELEASE, values), patience=patience
            )
        except JournalError:
            if lease not in self._unreleased:
                self._unreleased.append(lease)
            raise

    def _look(self, connection: sql.Connection, name: str) -> Holder | None:
        found = connection.execute(_LOOK, {"run_id": name}).first()
        if found is None:
            return None
        if found.host is None:
            return Holder(found.worker, found.token)
        return Holder(*found)

    def _is_dead(self, holder: Holder) -> bool:
        return holder.seconds <= 0 or _is_running(holder) is False


_AT_EXIT: WeakSet[ServerLeases] = WeakSet()


@atexit.register
def _end_all() -> None:
    for leases in list(_AT_EXIT):
        leases.end()


def _beats(found: ref[ServerLeases], interval: float, stop: threading.Event) -> None:
    while not stop.wait(interval):
        leases = found()
        if leases is None:
            return
        leases.maintain()
        # A reference would keep the leases, and with them the connections, until the next beat.
        del leases


# A process that died on this host is known at once. A number alone may be another process's by now,
# or one of another container, so its start and its namespace are compared too.


def _process(pid: int) -> str:
    """Return what identifies a running process of this host, or "" if it can't be known."""
    started = _started(pid)
    return f"{_host()} {pid} {started}" if started and _host() else ""


def _is_running(holder: Holder) -> bool | None:
    """Return whether a worker's process runs, or None if this host can't know."""
    place = _host()
    if not place or not holder.process.startswith(f"{place} "):
        return None
    return _process(holder.pid) == holder.process


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
