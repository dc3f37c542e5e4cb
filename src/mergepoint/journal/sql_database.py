"""SQLite and PostgreSQL: a database, the version of its tables, and what is tried again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from mergepoint.journal.checked_lines import JournalError, JournalFileError
from mergepoint.journal.line_logs import PATIENCE
from mergepoint.journal.redact import MASK, mask
from mergepoint.journal.sql_engines import (
    CreateTable,
    DBAPIError,
    SharedEngine,
    SQLAlchemyError,
    answered,
    close_quietly,
    is_connecting,
    is_unavailable,
    set_up_sqlite,
    shared_engine,
    sql,
    url_of,
    url_text,
)
from mergepoint.journal.sqlite_errors import file_error_of

T = TypeVar("T")

RETRY_SECONDS = 60.0
"""Seconds for which a write is tried again while the server restarts or can't be reached."""

_VERSIONS = sql.Table(
    "mergepoint_schema",
    sql.MetaData(),
    sql.Column("part", sql.String, primary_key=True),
    sql.Column("version", sql.Integer, nullable=False),
)


class DatabaseUnavailable(JournalError):
    """The server could not be reached for as long as this process tries."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Tables, with a number that increases when tables or columns are added.

    Args:
        part: Its name in the table of versions.
        version: The number.
        tables: All tables of this version.
        original: The tables of version 1, which has no number in the database.
    """

    part: str
    version: int
    tables: sql.MetaData
    original: tuple[str, ...]


