"""Leases in PostgreSQL: a heartbeat tells by the server's clock whether a worker lives."""

from __future__ import annotations

import atexit
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import WeakSet, finalize, ref

from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.leases import Holder, Lease, Leases, is_running, process_of
from mergepoint.journal.sql_database import Database
from mergepoint.journal.sql_engines import sql

_LOG = logging.getLogger("mergepoint.journal")

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
            "process": process_of(self._owner),
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
                self.beat(patience=self.seconds / 3)
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
            _end_at_exit()

    def _exit(self) -> None:
        """Keep the worker's row and its heartbeat, which end with the process."""

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
        if is_running(found) and found.seconds > 0:
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
            values |= {"token": found.token, "is_dead": is_ours or is_running(found) is False}
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
        return holder.seconds <= 0 or is_running(holder) is False


_AT_EXIT: WeakSet[ServerLeases] = WeakSet()


def _end_all() -> None:
    for leases in list(_AT_EXIT):
        leases.end()


@cache
def _end_at_exit() -> None:
    """Release leases at the end of the process, while there are connections.

    What is registered last is called first: this is after `finalize` of the first engine.
    """
    atexit.register(_end_all)


def _beats(found: ref[ServerLeases], interval: float, stop: threading.Event) -> None:
    while not stop.wait(interval):
        leases = found()
        if leases is None:
            return
        leases.maintain()
        # A reference would keep the leases, and with them the connections, until the next beat.
        del leases
