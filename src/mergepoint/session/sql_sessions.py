"""Sessions in a database: SQLite or PostgreSQL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from mergepoint.core.errors import MergepointError, SessionError, install_command

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import IntegrityError, SQLAlchemyError
except ImportError as error:
    raise MergepointError(
        f"sessions in SQL need SQLAlchemy, which is not installed: {install_command('sql')}"
    ) from error

from mergepoint.journal.lines import decode, encode
from mergepoint.journal.redact import Redact
from mergepoint.journal.sql_journal import (
    RECORDS,
    RUNS,
    Database,
    SqlStore,
    hold_run,
    line_tables,
    row,
)
from mergepoint.journal.stores import Sync, checked_sync
from mergepoint.session.entries import (
    FORMAT,
    Entry,
    SessionHeader,
    checked_session_id,
    entry_to_plain,
    new_session_id,
)
from mergepoint.session.session_log import (
    PATIENCE,
    REPAIR,
    Appended,
    LogLine,
    Mark,
    Row,
    as_session_errors,
    checked_name,
    entry_at,
    header_at,
)
from mergepoint.session.session_memory import SessionMemory
from mergepoint.session.session_store import (
    LOOK,
    SessionBrief,
    brief_of,
    known_session,
    newest_first,
    unknown_session,
)

_TABLES = sql.MetaData()
SESSIONS, ENTRIES = line_tables(
    _TABLES,
    firsts="mergepoint_sessions",
    key="session_id",
    rest="mergepoint_session_entries",
)


def session_tables(address: str | sql.URL | sql.Engine) -> Database:
    """Return the database of sessions at an address. Raises the errors of Database."""
    return Database(address, tables=_TABLES)


def header_of(session_id: str) -> sql.Select[Any]:
    """Return the query for a session's header row."""
    return sql.select(SESSIONS).where(SESSIONS.c.session_id == session_id)


def entries_of(session_id: str, wanted: sql.ColumnElement[bool]) -> sql.Select[Any]:
    """Return the query for entries of a session, in their order."""
    own = ENTRIES.c.session_id == session_id
    return sql.select(ENTRIES).where(own, wanted).order_by(ENTRIES.c.n)


def about(header: SessionHeader) -> dict[str, Any]:
    """Return a session's header row."""
    return {
        "session_id": header.session_id,
        "format": FORMAT,
        "created_at": header.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
        **row(encode(header.to_plain()), "header"),
    }


def rows_of(session_id: str, entries: Iterable[Entry], *, first: int = 1) -> list[dict[str, Any]]:
    """Return the rows of entries, numbered from `first`."""
    return [
        {"session_id": session_id, "n": n, **row(encode(entry_to_plain(entry)))}
        for n, entry in enumerate(entries, first)
    ]


def set_up(connection: sql.Connection, *, flush: bool) -> None:
    """Allow readers during writes in SQLite; with `flush`, commits survive a power failure."""
    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")


def lock_session(connection: sql.Connection, session_id: str) -> None:
    """Lock this session against other transactions until this one ends (PostgreSQL)."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'")
    digest = hashlib.blake2b(f"mergepoint sessions {session_id}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest, signed=True)
    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(key)))


@contextmanager
def transaction(connection: sql.Connection) -> Iterator[Callable[[], None]]:
    """Begin a write transaction and yield its commit; without commit it is rolled back."""
    begun = True
    immediate = " IMMEDIATE" if connection.dialect.name == "sqlite" else ""
    connection.exec_driver_sql(f"BEGIN{immediate}")

    def commit() -> None:
        nonlocal begun
        connection.exec_driver_sql("COMMIT")
        begun = False

    try:
        yield commit
    finally:
        if begun and not connection.invalidated:
            with suppress(SQLAlchemyError):
                connection.exec_driver_sql("ROLLBACK")


class LockedSqlLog:
    """A session in a database, locked for checks and repair."""

    def __init__(
        self,
        database: Database,
        session_id: str,
        connection: sql.Connection,
        commit: Callable[[], None],
    ) -> None:
        self._database = database
        self._session_id = session_id
        self._connection = connection
        self._commit = commit
        with database.told("read"):
            first = connection.execute(header_of(session_id)).one_or_none()
            rows = connection.execute(entries_of(session_id, sql.true())).all()
        if first is None:
            raise SessionError(
                f"there is no session {session_id!r} in {database.name}; the list of sessions "
                "says which there are"
            )
        there = {found.n: _line(found.checksum, found.body) for found in rows}
        self.lines = [
            LogLine("its header", _line(first.checksum, first.header)),
            *(LogLine(f"record {n}", there.get(n)) for n in range(1, max(there, default=0) + 1)),
        ]

    def rewrite(self, header: SessionHeader, entries: Sequence[Entry]) -> str:
        """Rewrite the session, keep the old one under another id, and return that id."""
        copy = f"{self._session_id[:80]}_damaged_{token_hex(4)}"
        execute, old = self._connection.execute, self._session_id
        same = [column for column in SESSIONS.c if column.name != "session_id"]
        first = sql.select(sql.literal(copy), *same).where(SESSIONS.c.session_id == old)
        names = ["session_id", *(column.name for column in same)]
        with self._database.told("repair a session in"):
            execute(SESSIONS.insert().from_select(names, first))
            moved = ENTRIES.update().where(ENTRIES.c.session_id == old)
            execute(moved.values(session_id=copy))
            execute(SESSIONS.update().where(SESSIONS.c.session_id == old).values(about(header)))
            if entries:
                execute(ENTRIES.insert(), rows_of(old, entries))
            self._commit()
        return f"session {copy!r}"

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Write nothing: a database has no place for a snapshot."""

    def snapshot(self) -> None:
        """Return None: a database has no place for a snapshot."""


