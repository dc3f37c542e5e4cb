"""Engines of SQLAlchemy for SQLite and PostgreSQL, one per address and process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet, WeakValueDictionary, finalize

from mergepoint.core.errors import MergepointError, install_command

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import (
        DBAPIError,
        IntegrityError,
        NoSuchModuleError,
        SQLAlchemyError,
    )
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError
    from sqlalchemy.schema import CreateTable
except ImportError as error:
    raise MergepointError(
        f"stores in a database need SQLAlchemy, which is not installed: {install_command('sql')}"
    ) from error

from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.redact import mask

__all__ = [
    "SHARING",
    "CreateTable",
    "DBAPIError",
    "IntegrityError",
    "SQLAlchemyError",
    "SharedEngine",
    "answered",
    "close_quietly",
    "is_connecting",
    "is_unavailable",
    "set_up_sqlite",
    "shared_engine",
    "sql",
    "url_of",
    "url_text",
]

KINDS = ("sqlite", "postgresql")
_DRIVER = "postgresql+psycopg"
_BUSY_SECONDS = 30
_POOL = 4  # connections of a process to a server, for all its runs
_POOL_SECONDS = 30
_STATEMENT_SECONDS = 30
STALL_SECONDS = 35.0
"""Seconds until this process gives up a connection on which a statement gets no answer."""

# Options of libpq. A server that vanished without a word is noticed after about 30 seconds: by
# unacknowledged data (in milliseconds), or by probes of a connection on which nothing is sent.
_LIBPQ = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
}


class SharedEngine:
    """The connections of this process to a database, for all stores at the same address.

    PostgreSQL has a small pool, and SQLite opens a connection for each reading.

    Raises JournalError for another kind of database.
    """

    def __init__(self, engine: sql.Engine, *, is_own: bool) -> None:
        self.kind = engine.dialect.name
        if self.kind not in KINDS or engine.dialect.is_async:
            raise _unsupported(f"{engine.dialect.name}+{engine.dialect.driver}")
        self.file = _file_of(engine.url) if self.kind == "sqlite" else None
        # A write transaction begins and commits by itself, so the driver must not begin one.
        self.engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.has_connected = False
        # The leases of this process there, by their options: see `SqlStore`.
        self.leases: WeakValueDictionary[object, Any] = WeakValueDictionary()
        self._base = engine
        _ENGINES.add(self)
        if self.kind == "postgresql":
            sql.event.listen(engine, "connect", _remember)
        if is_own:
            sql.event.listen(engine, "connect", _set_up_session)
            finalize(self, _dispose, engine, os.getpid())

    def connect(self) -> sql.Connection:
        """Return a connection, which the caller closes."""
        connection = self.engine.connect()
        self.has_connected = True
        if self.kind == "sqlite":
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
        return connection

    def private_connection(self) -> sql.Connection:
        """Return a connection outside any pool, for as long as the caller wants."""
        connection = self.connect()
        try:
            connection.detach()
        except BaseException:
            close_quietly(connection)
            raise
        return connection

    def forget_parent(self) -> None:
        """Open connections of its own in a forked process."""
        _FORGOTTEN.append(self._base.pool)
        self._base.dispose(close=False)


_ENGINES: WeakSet[SharedEngine] = WeakSet()
_SHARED: WeakValueDictionary[str, SharedEngine] = WeakValueDictionary()
# Of engines and leases; a fork waits for it, because no thread of the parent goes on in the child.
SHARING = threading.Lock()
_SESSIONS: WeakSet[Any] = WeakSet()  # the driver's connections to servers
# A connection that is collected in a forked child would be closed there, for its parent too.
_FORGOTTEN: list[object] = []


def shared_engine(address: str | sql.URL | sql.Engine) -> SharedEngine:
    """Return the engine of an address, the same for equal addresses in a process.

    A custom engine is used with its own pool. Raises MergepointError if the driver is missing, and
    JournalError for an invalid URL or another kind of database.
    """
    if isinstance(address, sql.Engine):
        return SharedEngine(address, is_own=False)
    url = url_of(address)
    if url.get_backend_name() == "sqlite" and (path := _file_of(url)) is not None:
        # A relative path names another file once the process changes its folder.
        url = url.set(database=str(path))
    key = url.render_as_string(hide_password=False)
    with SHARING:
        found = _SHARED.get(key)
        if found is None:
            found = _SHARED[key] = SharedEngine(_created(url), is_own=True)
        return found


def _forget_parent() -> None:
    """Take the connections to servers from a forked child.

    A session of the server lives until all copies of its connection are closed, so a child would
    keep its parent's transaction open after the parent's death. The socket's number is redirected
    to /dev/null: what the driver sends when the child ends goes there, and not to the session.
    """
    SHARING.release()
    _WATCHING.clear()
    _WAITING.clear()
    for session in list(_SESSIONS):
        with suppress(Exception):  # a connection that is lost has no socket
            number = session.fileno()
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number, inheritable=False)
            os.close(nothing)
    _FORGOTTEN.extend(_SESSIONS)
    for engine in list(_ENGINES):
        engine.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=SHARING.acquire, after_in_parent=SHARING.release, after_in_child=_forget_parent
    )


def _remember(connection: Any, _: object) -> None:
    with suppress(TypeError):  # a driver whose connections have no weak references
        _SESSIONS.add(connection)


def _set_up_session(connection: Any, _: object) -> None:
    """Make the server end a statement that waits for a lock or a disk for too long.

    Behind a pooler of connections, such as PgBouncer, the session isn't only ours: nothing is set,
    and no statement is prepared, because the next transaction may be in another session.
    """
    if not hasattr(connection, "autocommit") or not hasattr(connection, "pgconn"):
        return
    connection.autocommit = True
    if _is_pooled(connection):
        connection.prepare_threshold = None
    else:
        connection.execute(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'")
    connection.autocommit = False


def _is_pooled(connection: Any) -> bool:
    """Return whether psycopg's connection goes through a pooler, which shares sessions."""
    # A pooler tells its clients a number of its own for the process of their session.
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return bool(row[0] != connection.info.backend_pid)


