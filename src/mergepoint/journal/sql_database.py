"""SQLite and PostgreSQL: connections, logs of lines in tables, and locks of processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from mergepoint.core.errors import MergepointError, install_command

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import (
        DBAPIError,
        IntegrityError,
        NoSuchModuleError,
        OperationalError,
        SQLAlchemyError,
    )
    from sqlalchemy.schema import CreateTable
except ImportError as error:
    raise MergepointError(
        f"stores in a database need SQLAlchemy, which is not installed: {install_command('sql')}"
    ) from error

from mergepoint.journal.checked_lines import (
    JournalError,
    JournalFileError,
    decode,
    is_locked,
    line_fault,
    open_locked,
    remove_locked,
)
from mergepoint.journal.line_logs import PATIENCE, START, LogLine, Mark
from mergepoint.journal.redact import MASK, mask

__all__ = [
    "Database",
    "IntegrityError",
    "LineTables",
    "LockedRows",
    "RunLock",
    "TableLog",
    "is_run_locked",
    "lock_run",
    "set_up_sqlite",
    "sql",
    "write_transaction",
]

_KINDS = ("sqlite", "postgresql")
_BUSY_SECONDS = 30
_CONNECT_SECONDS = 10
_MAKING = 0x6D65726765  # the advisory lock for creating tables in PostgreSQL


class Database:
    """A database, by its URL or a custom engine, and the tables in it.

    Raises MergepointError if the driver is not installed, and JournalError for the address of
    another kind of database.
    """

    def __init__(self, address: str | sql.URL | sql.Engine, *, tables: sql.MetaData) -> None:
        self._tables = tables
        engine = address if isinstance(address, sql.Engine) else _engine(address)
        self.kind = engine.dialect.name
        if self.kind not in _KINDS or engine.dialect.is_async:
            raise _unsupported(f"{engine.dialect.name}+{engine.dialect.driver}")
        self._password = engine.url.password
        self._file = _file_of(engine.url) if self.kind == "sqlite" else None
        self.name = _url_text(engine.url)
        # `write_transaction` begins and commits by itself, so the driver must not begin one.
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._made = False

    @contextmanager
    def errors(self, act: str, fix: str = "") -> Iterator[None]:
        """Raise errors of the database as JournalError, without passwords and parameters."""
        try:
            yield
        except SQLAlchemyError as error:
            said = error.orig if isinstance(error, DBAPIError) and error.orig else error
            reason = " ".join(str(said).split())
            if self._password:
                reason = reason.replace(str(self._password), MASK)
            raise JournalError(
                f"cannot {act} {self.name}: {mask(reason)}; {fix or _fix_of(error)}"
            ) from None  # the cause would show the statement with the data in it

    @contextmanager
    def connected(self) -> Iterator[sql.Connection]:
        """Yield a connection for a short time; each statement is a transaction of its own."""
        with self.errors("reach"), self._engine.connect() as connection:
            self._set_timeout(connection)
            yield connection

    def private_connection(self) -> sql.Connection:
        """Return a connection that belongs only to the caller, outside any pool."""
        with self.errors("reach"):
            connection = self._engine.connect()
            try:
                connection.detach()
                self._set_timeout(connection)
            except BaseException:
                close_quietly(connection)
                raise
        return connection

    def exists(self) -> bool:
        """Return whether the tables exist, without creating a database file."""
        if self._made:
            return True
        if self._file is not None and not self._file.exists():
            return False
        with self.connected() as connection:
            self._made = all(map(sql.inspect(connection).has_table, self._tables.tables))
        return self._made

    def make(self) -> None:
        """Create the file and the tables if they are missing."""
        if self.exists():
            return
        if self._file is not None:
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise JournalFileError(
                    f"cannot make the folder of {self.name}: {error}", error
                ) from error
        with (
            self.connected() as connection,
            self.errors("create tables in"),
            self._alone(connection),
        ):
            for table in self._tables.sorted_tables:
                connection.execute(CreateTable(table, if_not_exists=True))
        self._made = True

    @contextmanager
    def _alone(self, connection: sql.Connection) -> Iterator[None]:
        """Prevent others from creating the same tables; SQLite does so itself."""
        if self.kind == "sqlite":
            yield
            return
        # IF NOT EXISTS isn't enough: two sessions may both find no table, and one of them fails.
        connection.execute(sql.select(sql.func.pg_advisory_lock(_MAKING)))
        try:
            yield
        finally:
            connection.execute(sql.select(sql.func.pg_advisory_unlock(_MAKING)))

    def _set_timeout(self, connection: sql.Connection) -> None:
        if self.kind == "sqlite":
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")


def close_quietly(connection: sql.Connection) -> None:
    """Close a connection, even a broken one."""
    with suppress(SQLAlchemyError):
        connection.close()


def _unsupported(driver: str) -> JournalError:
    return JournalError(
        f"journals are kept in SQLite or PostgreSQL, by a driver that is not async, and not in "
        f"{driver}; give sqlite:///runs.db or postgresql://user@host/database"
    )


def _engine(address: str | sql.URL) -> sql.Engine:
    try:
        url = sql.make_url(address)
    except (SQLAlchemyError, ValueError):  # the message may contain the password
        raise JournalError(
            "the address of the database isn't a URL; use sqlite:///runs.db or "
            "postgresql://user@host/database, and write characters such as @ and / in a password "
            "as %40, %2F"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in _KINDS:
        raise _unsupported(url.drivername)
    limits: dict[str, Any] = {}
    if url.drivername == "postgresql+psycopg" and "connect_timeout" not in url.query:
        limits = {"connect_args": {"connect_timeout": _CONNECT_SECONDS}}
    try:
        return sql.create_engine(url, poolclass=sql.NullPool, hide_parameters=True, **limits)
    except NoSuchModuleError:
        raise JournalError(
            f"{_url_text(url)}: SQLAlchemy knows no {url.drivername!r}; give sqlite:///runs.db or "
            "postgresql://user@host/database"
        ) from None
    except ImportError as error:
        raise MergepointError(
            f"{_url_text(url)} needs a driver that is not installed ({error}): "
            f"{install_command('postgres')}"
        ) from error


def _file_of(url: sql.URL) -> Path | None:
    if not url.database or url.database == ":memory:" or "mode=memory" in str(url):
        raise JournalError(
            "a database in memory ends with its process, as a journal must not; give a file, "
            "sqlite:///runs.db, or keep the run in memory with a MemoryJournal"
        )
    return None if url.database.startswith("file:") else Path(url.database).absolute()


def _url_text(url: sql.URL) -> str:
    """Return a URL without secrets in it."""
    return mask(url.difference_update_query(["password", "passfile"]).render_as_string())


def _fix_of(error: SQLAlchemyError) -> str:
    if "no such table" in str(error) or "UndefinedTable" in repr(error):
        return (
            "its tables are missing, though they existed: restore them, or start a new run, which "
            "creates them"
        )
    return (
        "make sure that the database exists, that its address is right, and that the user may "
        "read and write it"
    )


# A log has a row for its first line and a row for each other one, with the bytes that a file would
# have: checksum and body. So files and databases share encoding, checks and repair.


class LineTables:
    """Two tables of logs: one for their first lines, by the log's key, and one for the others."""

    def __init__(self, tables: sql.MetaData, *, first: str, rest: str, key: str) -> None:
        self.first = sql.Table(
            first,
            tables,
            sql.Column(key, sql.String, primary_key=True),
            sql.Column("created_at", sql.String, nullable=False),
            sql.Column("checksum", sql.String(8), nullable=False),
            sql.Column("header", sql.LargeBinary, nullable=False),
        )
        self.rest = sql.Table(
            rest,
            tables,
            sql.Column(key, sql.ForeignKey(self.first.c[key]), primary_key=True),
            sql.Column("n", sql.Integer, primary_key=True, autoincrement=False),
            sql.Column("checksum", sql.String(8), nullable=False),
            sql.Column("body", sql.LargeBinary, nullable=False),
        )
        self.key = key

    def first_row(self, key: str, line: bytes) -> dict[str, Any]:
        """Return the row of a log's first line."""
        header = decode(line)
        return {
            self.key: key,
            "created_at": _utc(header),
            "checksum": line[:8].decode(),
            "header": line[9:-1],
        }

    def row(self, key: str, n: int, line: bytes) -> dict[str, Any]:
        """Return the row of another line, which are counted from 1."""
        return {self.key: key, "n": n, "checksum": line[:8].decode(), "body": line[9:-1]}

    def keys(self, condition: sql.ColumnElement[bool] | None = None) -> sql.Select[Any]:
        """Return the query for the keys of logs."""
        keys = sql.select(self.first.c[self.key])
        return keys if condition is None else keys.where(condition)

    def delete(self, connection: sql.Connection, keys: Sequence[str]) -> None:
        """Delete logs."""
        # The other rows refer to the first ones by a foreign key, so they are deleted first.
        for table in (self.rest, self.first) if keys else ():
            statement = table.delete().where(table.c[self.key] == sql.bindparam("log"))
            connection.execute(statement, [{"log": key} for key in keys])


