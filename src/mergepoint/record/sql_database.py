"""Database: the tables of runs and records in SQLite or PostgreSQL, and how they are reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from mergepoint.core.errors import MergepointError
from mergepoint.record.lines import JournalError
from mergepoint.record.redact import MASK, mask

_KINDS = ("sqlite", "postgresql")
_BUSY_SECONDS = 30
_CONNECT_SECONDS = 10
_MAKING = 0x6D65726765  # the advisory lock under which tables are made in PostgreSQL


def line_tables(
    tables: sql.MetaData, *, firsts: str, key: str, rest: str
) -> tuple[sql.Table, sql.Table]:
    """Give two tables for lines: the first line of each file, by its id, and those that follow."""
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
    """A database, by its URL or as an engine of one's own, and the tables that are kept in it.

    Raises MergepointError for a driver that is not installed, and JournalError for an address
    that is no database of the two kinds.
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
        """Tell what the database says as a JournalError, without passwords and parameters."""
        try:
            yield
        except SQLAlchemyError as error:
            said = error.orig if isinstance(error, DBAPIError) and error.orig else error
            reason = " ".join(str(said).split())
            if self._password:
                reason = reason.replace(str(self._password), MASK)
            raise JournalError(
                f"cannot {act} {self.name}: {mask(reason)}; {way_out or _way_out(error)}"
            ) from None  # the cause would show the statement with what was to be written

    @contextmanager
    def connected(self) -> Iterator[sql.Connection]:
        """Give a connection for a moment, each statement a transaction of its own."""
        with self.told("reach"), self._engine.connect() as connection:
            self._settled(connection)
            yield connection

    def held(self) -> sql.Connection:
        """Give a connection that belongs to the caller alone, outside of any pool."""
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
        """Say whether the tables are there; a file is not made by asking."""
        if self._made:
            return True
        if self._file is not None and not self._file.exists():
            return False
        with self.connected() as connection:
            self._made = all(map(sql.inspect(connection).has_table, self._tables.tables))
        return self._made

    def make(self) -> None:
        """Make the file and the tables where they are missing."""
        if self.exists():
            return
        if self._file is not None:
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise JournalError(f"cannot make the folder of {self.name}: {error}") from error
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
        """Keep others from making the same tables; SQLite sees to that itself."""
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
    """Close a connection, also one that is broken."""
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
    except (SQLAlchemyError, ValueError):  # what it says may hold the password
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
            "pip install 'mergepoint[postgres]'"
        ) from error


def _file_of(url: sql.URL) -> Path | None:
    if not url.database or url.database == ":memory:" or "mode=memory" in str(url):
        raise JournalError(
            "a database in memory ends with its process, as a journal must not; give a file, "
            "sqlite:///runs.db, or keep the run in memory with a MemoryJournal"
        )
    return None if url.database.startswith("file:") else Path(url.database).absolute()


def _shown(url: sql.URL) -> str:
    """Give a URL without anything secret in it."""
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
