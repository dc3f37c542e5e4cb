"""Hold a run in a database: one writer at a time, by a lock that ends with its process.

A row that says who writes would outlive a kill. In PostgreSQL the lock is an advisory one of the
session that writes: the server drops it with the connection, so nobody writes without it. SQLite
has no locks of a name, so there it is a file beside the database, locked as journals on disk are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import OperationalError

from mergepoint.record.hold import held, hold_at, let_go
from mergepoint.record.lines import JournalError
from mergepoint.record.sql_database import Database, dropped

_PATIENCE = "500ms"  # in which the server notices that a killed process is gone


@dataclass(frozen=True, slots=True)
class Held:
    """A run that this process holds, and the connection that it is written by."""

    connection: sql.Connection
    let_go: Callable[[], None]

    def close(self, database: Database) -> None:
        """Let go of the run and close the connection. Raises JournalError where that fails."""
        try:
            with database.told("let go of a run in"):
                self.let_go()
        finally:
            dropped(self.connection)


def hold_run(database: Database, run_id: str, *, what: str = "run") -> Held:
    """Hold a run, or `what` else has this name. Raises JournalError while another holds it."""
    connection = database.held()
    take = _by_file if database.kind == "sqlite" else _by_session
    try:
        with database.told(f"lock a {what} in"):
            return Held(connection, take(database, connection, run_id, what))
    except BaseException:
        dropped(connection)
        raise


def held_run(database: Database, run_id: str) -> bool:
    """Say whether a process writes a run now."""
    with database.connected() as connection, database.told("look at the locks of"):
        if database.kind == "sqlite":
            return held(_lock_of(connection, run_id))
        return _session(connection, _key_of(connection, run_id)) is not None


def _by_file(_: Database, connection: sql.Connection, name: str, what: str) -> Callable[[], None]:
    path = _lock_of(connection, name)
    try:
        file = hold_at(path, what=f"the {what}")
    except OSError as error:
        raise JournalError(
            f"cannot make the lock of the {what}, {path}: {error.strerror}; let the database be in "
            "a folder that can be written"
        ) from error
    return partial(let_go, file, path)


def _by_session(
    database: Database, connection: sql.Connection, name: str, what: str
) -> Callable[[], None]:
    key = _key_of(connection, name)
    connection.exec_driver_sql(f"SET lock_timeout = '{_PATIENCE}'")
    try:
        connection.execute(sql.select(sql.func.pg_advisory_lock(key)))
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":
            raise
        raise JournalError(
            f"{database.name}: {what} {name!r} is being written by another session"
            f"{_holder(connection, key)}; wait until it has ended, or stop it, and try again"
        ) from None
    connection.exec_driver_sql("RESET lock_timeout")

    def unlock() -> None:
        if not connection.invalidated:  # a lost connection has lost its locks
            connection.execute(sql.select(sql.func.pg_advisory_unlock(key)))

    return unlock


def _lock_of(connection: sql.Connection, name: str) -> Path:
    """Give the file beside an SQLite database that whoever writes under a name locks."""
    main = str(connection.exec_driver_sql("PRAGMA database_list").one()[2])
    return Path(f"{main}.{name}.lock")


def _key_of(connection: sql.Connection, name: str) -> int:
    """Give the number of the advisory lock of a name."""
    schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    digest = hashlib.blake2b(f"mergepoint {schema} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _holder(connection: sql.Connection, key: int) -> str:
    """Say which process of the server holds a lock, and from where its client came."""
    found = _session(connection, key)
    if found is None:
        return ""
    return f" (server process {found[0]}{f', client {found[1]}' if found[1] else ''})"


def _session(connection: sql.Connection, key: int) -> Any:
    """Give process and client address of the session that holds a lock, None where none does."""
    query: Any = sql.text(
        "SELECT a.pid, a.client_addr FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
        "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
        "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND l.classid::bigint = :high AND l.objid::bigint = :low"
    )
    parts = {"high": key >> 32 & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}
    return connection.execute(query, parts).first()
