"""Sessions in a database: SQLite or PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mergepoint.journal.redact import Redact
from mergepoint.journal.run_tables import RUN_TABLES
from mergepoint.journal.sql_database import Database, Schema, write_transaction
from mergepoint.journal.sql_engines import sql
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.journal.stores import Sync
from mergepoint.journal.table_logs import LineTables, TableLog
from mergepoint.session.entries import checked_session_id
from mergepoint.session.session_log import (
    REPAIR,
    SessionLog,
    Sidecar,
    as_session_errors,
    check_sidecar_name,
)
from mergepoint.session.session_memory import Sessions

_METADATA = sql.MetaData()
SESSION_TABLES = LineTables(
    _METADATA,
    first="mergepoint_sessions",
    rest="mergepoint_session_entries",
    key="session_id",
)
# A sidecar is a log of its own: its key is `<session id>/<name>`, or `/<name>` for all sessions.
SIDECAR_TABLES = LineTables(
    _METADATA,
    first="mergepoint_session_sidecars",
    rest="mergepoint_session_rows",
    key="sidecar",
)

_SCHEMA = Schema(
    part="sessions",
    version=1,
    tables=_METADATA,
    original=(
        "mergepoint_sessions",
        "mergepoint_session_entries",
        "mergepoint_session_sidecars",
        "mergepoint_session_rows",
    ),
)


class SqlSessions(Sessions):
    """A store of sessions and their runs in a database, by its URL or an SQLAlchemy engine.

    The tables are created with the first session. See Sessions for `sync` and `redact`. Raises
    SessionError or MergepointError for the address of another kind of database.
    """

    def __init__(
        self,
        address: str | sql.URL | sql.Engine,
        *,
        sync: Sync = "edges",
        redact: Redact | None = None,
    ) -> None:
        super().__init__(sync=sync, redact=redact)
        with as_session_errors():
            self._database = Database(address, schema=_SCHEMA)
            self._runs = SqlStore(address, sync=sync, redact=redact)

    def delete(self, session_id: str) -> None:
        """Delete a session with the journals of its runs; this cannot be undone."""
        log, database = self.log(session_id), self._database
        if not log.exists():
            raise self._unknown(session_id)
        # Escaped, because ids may contain `_`, which matches any character in LIKE.
        sidecars = SIDECAR_TABLES.first.c.sidecar.startswith(f"{session_id}/", autoescape=True)
        with (
            log.turn(),
            as_session_errors(),
            database.connected() as connection,
            database.errors("delete from"),
            write_transaction(database, connection, flush=True) as commit,
        ):
            # The tables of runs are created with the first run, which this database may not have.
            if sql.inspect(connection).has_table(RUN_TABLES.first.name):
                RUN_TABLES.delete(connection, _runs_of(connection, session_id))
            found = connection.execute(SIDECAR_TABLES.keys(sidecars)).scalars().all()
            SIDECAR_TABLES.delete(connection, found)
            SESSION_TABLES.delete(connection, [session_id])
            commit()

    def log(self, session_id: str) -> SessionLog:
        """Return the log of a session. Raises SessionError for an invalid id."""
        lines = TableLog(
            self._database,
            SESSION_TABLES,
            checked_session_id(session_id),
            place=f"session {session_id!r}",
            remedy=REPAIR,
            flush=self.sync == "record",
        )
        return SessionLog(
            session_id,
            lines,
            redact=self.redact,
            runs=self._runs,
            lock_turn=lambda: self._lock_turn(session_id),
        )

    def beside(self, name: str, session_id: str | None = None) -> Sidecar:
        """Return the rows of an application, in the table `mergepoint_session_rows`."""
        name = check_sidecar_name(name)
        owner = None if session_id is None else (SESSION_TABLES, checked_session_id(session_id))
        lines = TableLog(
            self._database,
            SIDECAR_TABLES,
            f"{session_id or ''}/{name}",
            place=f"the rows of {name!r} for session {session_id!r}",
            remedy="restore it from a backup",
            owner=owner,
        )
        return Sidecar(lines)

    def __str__(self) -> str:
        return self._database.name

    def _ids(self) -> list[str]:
        with as_session_errors():
            if not self._database.exists():
                return []
            with self._database.connected() as connection, self._database.errors("read"):
                return list(connection.execute(SESSION_TABLES.keys()).scalars())

    @contextmanager
    def _lock_turn(self, session_id: str) -> Iterator[None]:
        # No run has this name: in the id of a turn's run, a number follows the session's id.
        leases = self._runs.leases
        lease = leases.take(f"{session_id}.turn", what="turn of a session")
        try:
            yield
        finally:
            leases.release(lease)


def _runs_of(connection: sql.Connection, session_id: str) -> list[str]:
    run_id = RUN_TABLES.first.c.run_id
    query = RUN_TABLES.keys(run_id.startswith(f"{session_id}.", autoescape=True))
    # LIKE also finds the runs of a session whose id is this one, a dot and more.
    of_turns = re.compile(rf"{re.escape(session_id)}\.\d+(\..*)?")
    return [run for run in connection.execute(query).scalars() if of_turns.fullmatch(run)]
