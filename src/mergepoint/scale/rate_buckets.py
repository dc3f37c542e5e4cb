"""Sliding windows of what was sent: in memory, in SQLite, or in PostgreSQL.

They are pyrate-limiter's buckets. Added are: reading the clock that all workers share, one
transaction for counting and storing in SQLite, waiting for the lock in PostgreSQL, and changing an
entry once its actual size is known.
"""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mergepoint.core.errors import MergepointError, install_command
from mergepoint.journal.checked_lines import JournalError

try:
    from pyrate_limiter import InMemoryBucket, PostgresBucket, Rate, RateItem, SQLiteBucket
except ImportError as error:
    raise MergepointError(
        f"rate limits need pyrate-limiter, which is not installed: {install_command('limits')}"
    ) from error

_BUSY_SECONDS = 30
_AHEAD = 1_000
"""Milliseconds by which an entry may be later than now; more, and the clock was set back."""


class WindowEntry(NamedTuple):
    """An amount that one request took of a window, and its time in milliseconds."""

    name: str
    at: int
    units: int


class Bucket(Protocol):
    """The entries of one window; used by one thread of a process at a time."""

    def take(self, name: str, units: int) -> WindowEntry | int:
        """Store an entry if it fits; else return the milliseconds until it may."""
        ...

    def change(self, entry: WindowEntry, units: int) -> WindowEntry:
        """Change the size of an entry, and return it. A larger one need not fit."""
        ...

    def forget(self) -> None:
        """Delete the entries that have left the window."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class _Taking:
    """The part that all three share; `put`, `waiting`, `leak` and `now` are pyrate-limiter's."""

    def take(self: Any, name: str, units: int) -> WindowEntry | int:
        """Store an entry if it fits; else return the milliseconds until it may."""
        item = RateItem(name, self.now(), weight=units)
        if self.put(item):
            return WindowEntry(name, item.timestamp, units)
        # At least 1 ms, or a lost race for a lock would be a busy loop.
        wait = max(1, int(self.waiting(item)))
        longest = int(self.rates[-1].interval)
        if wait > longest + _AHEAD:
            self._set_back(item.timestamp)
        return min(wait, longest)

    def forget(self: Any) -> None:
        """Delete the entries that have left the window."""
        self.leak(self.now())

    def _set_back(self, now: int) -> None:
        """Correct entries of the future, which would block the window until then."""


class MemoryBucket(_Taking, InMemoryBucket):
    """A window of one process. `clock` returns milliseconds that never decrease."""

    def __init__(
        self, limit: int, interval: int, *, clock: Callable[[], int] | None = None
    ) -> None:
        super().__init__([Rate(limit, interval)])
        self._read = clock or _monotonic

    def now(self) -> int:
        """Return the time in milliseconds."""
        return self._read()

    def change(self, entry: WindowEntry, units: int) -> WindowEntry:
        """Change the size of an entry, and return it."""
        with self._lock:
            own = [one for one in self.items if one.name == entry.name]
            for one in own[units:]:
                self.items.remove(one)
            at = bisect_right(self.items, entry.at, key=attrgetter("timestamp"))
            more = max(0, units - len(own))
            self.items[at:at] = [RateItem(entry.name, entry.at) for _ in range(more)]
        return entry._replace(units=units)