class Database:
    """A database, by its URL or a custom engine, and the tables in it.

    Args:
        address: The URL or engine.
        schema: The tables.
        retry_seconds: How long an operation is tried again while PostgreSQL is unavailable.

    Raises:
        MergepointError: The driver is not installed.
        JournalError: The address is of another kind of database.
    """

    def __init__(
        self,
        address: str | sql.URL | sql.Engine,
        *,
        schema: Schema,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        url = address.url if isinstance(address, sql.Engine) else url_of(address)
        self.name = url_text(url)
        self.engine: SharedEngine = shared_engine(address)
        self.kind = self.engine.kind
        self._password = url.password
        self._schema = schema
        self._retry_seconds = retry_seconds
        self._version = 0

    @contextmanager
    def errors(self, act: str, fix: str = "") -> Iterator[None]:
        """Raise errors of the database as JournalError, without passwords and parameters."""
        try:
            yield
        except SQLAlchemyError as error:
            # The cause would show the statement with the data in it.
            raise self._error(act, error, fix) from None

    @contextmanager
    def connected(self) -> Iterator[sql.Connection]:
        """Yield a connection for a short time; each statement is a transaction of its own."""
        connection = self._retried("reach", self._living)
        with self.errors("use"), connection:
            yield connection

    def attempt(
        self,
        act: str,
        work: Callable[[sql.Connection], T],
        *,
        fix: str = "",
        patience: float | None = None,
    ) -> T:
        """Return the result of work on a connection, which is repeated while the server is away.

        The work must be safe to repeat. Raises DatabaseUnavailable if the server stays away, and
        JournalError for other errors of the database.
        """

        def once() -> T:
            with self.engine.connect() as connection, answered(connection):
                return work(connection)

        return self._retried(act, once, fix=fix, patience=patience)

    def exists(self) -> bool:
        """Return whether the tables exist, without creating a database file.

        Raises JournalError for tables of a newer version.
        """
        return self.version() > 0

    def is_current(self) -> bool:
        """Return whether the tables exist and are of this version."""
        return self.version() == self._schema.version

    def version(self) -> int:
        """Return the version of the tables, or 0 if there are none.

        Raises JournalError for a newer version.
        """
        if self._version < self._schema.version:
            file = self.engine.file
            if file is not None and not file.exists():
                return 0
            self._version = self._checked(self.attempt("read the version of", self._found))
        return self._version

    def make(self) -> None:
        """Create the file and the tables if they are missing, and add those of a newer version."""
        if self.is_current():
            return
        if (file := self.engine.file) is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise JournalFileError(
                    f"cannot make the folder of {self.name}: {error}", error
                ) from error
        with (
            self.connected() as connection,
            self.errors("create tables in"),
            # IF NOT EXISTS isn't enough: two sessions may both find no table, and one of them
            # fails. The lock lets one session after the other look.
            write_transaction(self, connection, flush=True, lock="tables") as commit,
        ):
            self._checked(self._found(connection))
            for table in (_VERSIONS, *self._schema.tables.sorted_tables):
                connection.execute(CreateTable(table, if_not_exists=True))
            own = _VERSIONS.c.part == self._schema.part
            connection.execute(_VERSIONS.delete().where(own))
            row = {"part": self._schema.part, "version": self._schema.version}
            connection.execute(_VERSIONS.insert(), row)
            commit()
        self._version = self._schema.version

    def _living(self) -> sql.Connection:
        """Return a connection that the server answers on."""
        connection = self.engine.connect()
        if self.kind == "sqlite":  # was opened just now
            return connection
        try:
            with answered(connection):
                connection.exec_driver_sql("SELECT 1")
        except BaseException:
            close_quietly(connection)
            raise
        return connection

    def _found(self, connection: sql.Connection) -> int:
        has_table = sql.inspect(connection).has_table
        if has_table(_VERSIONS.name):
            query = sql.select(_VERSIONS.c.version).where(_VERSIONS.c.part == self._schema.part)
            version: int | None = connection.execute(query).scalar_one_or_none()
            if version is not None:
                return version
        return 1 if all(map(has_table, self._schema.original)) else 0

    def _checked(self, version: int) -> int:
        known = self._schema.version
        if version > known:
            raise JournalError(
                f"the tables of {self._schema.part} in {self.name} are of version {version}, and "
                f"this mergepoint knows versions up to {known}: update mergepoint"
            )
        return version

    def _retried(
        self, act: str, work: Callable[[], T], *, fix: str = "", patience: float | None = None
    ) -> T:
        seconds = self._retry_seconds if patience is None else patience
        deadline, pause = None, 0.05
        while True:
            try:
                return work()
            except SQLAlchemyError as error:
                deadline = deadline or time.monotonic() + seconds
                # A server that never answered is more likely a wrong address.
                if not self.engine.has_connected or not is_unavailable(error, self.kind):
                    raise self._error(act, error, fix) from None
                if time.monotonic() + pause > deadline:
                    raise self._unavailable(act, error, fix, seconds) from None
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _error(self, act: str, error: SQLAlchemyError, fix: str) -> JournalError:
        if is_connecting(error):
            act, fix = "reach", ""
        said = f"cannot {act} {self.name}: {self._reason(error)}; {fix or _fix_of(error)}"
        if (cause := file_error_of(getattr(error, "orig", None))) is not None:
            return JournalFileError(said, cause, self.engine.file)
        return JournalError(said)

    def _unavailable(
        self, act: str, error: SQLAlchemyError, fix: str, seconds: float
    ) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"cannot {act} {self.name}, tried for {seconds:g} seconds: {self._reason(error)}; "
            f"{fix or _fix_of(error)}"
        )

    def _reason(self, error: SQLAlchemyError) -> str:
        said = error.orig if isinstance(error, DBAPIError) and error.orig else error
        reason = " ".join(str(said).split())
        if self._password:
            reason = reason.replace(str(self._password), MASK)
        return mask(reason)


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


@contextmanager
def write_transaction(
    database: Database, connection: sql.Connection, *, flush: bool | None, lock: str = ""
) -> Iterator[Callable[[], None]]:
    """Begin a write transaction and yield its commit; without commit it is rolled back.

    Args:
        database: The database.
        connection: A connection to it.
        flush: Let commits in SQLite survive a power failure; None leaves the connection as it is.
            PostgreSQL's server decides itself.
        lock: A name; transactions with it wait for each other. SQLite locks the whole file.
    """
    open_transaction = True
    is_sqlite = database.kind == "sqlite"
    if is_sqlite and flush is not None:
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


def _key_of(connection: sql.Connection, name: str) -> int:
    """Return the number of the advisory lock for a name."""
    # Advisory locks belong to the whole database, and tables to a schema in it.
    schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    digest = hashlib.blake2b(f"mergepoint {schema} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