def _dispose(engine: sql.Engine, owner: int) -> None:
    if owner == os.getpid():
        engine.dispose()


def close_quietly(connection: sql.Connection) -> None:
    """Close a connection, even a broken one."""
    with suppress(SQLAlchemyError):
        connection.close()


def set_up_sqlite(connection: sql.Connection, *, flush: bool) -> None:
    """Allow reading during writes; with `flush`, commits survive a power failure.

    Without it they survive a crash of the process.
    """
    # WAL isn't available on every file system. Without WAL, NORMAL may damage the file in a power
    # failure, so there every commit is flushed.
    mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar()
    level = "FULL" if flush or mode != "wal" else "NORMAL"
    connection.exec_driver_sql(f"PRAGMA synchronous = {level}")


_UNAVAILABLE = {
    "57P01",  # the administrator ended the session or the server
    "57P02",  # another session crashed
    "57P03",  # the server starts or ends
    "57014",  # the statement's time is over
    "53300",  # too many connections
    "40001",  # a conflict of transactions
    "40P01",  # a deadlock
}


# A server that is paused, or a proxy before it, acknowledges what it receives and answers nothing,
# which neither TCP nor the server's own limit ends. So a thread closes the connection, and whoever
# waits for it gets an error, as for any lost connection.

_WAITING: dict[object, tuple[float, Any]] = {}
_WATCHING = threading.Event()


@contextmanager
def answered(connection: sql.Connection) -> Iterator[None]:
    """Break a connection to a server if what is inside takes longer than STALL_SECONDS."""
    session = connection.connection.dbapi_connection
    if session not in _SESSIONS:
        yield
        return
    if not _WATCHING.is_set():
        _WATCHING.set()
        threading.Thread(target=_watch, name="mergepoint-stalls", daemon=True).start()
    key = object()
    _WAITING[key] = time.monotonic() + STALL_SECONDS, session
    try:
        yield
    finally:
        _WAITING.pop(key, None)


def _watch() -> None:
    while True:
        time.sleep(min(1.0, STALL_SECONDS / 4))
        now = time.monotonic()
        for key, (deadline, session) in list(_WAITING.items()):
            if now > deadline and _WAITING.pop(key, None) is not None:
                with suppress(Exception), socket.socket(fileno=os.dup(session.fileno())) as copy:
                    copy.shutdown(socket.SHUT_RDWR)


def is_unavailable(error: SQLAlchemyError, kind: str) -> bool:
    """Return whether a server may succeed if the same is tried again, on a new connection."""
    if kind != "postgresql":
        return False
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    # Without a state, the error is of the client: the server can't be reached, or it went away.
    is_lost = error.connection_invalidated or (state is None and is_connecting(error))
    return is_lost or state in _UNAVAILABLE or str(state).startswith("08")


def is_connecting(error: SQLAlchemyError) -> bool:
    """Return whether an error is of opening a connection, and not of a statement."""
    return isinstance(error, DBAPIError) and error.statement is None


def _unsupported(driver: str) -> JournalError:
    return JournalError(
        f"journals are kept in SQLite or PostgreSQL, by a driver that is not async, and not in "
        f"{driver}; give sqlite:///runs.db or postgresql://user@host/database"
    )


def url_of(address: str | sql.URL) -> sql.URL:
    """Return the URL of a database, with its driver. Raises JournalError if it is invalid."""
    try:
        url = sql.make_url(address)
    except (SQLAlchemyError, ValueError):  # the message may contain the password
        raise JournalError(
            "the address of the database isn't a URL; use sqlite:///runs.db or "
            "postgresql://user@host/database, and write characters such as @ and / in a password "
            "as %40, %2F"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername=_DRIVER)
    if url.get_backend_name() not in KINDS:
        raise _unsupported(url.drivername)
    return url


def _created(url: sql.URL) -> sql.Engine:
    options: dict[str, Any] = {"poolclass": sql.NullPool}
    if url.get_backend_name() == "postgresql":
        options = {
            "pool_size": _POOL,
            "max_overflow": 0,
            "pool_timeout": _POOL_SECONDS,
            "pool_use_lifo": True,
        }
    if url.drivername == _DRIVER:
        limits = {name: value for name, value in _LIBPQ.items() if name not in url.query}
        options["connect_args"] = limits
    try:
        return sql.create_engine(url, hide_parameters=True, **options)
    except NoSuchModuleError:
        raise JournalError(
            f"{url_text(url)}: SQLAlchemy knows no {url.drivername!r}; give sqlite:///runs.db or "
            "postgresql://user@host/database"
        ) from None
    except ImportError as error:
        raise MergepointError(
            f"{url_text(url)} needs a driver that is not installed ({error}): "
            f"{install_command('postgres')}"
        ) from error


def _file_of(url: sql.URL) -> Path | None:
    if not url.database or url.database == ":memory:" or "mode=memory" in str(url):
        raise JournalError(
            "a database in memory ends with its process, as a journal must not; give a file, "
            "sqlite:///runs.db, or keep the run in memory with a MemoryJournal"
        )
    return None if url.database.startswith("file:") else Path(url.database).absolute()


def url_text(url: sql.URL) -> str:
    """Return a URL without secrets in it, and without the driver that is used by default."""
    if url.drivername == _DRIVER:
        url = url.set(drivername="postgresql")
    return mask(url.difference_update_query(["password", "passfile"]).render_as_string())
