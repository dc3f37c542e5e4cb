"""Journals in a database: SQLite or PostgreSQL."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any, Self
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
        f"journals in SQL need SQLAlchemy, which is not installed: {install_command('sql')}"
    ) from error

from mergepoint.journal.file_locks import is_locked, open_locked, remove_locked
from mergepoint.journal.lines import JournalError, JournalFileError, decode
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.journal.records import CallRecord, record_from_plain, record_to_plain
from mergepoint.journal.redact import MASK, Redact, encode_safe, mask
from mergepoint.journal.stores import (
    FORMAT,
    RunHeader,
    Sync,
    check_format,
    checked_run_id,
    checked_sync,
    known_run,
    parsed,
    unknown_run,
    without_starts,
)
from mergepoint.journal.writer import Writer

_KINDS = ("sqlite", "postgresql")
_BUSY_SECONDS = 30
_CONNECT_SECONDS = 10
_MAKING = 0x6D65726765  # the advisory lock for creating tables in PostgreSQL


def line_tables(
    tables: sql.MetaData, *, firsts: str, key: str, rest: str
) -> tuple[sql.Table, sql.Table]:
    """Return two tables for lines: the first line of each file, by its id, and the other lines."""
    first = sql.Table(
        firsts,
        tables,
        sql.Column(key, sql.String, primary_key=True),
        sql.Column("format", sql.String, nullable=False),
        sql.Column("created_at", sql.String, nullable=False),
        sql.Column("checksum", sql.String(8), nullable=False),
        sql.Column("header", sql.LargeBinary, nullable=False),
    )
    following = sql.Table(
        rest,
        tables,
        sql.Column(key, sql.ForeignKey(first.c[key]), primary_key=True),
        sql.Column("n", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("checksum", sql.String(8), nullable=False),
        sql.Column("body", sql.LargeBinary, nullable=False),
    )
    return first, following


_TABLES = sql.MetaData()
RUNS, RECORDS = line_tables(
    _TABLES, firsts="mergepoint_runs", key="run_id", rest="mergepoint_records"
)


class Database:
    """A database, by its URL or a custom engine, and the tables in it.

    Raises MergepointError if the driver is not installed, and JournalError for the address of
    another kind of database.
    """

    def __init__(
        self, address: str | sql.URL | sql.Engine, *, tables: sql.MetaData = _TABLES
    ) -> None:
        self._tables = tables
        engine = address if isinstance(address, sql.Engine) else _engine(address)
        self.kind = engine.dialect.name
        if self.kind not in _KINDS or engine.dialect.is_async:
            raise _strange(f"{engine.dialect.name}+{engine.dialect.driver}")
        self._password = engine.url.password
        self._file = _file_of(engine.url) if self.kind == "sqlite" else None
        self.name = _shown(engine.url)
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._made = False

    @contextmanager
    def told(self, act: str, way_out: str = "") -> Iterator[None]:
        """Raise errors of the database as JournalError, without passwords and parameters."""
        try:
            yield
        except SQLAlchemyError as error:
            said = error.orig if isinstance(error, DBAPIError) and error.orig else error
            reason = " ".join(str(said).split())
            if self._password:
                reason = reason.replace(str(self._password), MASK)
            raise JournalError(
                f"cannot {act} {self.name}: {mask(reason)}; {way_out or _way_out(error)}"
            ) from None  # the cause would show the statement with the data in it

    @contextmanager
    def connected(self) -> Iterator[sql.Connection]:
        """Yield a connection for a short time; each statement is a transaction of its own."""
        with self.told("reach"), self._engine.connect() as connection:
            self._settled(connection)
            yield connection

    def held(self) -> sql.Connection:
        """Return a connection that belongs only to the caller, outside any pool."""
        with self.told("reach"):
            connection = self._engine.connect()
            try:
                connection.detach()
                self._settled(connection)
            except BaseException:
                dropped(connection)
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
            self.told("make tables in"),
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
        connection.execute(sql.select(sql.func.pg_advisory_lock(_MAKING)))
        try:
            yield
        finally:
            connection.execute(sql.select(sql.func.pg_advisory_unlock(_MAKING)))

    def _settled(self, connection: sql.Connection) -> None:
        if self.kind == "sqlite":
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")


def dropped(connection: sql.Connection) -> None:
    """Close a connection, even a broken one."""
    with suppress(SQLAlchemyError):
        connection.close()


def _strange(driver: str) -> JournalError:
    return JournalError(
        f"journals are kept in SQLite or PostgreSQL, by a driver that is not async, and not in "
        f"{driver}; give sqlite:///runs.db or postgresql://user@host/database"
    )


def _engine(address: str | sql.URL) -> sql.Engine:
    try:
        url = sql.make_url(address)
    except (SQLAlchemyError, ValueError):  # the message may contain the password
        raise JournalError(
            "the address of the database is no URL; give sqlite:///runs.db or "
            "postgresql://user@host/database, with signs such as @ and / in a password as %40, %2F"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in _KINDS:
        raise _strange(url.drivername)
    limits: dict[str, Any] = {}
    if url.drivername == "postgresql+psycopg" and "connect_timeout" not in url.query:
        limits = {"connect_args": {"connect_timeout": _CONNECT_SECONDS}}
    try:
        return sql.create_engine(url, poolclass=sql.NullPool, hide_parameters=True, **limits)
    except NoSuchModuleError:
        raise JournalError(
            f"{_shown(url)}: SQLAlchemy knows no {url.drivername!r}; give sqlite:///runs.db or "
            "postgresql://user@host/database"
        ) from None
    except ImportError as error:
        raise MergepointError(
            f"{_shown(url)} needs a driver that is not installed ({error}): "
            f"{install_command('postgres')}"
        ) from error


def _file_of(url: sql.URL) -> Path | None:
    if not url.database or url.database == ":memory:" or "mode=memory" in str(url):
        raise JournalError(
            "a database in memory ends with its process, as a journal must not; give a file, "
            "sqlite:///runs.db, or keep the run in memory with a MemoryJournal"
        )
    return None if url.database.startswith("file:") else Path(url.database).absolute()


def _shown(url: sql.URL) -> str:
    """Return a URL without secrets in it."""
    return mask(url.difference_update_query(["password", "passfile"]).render_as_string())


def _way_out(error: SQLAlchemyError) -> str:
    if "no such table" in str(error) or "UndefinedTable" in repr(error):
        return (
            "its tables are missing, though they were there: restore them, or begin anew, which "
            "makes them"
        )
    return (
        "see that the database is there, that the address is right, and that the user may read "
        "and write it"
    )


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
class HeldRun:
    """A run that this process has locked, and the connection to write it."""

    connection: sql.Connection
    let_go: Callable[[], None]

    def close(self, database: Database) -> None:
        """Unlock the run and close the connection. Raises JournalError if that fails."""
        try:
            with database.told("let go of a run in"):
                self.let_go()
        finally:
            dropped(self.connection)


def hold_run(database: Database, run_id: str, *, what: str = "run") -> HeldRun:
    """Lock a run, or another name of a `what`. Raises JournalError while it is locked."""
    connection = database.held()
    take = _by_file if database.kind == "sqlite" else _by_session
    try:
        with database.told(f"lock a {what} in"):
            return HeldRun(connection, take(database, connection, run_id, what))
    except BaseException:
        dropped(connection)
        raise


def held_run(database: Database, run_id: str) -> bool:
    """Return whether a process writes a run now."""
    with database.connected() as connection, database.told("look at the locks of"):
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
    query: Any = sql.text(
        "SELECT a.pid, a.client_addr FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
        "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
        "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND l.classid::bigint = :high AND l.objid::bigint = :low"
    )
    parts = {"high": key >> 32 & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}
    return connection.execute(query, parts).first()


class SqlJournal:
    """The journal of a run that this process has locked; SqlStore returns it.

    After `append` returns, the record survives a crash of the process. Against a power failure,
    PostgreSQL flushes each record, and SQLite flushes as a file does (see `Sync`). It is safe to
    write from several threads.
    """

    keyed = True

    def __init__(
        self,
        database: Database,
        held: HeldRun,
        header: RunHeader,
        records: Iterable[CallRecord],
        sync: Sync,
        redact: Redact | None,
        *,
        rows: int = 0,
    ) -> None:
        self.header = header
        self.place = f"run {header.run_id!r} in {database.name}"
        self._database = database
        self._held = held
        self._records = list(records)
        self._rows = rows
        self._sync = sync
        self._redact = redact
        self._owner = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self.writer = Writer()

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return all records in the order in which they were written."""
        with self._lock:
            return tuple(self._records)

    def append(self, record: CallRecord) -> None:
        """Write one record: completely, or not at all.

        Raises JournalError if it is not written. If the database was full or busy, later appends
        work. If the connection was lost, resume the run, because another process may have locked
        it.
        """
        if record.key.run != self.header.run_id:
            raise JournalError(
                f"{self.place}: the record of {record.key.full_path} is of run "
                f"{record.key.run!r}; give each run a journal of its own"
            )
        what = f"the record of {record.key.full_path}"
        line = safe_line(record_to_plain(record), self._redact, self.place, what)
        with self._lock:
            self._check()
            self._write(self._rows + 1, line)
            self._rows += 1
            if not record.begun:
                self._records.append(record)
            if record.at_edge:
                self._flush()

    def close(self) -> None:
        """Flush the journal and unlock the run; a second call does nothing."""
        try:
            self.writer.close()
        finally:
            self._close()

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._owner != os.getpid():
                return
            try:
                if not self._held.connection.invalidated:
                    self._flush()
            finally:
                self._held.close(self._database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        state = ""
        if self._closed:
            state = "is closed"
        elif self._owner != os.getpid():
            state = "belongs to the process that opened it"
        elif self._held.connection.invalidated:
            state = "has lost its connection, and with it its hold on the run"
        if state:
            raise JournalError(f"the journal of {self.place} {state}; open it again to go on")

    def _write(self, n: int, line: bytes) -> None:
        way_out = (
            "what it held before is kept. See that the database is there and has room, then resume "
            "the run"
        )
        with self._database.told(f"write record {n} of run {self.header.run_id!r} to", way_out):
            try:
                self._held.connection.execute(
                    RECORDS.insert(), {"run_id": self.header.run_id, "n": n, **row(line)}
                )
            except IntegrityError:
                raise JournalError(
                    f"{self.place} has a record {n} already, which another process wrote; stop one "
                    "of the two, then resume the run"
                ) from None

    def _flush(self) -> None:
        with self._database.told("flush"):
            flush(self._held.connection, self._database, self._sync)


def flush(connection: sql.Connection, database: Database, sync: Sync) -> None:
    """Flush SQLite's log; PostgreSQL flushes every record itself."""
    if database.kind == "sqlite" and sync == "edges":
        connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")


def safe_line(plain: dict[str, Any], redact: Redact | None, place: str, what: str) -> bytes:
    """Return plain data as a line without secrets. Raises JournalError with the place."""
    try:
        return encode_safe(plain, redact)
    except JournalError as error:
        raise JournalError(f"{place}: {what} cannot be written: {error}") from error


def row(line: bytes, column: str = "body") -> dict[str, Any]:
    """Return a line's checksum and body as the columns of a row."""
    return {"checksum": line[:8].decode(), column: line[9:-1]}


_RESTORE = "it was changed after it was written: restore the row from a backup, or begin a new run"


class SqlStore:
    """A store of runs in a database, by its URL (`sqlite:///runs.db`) or an SQLAlchemy engine.

    The tables are created with the first run.

    Args:
        address: The URL, or an engine.
        sync: When SQLite flushes; PostgreSQL flushes as its server is configured.
        redact: A hook that may change texts before they are written.

    Raises:
        MergepointError: The driver is not installed.
        JournalError: The address is of another kind of database.
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
        self._database = Database(address)

    def create(self, header: RunHeader) -> SqlJournal:
        """Create the journal of a new run, and file and tables if they are missing.

        Raises JournalError if the id is taken, or if writing fails.
        """
        run_id = checked_run_id(header.run_id)
        place = f"run {run_id!r} in {self}"
        plain = header.to_plain()
        line = safe_line(plain, self.redact, place, "the header of the run")
        parsed(
            place, 1, RunHeader.from_plain, plain, unit="row"
        )  # fail now instead of when the run is resumed
        self._database.make()
        if self.has(run_id):
            raise known_run(self, run_id)
        held = self._hold(run_id)
        try:
            self._begin(held.connection, header, line)
        except BaseException:
            held.close(self._database)
            raise
        return SqlJournal(self._database, held, header, (), self.sync, self.redact)

    def open(self, run_id: str) -> SqlJournal:
        """Open a run to append to it. Raises JournalError if it is missing, locked, or changed."""
        if not self.has(run_id):
            raise unknown_run(self, run_id, self.runs())
        held = self._hold(run_id)
        try:
            header, records = self._read(run_id)
        except BaseException:
            held.close(self._database)
            raise
        journal = held, header, outcomes(records)
        return SqlJournal(self._database, *journal, self.sync, self.redact, rows=len(records))

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of a run; it is neither locked nor changed.

        Raises JournalError if the run does not exist, or was changed.
        """
        header, records = self._read(run_id)
        return header, without_starts(records, lambda: self.held(run_id))

    def _read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and all records of a run, including the starts of calls."""
        place = f"run {checked_run_id(run_id)!r} in {self}"
        headers = self._rows(sql.select(RUNS).where(RUNS.c.run_id == run_id))
        if not headers:
            raise unknown_run(self, run_id, self.runs())
        check_format(place, headers[0].format)
        plain = _decoded(f"{place}, its header", headers[0].checksum, headers[0].header)
        header = parsed(place, 0, RunHeader.from_plain, plain, unit="row")
        records: list[CallRecord] = []
        for n, found in enumerate(self._records(run_id), 1):
            if found.n != n:
                raise self._gap(run_id, n)
            plain = _decoded(f"{place}, record {n}", found.checksum, found.body)
            records.append(parsed(place, n, record_from_plain, plain, run_id, unit="record"))
        return header, tuple(records)

    def has(self, run_id: str) -> bool:
        """Return whether a run with this id has begun. Raises JournalError for an invalid id."""
        known = sql.select(RUNS.c.run_id).where(RUNS.c.run_id == checked_run_id(run_id))
        return bool(self._rows(known))

    def held(self, run_id: str) -> bool:
        """Return whether a process writes a run now; False if the run does not exist."""
        return self.has(run_id) and held_run(self._database, run_id)

    def lines(self, run_id: str, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield number and line of a run's rows, as a file would contain them; the header is 1.

        Raises JournalError if the run does not exist, and if a row is missing.
        """
        if not after:
            headers = self._rows(sql.select(RUNS).where(RUNS.c.run_id == checked_run_id(run_id)))
            if not headers:
                raise unknown_run(self, run_id, self.runs())
            yield 1, _line(headers[0].checksum, headers[0].header)
        first = max(1, after)
        for n, found in enumerate(self._records(run_id, first), first):
            if found.n != n:
                raise self._gap(run_id, n)
            yield n + 1, _line(found.checksum, found.body)

    def runs(self) -> Sequence[str]:
        """Return the ids of all runs, the latest first."""
        rows = self._rows(sql.select(RUNS.c.created_at, RUNS.c.run_id))
        return [run_id for _, run_id in sorted(map(tuple, rows), reverse=True)]

    def folder_of(self, run_id: str) -> None:
        """Return None: a database has no folders."""

    def __str__(self) -> str:
        return self._database.name

    def _records(self, run_id: str, first: int = 1) -> Sequence[Any]:
        own = sql.select(RECORDS).where(RECORDS.c.run_id == run_id, RECORDS.c.n >= first)
        return self._rows(own.order_by(RECORDS.c.n))

    def _gap(self, run_id: str, n: int) -> JournalError:
        return JournalError(f"run {run_id!r} in {self}, record {n} is missing; {_RESTORE}")

    def _hold(self, run_id: str) -> HeldRun:
        held = hold_run(self._database, run_id)
        if self._database.kind == "sqlite":
            try:
                with self._database.told("set up"):
                    _set_up(held.connection, self.sync)
            except BaseException:
                held.close(self._database)
                raise
        return held

    def _begin(self, connection: sql.Connection, header: RunHeader, line: bytes) -> None:
        about = {
            "run_id": header.run_id,
            "format": FORMAT,
            "created_at": header.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
        }
        with self._database.told("write the header of a run to"):
            try:
                connection.execute(RUNS.insert(), about | row(line, "header"))
            except IntegrityError:
                raise known_run(self, header.run_id) from None
            flush(connection, self._database, self.sync)

    def _rows(self, query: sql.Select[Any]) -> Sequence[Any]:
        if not self._database.exists():
            return ()
        with self._database.connected() as connection, self._database.told("read"):
            return connection.execute(query).all()


def _set_up(connection: sql.Connection, sync: Sync) -> None:
    """Allow reading during writes, and set the flushing that `sync` promises."""
    mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar()
    level = "NORMAL" if mode == "wal" and sync == "edges" else "FULL"
    connection.exec_driver_sql(f"PRAGMA synchronous = {level}")


def _line(checksum: str, body: bytes) -> bytes:
    return b"%s %s\n" % (checksum.encode(), body)


def _decoded(place: str, checksum: str, body: bytes) -> dict[str, Any]:
    try:
        return decode(_line(checksum, body))
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{place}: {error}; {_RESTORE}") from error