def _line(checksum: str, body: bytes) -> bytes:
    return b"%s %s\n" % (checksum.encode(), body)


# An append is one transaction that no other process can begin for this session: in SQLite by a
# write lock on the file, in PostgreSQL by an advisory lock of the transaction.


_RESTORE = f"it was changed after it was written: restore it from a backup, or {REPAIR}"


class SqlLog:
    """The log of one session: a header row, and one row per entry."""

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
        """Return the header of the session. Raises SessionError if it cannot be read."""
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
        """Return the entries that were appended since."""
        with as_session_errors(), self.database.connected() as connection:
            return self.read(connection, mark)

    def first(self, mark: Mark, count: int) -> Sequence[Entry]:
        """Return the first entries after a mark."""
        return self._entries(ENTRIES.c.n <= mark.number + count)

    def last(self, mark: Mark) -> Entry | None:
        """Return the last entry, or None."""
        own = ENTRIES.c.session_id == self.session_id
        newest = sql.select(sql.func.max(ENTRIES.c.n)).where(own).scalar_subquery()
        found = self._entries(ENTRIES.c.n == newest)
        return found[-1] if found else None

    @contextmanager
    def alone(self, mark: Mark, *, flush: bool) -> Iterator[_SqlTurnstile]:
        """Lock the session for an append; others wait."""
        with as_session_errors(), self._locked(flush=flush) as (connection, commit):
            yield _SqlTurnstile(self, connection, commit, mark)

    @contextmanager
    def mending(self) -> Iterator[LockedSqlLog]:
        """Lock the session to check and rewrite its rows."""
        with as_session_errors(), self._locked(flush=True) as (connection, commit):
            yield LockedSqlLog(self.database, self.session_id, connection, commit)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lock the session for a turn. Raises SessionError while another turn is running."""
        with as_session_errors():
            held = hold_run(self.database, f"{self.session_id}.turn", what="turn of a session")
        try:
            yield
        finally:
            with as_session_errors():
                held.close(self.database)

    def runs(self) -> SqlStore:
        """Return the store of the runs of the session's turns, in the same database."""
        return self._runs

    def read(self, connection: sql.Connection, mark: Mark) -> Appended:
        """Return the entries that were appended since, over a connection."""
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
    """The session while it is locked for an append."""

    def __init__(
        self, log: SqlLog, connection: sql.Connection, commit: Callable[[], None], mark: Mark
    ) -> None:
        self._log = log
        self._connection = connection
        self._commit = commit
        self.found = log.read(connection, mark)
        self._mark = self.found.mark

    def append(self, entries: Sequence[Entry]) -> Mark:
        """Write the entries, one row each, in one transaction; return the mark after them."""
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
        """Write nothing: a database has no place for a snapshot; `export` returns one."""