class FileBucket(_Taking, SQLiteBucket):
    """A window of the processes of one machine, by its clock, in a table of an SQLite file."""

    def __init__(
        self,
        limit: int,
        interval: int,
        *,
        path: str | Path,
        table: str,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._read = clock or _wall
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                path, isolation_level=None, timeout=_BUSY_SECONDS, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
        except (OSError, sqlite3.Error) as error:
            raise JournalError(
                f"can't use the rate limits in {path}: {error}; pass the path of an SQLite file "
                "that can be written, or of one that doesn't exist"
            ) from error
        # Survives a killed process; after a power failure, nothing is in progress at the provider.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS '{table}' (name VARCHAR, item_timestamp INTEGER)"
        )
        connection.execute(
            f"CREATE INDEX IF NOT EXISTS 'at_{table}' ON '{table}' (item_timestamp, name)"
        )
        super().__init__([Rate(limit, interval)], connection, table)

    def now(self) -> int:
        """Return the time in milliseconds."""
        return self._read()

    def put(self, item: RateItem) -> bool:
        """Store an item if it fits, in one transaction."""
        # Without it, two processes may both count before either stores: pyrate-limiter's own
        # answer is a lock file, which is asked for every 50 ms.
        with self._alone():
            return super().put(item)

    def change(self, entry: WindowEntry, units: int) -> WindowEntry:
        """Change the size of an entry, and return it."""
        with self._alone():
            if units < entry.units:
                self.conn.execute(
                    f"DELETE FROM '{self.table}' WHERE rowid IN (SELECT rowid FROM '{self.table}' "  # noqa: S608
                    "WHERE item_timestamp = ? AND name = ? LIMIT ?)",
                    (entry.at, entry.name, entry.units - units),
                )
            self.conn.executemany(
                f"INSERT INTO '{self.table}' (name, item_timestamp) VALUES (?, ?)",  # noqa: S608
                [(entry.name, entry.at)] * (units - entry.units),
            )
        return entry._replace(units=units)

    def _set_back(self, now: int) -> None:
        with self._alone():
            # They count as sent now: sooner could be too many, and later would wait for hours.
            self.conn.execute(
                f"UPDATE '{self.table}' SET item_timestamp = ? WHERE item_timestamp > ?",  # noqa: S608
                (now, now + _AHEAD),
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.conn.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.conn.rollback()
            raise
        # pyrate-limiter commits an item that it stored, but not one that didn't fit.
        self.conn.commit()


class ServerBucket(_Taking, PostgresBucket):
    """A window of many machines, by the server's clock, in a table of PostgreSQL."""

    def __init__(self, limit: int, interval: int, *, address: str, table: str) -> None:
        self._connection = _Connection(address)
        rates = [Rate(limit, interval)]
        super().__init__(self._connection, table, rates)  # type: ignore[arg-type]
        # Its own lock isn't waited for: a second worker would be refused, and try again and again.
        own = f'"{self._full_tbl}"'
        self._q_lock: Any = f"LOCK TABLE {own} IN EXCLUSIVE MODE"
        self._q_now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        self._q_less = (
            f"DELETE FROM {own} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {own} WHERE "  # noqa: S608
            "item_timestamp = TO_TIMESTAMP(%s) AND name = %s LIMIT %s))"
        )

    def now(self) -> int:
        """Return the server's time in milliseconds."""
        # PostgresClock would continue with the clock of this machine if the server doesn't answer.
        with self._connection.connection() as connection:
            return int(connection.execute(self._q_now).fetchone()[0])

    def change(self, entry: WindowEntry, units: int) -> WindowEntry:
        """Change the size of an entry, and return it."""
        with self._connection.connection() as connection:
            if units < entry.units:
                less = (entry.at / 1000, entry.name, entry.units - units)
                connection.execute(self._q_less, less)
            elif units > entry.units:
                more = (entry.name, 1, entry.at / 1000, units - entry.units)
                connection.execute(self._q_put, more)
        return entry._replace(units=units)


class _Connection:
    """The connections that this process shares, in the form of a psycopg pool."""

    closed = False

    def __init__(self, address: str) -> None:
        import sqlalchemy

        from mergepoint.journal.sql_database import Database, Schema

        tables = Schema("rates", 1, sqlalchemy.MetaData(), ())
        self._database = Database(address, schema=tables)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Yield a psycopg connection, in a transaction."""
        with self._database.connected() as connection:
            raw: Any = connection.connection.dbapi_connection
            with raw.transaction():
                # The buckets' timestamps have no time zone, so all sessions must use the same one.
                raw.execute(
                    f"SET LOCAL TIME ZONE 'UTC'; SET LOCAL lock_timeout = '{_BUSY_SECONDS}s'"
                )
                yield raw

    def close(self) -> None:
        """Close nothing: the connections are this process's."""


def _wall() -> int:
    return time.time_ns() // 1_000_000


def _monotonic() -> int:
    return time.monotonic_ns() // 1_000_000
