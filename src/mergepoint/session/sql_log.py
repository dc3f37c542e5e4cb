"""SqlLog: a session's log in a database. The tables: docs/sessions.md.

An append is one transaction that nobody else can begin for this session: in SQLite by a write
lock on the file, in PostgreSQL by an advisory lock that the transaction takes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from mergepoint.core.errors import SessionError
from mergepoint.record.lines import decode
from mergepoint.record.redact import Redact
from mergepoint.record.sql_database import Database
from mergepoint.record.sql_hold import hold_run
from mergepoint.record.sql_store import SqlStore
from mergepoint.record.store import Sync
from mergepoint.session.entry import Entry, SessionHeader
from mergepoint.session.log import (
    REPAIR,
    Appended,
    Mark,
    as_session_errors,
    entry_at,
    header_at,
)
from mergepoint.session.sql_mending import SqlMending
from mergepoint.session.sql_tables import (
    ENTRIES,
    entries_of,
    header_of,
    lock_session,
    rows_of,
    set_up,
    transaction,
)

_RESTORE = f"it was changed after it was written: restore it from a backup, or {REPAIR}"


class SqlLog:
    """The log of one session: a row that it began with, and one for each entry."""

    def __init__(
        self,
        database: Database,
        session_id: str,
        *,
        sync: Sync,
        redact: Redact | None,
        runs: SqlStore,
    ) -> None:
        self.place = f"session {session_id!r} in {database.name}"
        self.redact = redact
        self.session_id = session_id
        self.database = database
        self._runs = runs
        self._sync = sync

    def begin(self) -> tuple[SessionHeader, Mark]:
        """Give what the session began with. Raises SessionError where it cannot be read."""
        with (
            as_session_errors(),
            self.database.connected() as connection,
            self.database.told("read"),
        ):
            found = connection.execute(header_of(self.session_id)).one_or_none()
        if found is None:
            raise SessionError(f"{self.place} is gone; it was deleted since it was opened")
        plain = self._decoded("its header", found.checksum, found.header)
        return header_at(self.place, self.session_id, plain), Mark(0, 0, found.header)

    def since(self, mark: Mark) -> Appended:
        """Give the entries that were appended since."""
        with as_session_errors(), self.database.connected() as connection:
            return self.read(connection, mark)

    def first(self, mark: Mark, count: int) -> Sequence[Entry]:
        """Give the first entries behind a mark."""
        return self._entries(ENTRIES.c.n <= mark.number + count)

    def last(self, mark: Mark) -> Entry | None:
        """Give the last entry, or None where there is none."""
        own = ENTRIES.c.session_id == self.session_id
        newest = sql.select(sql.func.max(ENTRIES.c.n)).where(own).scalar_subquery()
        found = self._entries(ENTRIES.c.n == newest)
        return found[-1] if found else None

    @contextmanager
    def alone(self, mark: Mark, *, flush: bool) -> Iterator[_SqlTurnstile]:
        """Hold the session for an append; others wait."""
        with as_session_errors(), self._locked(flush=flush) as (connection, commit):
            yield _SqlTurnstile(self, connection, commit, mark)

    @contextmanager
    def mending(self) -> Iterator[SqlMending]:
        """Hold the session to look at its rows and to write it anew."""
        with as_session_errors(), self._locked(flush=True) as (connection, commit):
            yield SqlMending(self.database, self.session_id, connection, commit)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the session for a turn. Raises SessionError while another turn is running."""
        with as_session_errors():
            held = hold_run(self.database, f"{self.session_id}.turn", what="turn of a session")
        try:
            yield
        finally:
            with as_session_errors():
                held.close(self.database)

    def runs(self) -> SqlStore:
        """Give the store of the runs of the session's turns, in the same database."""
        return self._runs

    def read(self, connection: sql.Connection, mark: Mark) -> Appended:
        """Give what was appended since, over a connection."""
        with self.database.told("read"):
            first = connection.execute(header_of(self.session_id)).one_or_none()
            rows = connection.execute(entries_of(self.session_id, ENTRIES.c.n > mark.number)).all()
        if first is None or first.header != mark.first:
            raise SessionError(f"{self.place} is another one than was opened; open it again")
        entries = []
        for number, found in enumerate(rows, mark.number + 1):
            if found.n != number:
                raise SessionError(f"{self.place}, record {number} is missing; {_RESTORE}")
            entries.append(self._entry(found))
        return Appended(tuple(entries), Mark(0, mark.number + len(rows), mark.first))

    @contextmanager
    def _locked(self, *, flush: bool) -> Iterator[tuple[sql.Connection, Callable[[], None]]]:
        database = self.database
        with database.connected() as connection, ExitStack() as stack:
            with database.told("lock a session in"):
                if database.kind == "sqlite":
                    set_up(connection, flush=flush or self._sync == "record")
                commit = stack.enter_context(transaction(connection))
                if database.kind == "postgresql":
                    lock_session(connection, self.session_id)
            yield connection, commit

    def _entries(self, wanted: sql.ColumnElement[bool]) -> list[Entry]:
        database = self.database
        with as_session_errors(), database.connected() as connection, database.told("read"):
            rows = connection.execute(entries_of(self.session_id, wanted)).all()
        return [self._entry(found) for found in rows]

    def _entry(self, found: Any) -> Entry:
        where = f"record {found.n}"
        return entry_at(self.place, where, self._decoded(where, found.checksum, found.body))

    def _decoded(self, where: str, checksum: str, body: bytes) -> dict[str, Any]:
        try:
            return decode(b"%s %s\n" % (checksum.encode(), body))
        except (ValueError, RecursionError) as error:
            raise SessionError(f"{self.place}, {where}: {error}; {_RESTORE}") from error


class _SqlTurnstile:
    """The session while it is held."""

    def __init__(
        self, log: SqlLog, connection: sql.Connection, commit: Callable[[], None], mark: Mark
    ) -> None:
        self._log = log
        self._connection = connection
        self._commit = commit
        self.found = log.read(connection, mark)
        self._mark = self.found.mark

    def append(self, entries: Sequence[Entry]) -> Mark:
        """Write the entries, a row each, in one transaction; give the mark behind them."""
        log, mark = self._log, self._mark
        rows = rows_of(log.session_id, entries, first=mark.number + 1)
        way_out = "what it held before is kept. See that the database has room, then try again"
        with log.database.told(f"write to {log.place}, in", way_out):
            try:
                self._connection.execute(ENTRIES.insert(), rows)
                self._commit()
            except IntegrityError:
                raise SessionError(
                    f"{log.place} was deleted, or written without its lock; open it again"
                ) from None
        self._mark = Mark(0, mark.number + len(entries), mark.first)
        return self._mark

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Write nothing: a database has no place for a snapshot, `export` gives one."""