_SIDECAR_TABLES = sql.MetaData()
BESIDE = sql.Table(
    "mergepoint_session_beside",
    _SIDECAR_TABLES,
    sql.Column("name", sql.String, primary_key=True),
    sql.Column("session_id", sql.String, primary_key=True),
    sql.Column("n", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("checksum", sql.String(8), nullable=False),
    sql.Column("body", sql.LargeBinary, nullable=False),
)


def sidecar_table(address: str | sql.URL | sql.Engine) -> Database:
    """Return the database with the table, which is created with the first row."""
    return Database(address, tables=_SIDECAR_TABLES)


class SqlSidecar:
    """The rows of one application for one session, or for all sessions."""

    def __init__(self, database: Database, name: str, session_id: str | None) -> None:
        self._database = database
        self._name = name
        self._session = session_id
        self._own = sql.and_(BESIDE.c.name == name, BESIDE.c.session_id == (session_id or ""))

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows."""
        database = self._database
        with as_session_errors():
            if not database.exists():
                return []
            query = sql.select(BESIDE).where(self._own).order_by(BESIDE.c.n)
            with database.connected() as connection, database.told("read"):
                found = connection.execute(query).all()
        return [self._decoded(one) for one in found]

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows in one transaction."""
        with as_session_errors():
            bodies = [row(encode(dict(one))) for one in rows]
            if not bodies:
                return
            database = self._database
            database.make()
            with database.connected() as connection, database.told("write to"):
                if database.kind == "sqlite":
                    set_up(connection, flush=True)
                with transaction(connection) as commit:
                    if database.kind == "postgresql":
                        lock_session(connection, f"{self._name} beside {self._session}")
                    self._check(connection)
                    connection.execute(BESIDE.insert(), self._numbered(connection, bodies))
                    commit()

    def _numbered(
        self, connection: sql.Connection, bodies: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        last = connection.execute(sql.select(sql.func.max(BESIDE.c.n)).where(self._own)).scalar()
        key = {"name": self._name, "session_id": self._session or ""}
        return [{**key, "n": n, **body} for n, body in enumerate(bodies, (last or 0) + 1)]

    def _check(self, connection: sql.Connection) -> None:
        if self._session is None:
            return
        query = sql.select(SESSIONS.c.session_id).where(SESSIONS.c.session_id == self._session)
        if connection.execute(query).one_or_none() is None:
            raise SessionError(
                f"there is no session {self._session!r} in {self._database.name} any more; nothing "
                "is kept beside it"
            )

    def _decoded(self, found: Any) -> dict[str, Any]:
        try:
            return decode(b"%s %s\n" % (found.checksum.encode(), found.body))
        except (ValueError, RecursionError) as error:
            raise SessionError(
                f"what {self._name} keeps beside session {self._session!r} in "
                f"{self._database.name}, row {found.n}: {error}; it was changed after it was "
                "written: restore it from a backup"
            ) from error


class SqlSessions:
    """A store of sessions and their runs in a database, by its URL or an SQLAlchemy engine.

    The tables are created with the first session. `sync` is for SQLite, as in FileSessions. Raises
    SessionError or MergepointError for the address of another kind of database.
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
            self._beside = sidecar_table(address)

    def create(self, session_id: str | None = None) -> SessionMemory:
        """Create a session, and file and tables if they are missing."""
        session_id = checked_session_id(new_session_id() if session_id is None else session_id)
        return self.begin(SessionHeader(session_id=session_id, created_at=datetime.now(UTC)))

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Open a session; with `create`, create it if it does not exist."""
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
            return SessionMemory(log)  # another process created it concurrently

    def has(self, session_id: str) -> bool:
        """Return whether a session exists, even if it is unreadable."""
        return session_id in self._ids(checked_session_id(session_id))

    def begin(self, header: SessionHeader, entries: Iterable[Entry] = ()) -> SessionMemory:
        """Create a session with entries, completely or not at all."""
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
        """List the sessions, the last written first."""
        return newest_first(map(self._brief, self._ids()))

    def delete(self, session_id: str) -> None:
        """Delete a session with the journals of its runs; this cannot be undone."""
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
        """Return the log of a session. Raises SessionError for an invalid id."""
        return SqlLog(
            self._database,
            checked_session_id(session_id),
            sync=self.sync,
            redact=self.redact,
            runs=self._runs,
        )

    def beside(self, name: str, session_id: str | None = None) -> SqlSidecar:
        """Return the rows of an application, in the table `mergepoint_session_beside`."""
        session_id = None if session_id is None else checked_session_id(session_id)
        return SqlSidecar(self._beside, checked_name(name), session_id)

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
