"""SqlSessions: sessions in SQLite or PostgreSQL. The tables: docs/sessions.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from mergepoint.core.errors import MergepointError, SessionError

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import IntegrityError
except ImportError as error:
    raise MergepointError(
        "sessions in SQL need SQLAlchemy, which is not installed: pip install 'mergepoint[sql]'"
    ) from error

from mergepoint.record.redact import Redact
from mergepoint.record.sql_database import RECORDS, RUNS
from mergepoint.record.sql_store import SqlStore
from mergepoint.record.store import Sync, checked_sync
from mergepoint.session.beside import checked_name
from mergepoint.session.entry import Entry, SessionHeader
from mergepoint.session.log import as_session_errors
from mergepoint.session.memory import SessionMemory
from mergepoint.session.session_id import checked_session_id, new_session_id
from mergepoint.session.sessions import (
    LOOK,
    SessionBrief,
    brief_of,
    known_session,
    newest_first,
    unknown_session,
)
from mergepoint.session.sql_beside import BESIDE, SqlBeside, beside_table
from mergepoint.session.sql_log import SqlLog
from mergepoint.session.sql_tables import (
    ENTRIES,
    SESSIONS,
    about,
    rows_of,
    session_tables,
    set_up,
    transaction,
)


class SqlSessions:
    """Keeps sessions in a database, by its URL or as an SQLAlchemy engine, beside their runs.

    The tables are made when the first session begins. `sync` is for SQLite, as in FileSessions.
    Raises SessionError or MergepointError for an address that is none of the two kinds.
    """

    def __init__(
        self,
        address: str | sql.URL | sql.Engine,
        *,
        sync: Sync = "edges",
        redact: Redact | None = None,
    ) -> None:
        self.sync = checked_sync(sync)
        self.redact = redact
        with as_session_errors():
            self._database = session_tables(address)
            self._runs = SqlStore(address, sync=sync, redact=redact)
            self._beside = beside_table(address)

    def create(self, session_id: str | None = None) -> SessionMemory:
        """Begin a session; file and tables are made where they are missing."""
        session_id = checked_session_id(new_session_id() if session_id is None else session_id)
        return self.begin(SessionHeader(session_id=session_id, created_at=datetime.now(UTC)))

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Go on with a session; with `create` begin it where there is none."""
        log = self.log(session_id)
        if self.has(session_id):
            return SessionMemory(log)
        if not create:
            raise unknown_session(self, session_id, self._ids())
        try:
            return self.create(session_id)
        except SessionError:
            if not self.has(session_id):
                raise
            return SessionMemory(log)  # another began it at the same moment

    def has(self, session_id: str) -> bool:
        """Say whether there is a session, also one that cannot be read."""
        return session_id in self._ids(checked_session_id(session_id))

    def begin(self, header: SessionHeader, entries: Iterable[Entry] = ()) -> SessionMemory:
        """Begin a session with what it holds already: all of it is there, or nothing."""
        log = self.log(header.session_id)
        with as_session_errors():
            first, rows = about(header), rows_of(header.session_id, entries)
            self._database.make()
        with self._writing("write to") as (connection, commit):
            try:
                connection.execute(SESSIONS.insert(), first)
                if rows:
                    connection.execute(ENTRIES.insert(), rows)
                commit()
            except IntegrityError:
                raise known_session(self, header.session_id) from None
        return SessionMemory(log)

    def sessions(self) -> Sequence[SessionBrief]:
        """List the sessions, the one that was written last first."""
        return newest_first(map(self._brief, self._ids()))

    def delete(self, session_id: str) -> None:
        """Take a session away with the journals of its runs; there is no way back."""
        log = self.log(session_id)
        if not self.has(session_id):
            raise unknown_session(self, session_id, self._ids())
        with log.turn(), self._writing("delete from") as (connection, commit):
            if sql.inspect(connection).has_table(RUNS.name):
                _delete_runs(connection, session_id)
            if sql.inspect(connection).has_table(BESIDE.name):
                connection.execute(BESIDE.delete().where(BESIDE.c.session_id == session_id))
            for table in (ENTRIES, SESSIONS):
                connection.execute(table.delete().where(table.c.session_id == session_id))
            commit()

    def log(self, session_id: str) -> SqlLog:
        """Give the log of a session. Raises SessionError for an id that is none."""
        return SqlLog(
            self._database,
            checked_session_id(session_id),
            sync=self.sync,
            redact=self.redact,
            runs=self._runs,
        )

    def beside(self, name: str, session_id: str | None = None) -> SqlBeside:
        """Give the rows of an application, in the table `mergepoint_session_beside`."""
        session_id = None if session_id is None else checked_session_id(session_id)
        return SqlBeside(self._beside, checked_name(name), session_id)

    def __str__(self) -> str:
        return self._database.name

    def _ids(self, session_id: str | None = None) -> list[str]:
        with as_session_errors():
            if not self._database.exists():
                return []
            query = sql.select(SESSIONS.c.session_id)
            if session_id is not None:
                query = query.where(SESSIONS.c.session_id == session_id)
            with self._database.connected() as connection, self._database.told("read"):
                return list(connection.execute(query).scalars())

    @contextmanager
    def _writing(self, act: str) -> Iterator[tuple[sql.Connection, Callable[[], None]]]:
        database = self._database
        with as_session_errors(), database.connected() as connection, database.told(act):
            if database.kind == "sqlite":
                set_up(connection, flush=True)
            with transaction(connection) as commit:
                yield connection, commit

    def _brief(self, session_id: str) -> SessionBrief:
        try:
            log = self.log(session_id)
            header, mark = log.begin()
            return brief_of(header, log.first(mark, LOOK), log.last(mark))
        except SessionError as error:
            return SessionBrief(session_id=session_id, problem=str(error))


def _delete_runs(connection: sql.Connection, session_id: str) -> None:
    query = sql.select(RUNS.c.run_id).where(
        RUNS.c.run_id.startswith(f"{session_id}.", autoescape=True)
    )
    of_turns = re.compile(rf"{re.escape(session_id)}\.\d+(\..*)?")
    found = [run for run in connection.execute(query).scalars() if of_turns.fullmatch(run)]
    for table in (RECORDS, RUNS) if found else ():
        one = table.delete().where(table.c.run_id == sql.bindparam("run"))
        connection.execute(one, [{"run": run} for run in found])