def _utc(header: dict[str, Any]) -> str:
    created_at = header.get("created_at")
    if created_at is None:
        return ""
    moment = datetime.fromisoformat(created_at).astimezone(UTC)
    return moment.isoformat(timespec="microseconds")


@contextmanager
def write_transaction(
    database: Database, connection: sql.Connection, *, flush: bool, lock: str = ""
) -> Iterator[Callable[[], None]]:
    """Begin a write transaction and yield its commit; without commit it is rolled back.

    Args:
        database: The database.
        connection: A connection to it.
        flush: Let commits in SQLite survive a power failure; PostgreSQL's server decides itself.
        lock: A name; transactions with it wait for each other. SQLite locks the whole file.
    """
    open_transaction = True
    is_sqlite = database.kind == "sqlite"
    if is_sqlite:
        set_up_sqlite(connection, flush=flush)
    # IMMEDIATE takes SQLite's write lock now. A transaction that reads first and then writes fails
    # without waiting if another process has written in between.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_sqlite else "BEGIN")

    def commit() -> None:
        nonlocal open_transaction
        connection.exec_driver_sql("COMMIT")
        open_transaction = False

    try:
        if lock and not is_sqlite:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'")
            key = _key_of(connection, lock)
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(key)))
        yield commit
    finally:
        if open_transaction and not connection.invalidated:
            with suppress(SQLAlchemyError):
                connection.exec_driver_sql("ROLLBACK")


