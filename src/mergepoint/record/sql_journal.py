"""SqlJournal: a run's records in a database, one transaction a record."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Self

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from mergepoint.record.header import RunHeader
from mergepoint.record.journal import Roots
from mergepoint.record.lines import JournalError
from mergepoint.record.plain import record_to_plain
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact, encode_safe
from mergepoint.record.sql_database import RECORDS, Database
from mergepoint.record.sql_hold import Held
from mergepoint.record.store import Sync


class SqlJournal:
    """The journal of a run that this process holds; SqlStore gives it.

    What `append` returned from outlives a kill of the process; against a loss of power
    PostgreSQL flushes each record, and SQLite as a file does (see `Sync`). Safe to write from
    several threads.
    """

    keyed = True

    def __init__(
        self,
        database: Database,
        held: Held,
        header: RunHeader,
        records: Iterable[CallRecord],
        sync: Sync,
        redact: Redact | None,
    ) -> None:
        self.header = header
        self.place = f"run {header.run_id!r} in {database.name}"
        self._database = database
        self._held = held
        self._records = list(records)
        self._sync = sync
        self._redact = redact
        self._owner = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._roots = Roots()

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Give all records in the order in which they were written."""
        with self._lock:
            return tuple(self._records)

    def append(self, record: CallRecord) -> None:
        """Write one record: whole, or not at all.

        Raises JournalError when it is not written. Where the database only was full or busy,
        later appends work; where the connection was lost the run is to be resumed, since another
        may hold it by then.
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
            self._write(len(self._records) + 1, line)
            self._records.append(record)
            if record.at_edge:
                self._flush()

    def running(self, path: str) -> AbstractContextManager[None]:
        """Hold a root's full path while it runs. Raises StepError when it is running."""
        return self._roots.running(path)

    def close(self) -> None:
        """Flush what was written and let go of the run; a second time does nothing."""
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
    """Flush what SQLite has not; PostgreSQL flushes every record."""
    if database.kind == "sqlite" and sync == "edges":
        connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")


def safe_line(plain: dict[str, Any], redact: Redact | None, place: str, what: str) -> bytes:
    """Give plain data as a line without secrets. Raises JournalError that says where and what."""
    try:
        return encode_safe(plain, redact)
    except JournalError as error:
        raise JournalError(f"{place}: {what} cannot be written: {error}") from error


def row(line: bytes, column: str = "body") -> dict[str, Any]:
    """Give a line's checksum and body as the columns of a row."""
    return {"checksum": line[:8].decode(), column: line[9:-1]}
