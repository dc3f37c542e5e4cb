"""Leases in SQLite: a lock file for each worker tells whether it lives."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mergepoint.journal.checked_lines import (
    JournalError,
    JournalFileError,
    LockableFile,
    is_locked,
    open_locked,
    remove_locked,
)
from mergepoint.journal.leases import Holder, Lease, Leases
from mergepoint.journal.run_tables import LEASES, RUN_TABLES, RUNS
from mergepoint.journal.sql_database import write_transaction
from mergepoint.journal.sql_engines import IntegrityError, close_quietly, set_up_sqlite, sql


class FileLeases(Leases):
    """Leases in SQLite: the lock file of a worker tells whether it lives.

    All journals are written over one connection, and flushed over another one, while there are any.
    """

    def _reset(self) -> None:
        super()._reset()
        self._writing = threading.RLock()
        self._flushing = threading.Lock()
        self._commits = 0
        self._flushed = 0
        # A forked process keeps its parent's connections, because closing them would close them
        # there.
        self._forgotten = [getattr(self, name, None) for name in ("_connection", "_flusher")]
        self._connection: sql.Connection | None = None
        self._flusher: sql.Connection | None = None
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
            if self._flusher is None:
                self._flusher = self.database.engine.private_connection()
            self._flusher.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
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
        with self._flushing:
            flusher, self._flusher = self._flusher, None
        for one in (flusher, connection):
            if one is not None:
                close_quietly(one)
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
        newest = connection.exec_driver_sql("SELECT max(token) FROM mergepoint_leases").scalar()
        token = int(newest or 0) + 1
        # In one statement, for a run whose worker has died: its row is replaced.
        connection.exec_driver_sql(
            "INSERT OR REPLACE INTO mergepoint_leases (run_id, worker, token) VALUES (?, ?, ?)",
            (name, self.worker, token),
        )
        return token

    def _release(self, lease: Lease) -> None:
        with self.database.errors("release a lease in"), self._writing:
            assert self._connection is not None  # noqa: S101  (this lease was taken)
            # One statement is a transaction.
            statement = "DELETE FROM mergepoint_leases WHERE run_id = ?"
            self._connection.exec_driver_sql(statement, (lease.run_id,))

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