def set_up_sqlite(connection: sql.Connection, *, flush: bool) -> None:
    """Allow reading during writes; with `flush`, commits survive a power failure.

    Without it they survive a crash of the process.
    """
    # WAL isn't available on every file system. Without WAL, NORMAL may damage the file in a power
    # failure, so there every commit is flushed.
    mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar()
    level = "FULL" if flush or mode != "wal" else "NORMAL"
    connection.exec_driver_sql(f"PRAGMA synchronous = {level}")


class TableLog:
    """A log in a database, whose appends are transactions that no other process interrupts.

    Args:
        database: The database.
        tables: Its tables for this kind of log.
        key: The log's key in them.
        place: The name of the log, in errors.
        remedy: What to do about a damaged line, in errors.
        flush: Flush every append.
        owner: The tables and the key of a log that must exist when this one is written.
    """

    def __init__(
        self,
        database: Database,
        tables: LineTables,
        key: str,
        *,
        place: str,
        remedy: str,
        flush: bool = False,
        owner: tuple[LineTables, str] | None = None,
    ) -> None:
        self.database = database
        self.tables = tables
        self.key = key
        self.place = f"{place} in {database.name}"
        self.remedy = remedy
        self._flush = flush
        self._owner = owner

    def where(self, number: int) -> str:
        """Return the place of a line: the header, or the number of a record."""
        return "its header" if number == 1 else f"record {number - 1}"

    def exists(self) -> bool:
        """Return whether the log exists, without creating a database file."""
        if not self.database.exists():
            return False
        query = self.tables.keys(self.tables.first.c[self.tables.key] == self.key)
        with self.database.connected() as connection, self.database.errors("read"):
            return connection.execute(query).first() is not None

    def create(self, lines: Sequence[bytes]) -> bool:
        """Create the log with lines, all or none. Return False if it exists."""
        self.database.make()
        with self._transaction(flush=True, act="write to") as (connection, commit):
            try:
                connection.execute(
                    self.tables.first.insert(), self.tables.first_row(self.key, lines[0])
                )
                self.insert(connection, lines[1:], after=0)
            except IntegrityError:
                return False
            commit()
        return True

    def since(self, mark: Mark = START, *, most: int | None = None) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark, and the mark after them."""
        with self.database.connected() as connection:
            return self.read(connection, mark, most=most)

    def last(self) -> bytes | None:
        """Return the last line, or None if there is none but the first."""
        rest = self.tables.rest
        query = self._rest().order_by(None).order_by(rest.c.n.desc()).limit(1)
        with self.database.connected() as connection, self.database.errors("read"):
            found = connection.execute(query).first()
        return None if found is None else _line(found.checksum, found.body)

    def whole(self) -> list[LogLine]:
        """Return all lines, also missing ones."""
        with self.database.connected() as connection:
            return self.read_whole(connection)

    @contextmanager
    def locked(self, *, flush: bool) -> Iterator[LockedRows]:
        """Lock the log for writing; others wait."""
        flush = flush or self._flush
        with self._transaction(flush=flush, act="lock rows in") as (connection, commit):
            yield LockedRows(self, connection, commit)

    def read(
        self, connection: sql.Connection, mark: Mark, *, most: int | None = None
    ) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark over a connection, and the mark after them."""
        after = max(0, mark.number - 1)
        with self.database.errors("read"):
            first = connection.execute(self._first()).one_or_none()
            rows = connection.execute(self._rest(after).limit(most)).all()
        if first is None:
            raise JournalError(f"{self.place} doesn't exist any more; it was deleted")
        header = _line(first.checksum, first.header)
        # A repair writes another header, so rows after the same header are those of the same log.
        if mark.first not in (b"", header):
            raise JournalError(
                f"{self.place} was replaced since it was opened, as by a repair; open it again"
            )
        lines = [] if mark.number else [header]
        for n, found in enumerate(rows, after + 1):
            if found.n != n:
                raise line_fault(self.place, self.where(n + 1), "it is missing", self.remedy)
            lines.append(_line(found.checksum, found.body))
        return lines[:most], Mark(0, mark.number + len(lines[:most]), header)

    def read_whole(self, connection: sql.Connection) -> list[LogLine]:
        """Return all lines over a connection, also missing ones."""
        with self.database.errors("read"):
            first = connection.execute(self._first()).one_or_none()
            rows = connection.execute(self._rest()).all()
        if first is None:
            raise JournalError(f"there is no {self.place}")
        found = {row.n: _line(row.checksum, row.body) for row in rows}
        rest = (
            LogLine(self.where(n + 1), found.get(n)) for n in range(1, max(found, default=0) + 1)
        )
        return [LogLine(self.where(1), _line(first.checksum, first.header)), *rest]

    def insert(self, connection: sql.Connection, lines: Sequence[bytes], *, after: int) -> None:
        """Insert lines after the row with a number."""
        rows = [self.tables.row(self.key, n, line) for n, line in enumerate(lines, after + 1)]
        if rows:
            connection.execute(self.tables.rest.insert(), rows)

    def _first(self) -> sql.Select[Any]:
        first = self.tables.first
        return sql.select(first).where(first.c[self.tables.key] == self.key)

    def _rest(self, after: int = 0) -> sql.Select[Any]:
        rest = self.tables.rest
        own = rest.c[self.tables.key] == self.key
        return sql.select(rest).where(own, rest.c.n > after).order_by(rest.c.n)

    @contextmanager
    def _transaction(
        self, *, flush: bool, act: str
    ) -> Iterator[tuple[sql.Connection, Callable[[], None]]]:
        database = self.database
        with (
            database.connected() as connection,
            database.errors(act),
            write_transaction(
                database, connection, flush=flush, lock=f"log {self.tables.key} {self.key}"
            ) as commit,
        ):
            self._check_owner(connection)
            yield connection, commit

    def _check_owner(self, connection: sql.Connection) -> None:
        if self._owner is None:
            return
        tables, key = self._owner
        # The row is locked until the commit: PostgreSQL would otherwise let another transaction
        # delete the owner before this one's rows are visible to it.
        query = tables.keys(tables.first.c[tables.key] == key).with_for_update(read=True)
        if connection.execute(query).first() is None:
            raise JournalError(
                f"{key!r} doesn't exist in {self.database.name} any more; nothing is stored there"
            )


class LockedRows:
    """The rows of a log while one writer has locked it; one append or replacement is possible."""

    def __init__(
        self, log: TableLog, connection: sql.Connection, commit: Callable[[], None]
    ) -> None:
        self._log = log
        self._connection = connection
        self._commit = commit

    def since(self, mark: Mark) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark."""
        return self._log.read(self._connection, mark)

    def append(self, mark: Mark, lines: Sequence[bytes]) -> Mark:
        """Write lines, one row each, and commit; return the new end."""
        log = self._log
        fix = "its earlier rows are unchanged. Make sure that the database has room, then try again"
        with log.database.errors(f"write to {log.place}, in", fix):
            try:
                log.insert(self._connection, lines, after=mark.number - 1)
                self._commit()
            except IntegrityError:
                raise JournalError(
                    f"{log.place} was deleted, or written without its lock; open it again"
                ) from None
        return Mark(0, mark.number + len(lines), mark.first)

    def whole(self) -> list[LogLine]:
        """Return all lines, also missing ones."""
        return self._log.read_whole(self._connection)

    def replace(self, lines: Sequence[bytes]) -> tuple[str, Mark]:
        """Replace all rows, keep the old ones under another key, and return it and the new end."""
        log, tables, execute = self._log, self._log.tables, self._connection.execute
        copy = f"{log.key[:80]}_damaged_{os.urandom(4).hex()}"
        first, rest = tables.first, tables.rest
        others = [column for column in first.c if column.name != tables.key]
        old = sql.select(sql.literal(copy), *others).where(first.c[tables.key] == log.key)
        with log.database.errors("repair a log in"):
            # The rows refer to their header: its copy is there before they move to it.
            names = [tables.key, *(column.name for column in others)]
            execute(first.insert().from_select(names, old))
            execute(rest.update().where(rest.c[tables.key] == log.key).values({tables.key: copy}))
            header = tables.first_row(log.key, lines[0])
            execute(first.update().where(first.c[tables.key] == log.key).values(header))
            log.insert(self._connection, lines[1:], after=0)
            self._commit()
        return copy, Mark(0, len(lines), lines[0])


def _line(checksum: str, body: bytes) -> bytes:
    return b"%s %s\n" % (checksum.encode(), body)


# One process writes a run at a time, under a lock that ends with its process. A row that names the
# writer would survive a crash. In PostgreSQL it is an advisory lock of the writer's session: the
# server releases it with the connection, so no process writes without it. SQLite has no named
# locks, so there it is a file next to the database, locked like journals on disk.


_PATIENCE = "500ms"  # enough for the server to notice that a killed process is gone


_sessions: WeakSet[sql.Connection] = WeakSet()


def _drop_in_child() -> None:
    """Take the connections that lock runs from a forked child.

    The server releases a lock when all copies of its connection are closed, so a child would keep
    the run locked after its parent's death. The socket's number is redirected to /dev/null: what
    the driver sends when the child ends goes there, and not to the parent's session.
    """
    for connection in list(_sessions):
        with suppress(Exception):  # a connection that is lost has no socket
            socket = connection.connection.dbapi_connection.fileno()  # type: ignore[union-attr]
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, socket, inheritable=False)
            os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_in_child)


@dataclass(frozen=True, slots=True)
class RunLock:
    """A run that this process has locked, and the connection to write it."""

    connection: sql.Connection
    unlock: Callable[[], None]

    def close(self, database: Database) -> None:
        """Unlock the run and close the connection. Raises JournalError if that fails."""
        try:
            with database.errors("unlock a run in"):
                self.unlock()
        finally:
            close_quietly(self.connection)


def lock_run(database: Database, run_id: str, *, what: str = "run") -> RunLock:
    """Lock a run, or another name of a `what`. Raises JournalError while it is locked."""
    connection = database.private_connection()
    take = _by_file if database.kind == "sqlite" else _by_session
    try:
        with database.errors(f"lock a {what} in"):
            return RunLock(connection, take(database, connection, run_id, what))
    except BaseException:
        close_quietly(connection)
        raise


def is_run_locked(database: Database, run_id: str) -> bool:
    """Return whether a process writes a run now."""
    with database.connected() as connection, database.errors("look at the locks of"):
        if database.kind == "sqlite":
            return is_locked(_lock_of(connection, run_id))
        return _session(connection, _key_of(connection, run_id)) is not None


def _by_file(_: Database, connection: sql.Connection, name: str, what: str) -> Callable[[], None]:
    path = _lock_of(connection, name)
    try:
        file = open_locked(path, what=f"the {what}")
    except JournalError:  # may be an OSError too
        raise
    except OSError as error:
        raise JournalFileError(
            f"cannot make the lock of the {what}, {path}: {error.strerror}; let the database be in "
            "a folder that can be written",
            error,
            path,
        ) from error
    return partial(remove_locked, file, path)


def _by_session(
    database: Database, connection: sql.Connection, name: str, what: str
) -> Callable[[], None]:
    key = _key_of(connection, name)
    connection.exec_driver_sql(f"SET lock_timeout = '{_PATIENCE}'")
    try:
        connection.execute(sql.select(sql.func.pg_advisory_lock(key)))
    except OperationalError as error:
        # 55P03 is lock_not_available: the lock_timeout has passed.
        if getattr(error.orig, "sqlstate", None) != "55P03":
            raise
        raise JournalError(
            f"{database.name}: {what} {name!r} is being written by another session"
            f"{_holder(connection, key)}; wait until it has ended, or stop it, and try again"
        ) from None
    connection.exec_driver_sql("RESET lock_timeout")
    _sessions.add(connection)

    def unlock() -> None:
        _sessions.discard(connection)
        if not connection.invalidated:  # a lost connection has lost its locks
            connection.execute(sql.select(sql.func.pg_advisory_unlock(key)))

    return unlock


def _lock_of(connection: sql.Connection, name: str) -> Path:
    """Return the lock file next to an SQLite database for a name."""
    main = str(connection.exec_driver_sql("PRAGMA database_list").one()[2])
    return Path(f"{main}.{name}.lock")


def _key_of(connection: sql.Connection, name: str) -> int:
    """Return the number of the advisory lock for a name."""
    # Advisory locks belong to the whole database, and tables to a schema in it.
    schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    digest = hashlib.blake2b(f"mergepoint {schema} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _holder(connection: sql.Connection, key: int) -> str:
    """Return which server process holds a lock, and its client's address, as text."""
    found = _session(connection, key)
    if found is None:
        return ""
    return f" (server process {found[0]}{f', client {found[1]}' if found[1] else ''})"


def _session(connection: sql.Connection, key: int) -> Any:
    """Return process and client address of the session that holds a lock, or None."""
    # PostgreSQL splits a 64-bit key into classid and objid, and marks it with objsubid 1.
    query: Any = sql.text(
        "SELECT a.pid, a.client_addr FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
        "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
        "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND l.classid::bigint = :high AND l.objid::bigint = :low"
    )
    parts = {"high": key >> 32 & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}
    return connection.execute(query, parts).first()
