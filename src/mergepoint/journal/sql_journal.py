"""Journals in a database: SQLite or PostgreSQL."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Self

from mergepoint.journal.call_records import CallRecord, record_from_plain, record_to_plain
from mergepoint.journal.checked_lines import JournalError, check_format, parse_line
from mergepoint.journal.line_logs import Tail, decode_line
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.journal.redact import Redact, encode_safe
from mergepoint.journal.sql_database import (
    Database,
    IntegrityError,
    LineTables,
    RunLock,
    TableLog,
    is_run_locked,
    lock_run,
    set_up_sqlite,
    sql,
)
from mergepoint.journal.stores import (
    FORMAT,
    RunHeader,
    Sync,
    checked_run_id,
    checked_sync,
    known_run,
    unknown_run,
    without_starts,
)
from mergepoint.journal.writer import Writer

_METADATA = sql.MetaData()
RUN_TABLES = LineTables(_METADATA, first="mergepoint_runs", rest="mergepoint_records", key="run_id")
RUNS, RECORDS = RUN_TABLES.first, RUN_TABLES.rest


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
        lock: RunLock,
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
        self._run_lock = lock
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
            # Counted here: if another process writes the run without its lock, the numbers collide
            # in the primary key, and the second writer fails instead of mixing two runs.
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
            # A forked child shares the connection: what it sends would end the parent's session.
            if self._owner != os.getpid():
                return
            try:
                if not self._run_lock.connection.invalidated:
                    self._flush()
            finally:
                self._run_lock.close(self._database)

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
        elif self._run_lock.connection.invalidated:
            state = "has lost its connection, and with it its hold on the run"
        if state:
            raise JournalError(f"the journal of {self.place} {state}; to continue, open it again")

    def _write(self, n: int, line: bytes) -> None:
        fix = (
            "its earlier records are unchanged. Make sure that the database exists and has room, "
            "then resume the run"
        )
        with self._database.errors(f"write record {n} of run {self.header.run_id!r} to", fix):
            try:
                self._run_lock.connection.execute(
                    RECORDS.insert(), RUN_TABLES.row(self.header.run_id, n, line)
                )
            except IntegrityError:
                raise JournalError(
                    f"{self.place} has a record {n} already, which another process wrote; stop one "
                    "of the two, then resume the run"
                ) from None

    def _flush(self) -> None:
        with self._database.errors("flush"):
            flush(self._run_lock.connection, self._database, self._sync)


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
        self._database = Database(address, tables=_METADATA)

    def create(self, header: RunHeader) -> SqlJournal:
        """Create the journal of a new run, and file and tables if they are missing.

        Raises JournalError if the id is taken, or if writing fails.
        """
        run_id = checked_run_id(header.run_id)
        plain = header.to_plain()
        line = safe_line(plain, self.redact, f"run {run_id!r} in {self}", "the header of the run")
        # Read back before it is written: a header that cannot be read fails now, and not when the
        # run is resumed.
        parse_line(str(self), "its header", FORMAT, RunHeader.from_plain, plain)
        self._database.make()
        if self.has(run_id):
            raise known_run(self, run_id)
        lock = self._lock(run_id)
        try:
            self._write_header(lock.connection, run_id, line)
        except BaseException:
            lock.close(self._database)
            raise
        return SqlJournal(self._database, lock, header, (), self.sync, self.redact)

    def open(self, run_id: str) -> SqlJournal:
        """Open a run to append to it. Raises JournalError if it is missing, locked, or changed."""
        log = self.log(run_id)
        lock = self._lock(run_id)
        try:
            header, records = _parse(log, run_id)
        except BaseException:
            lock.close(self._database)
            raise
        args = self._database, lock, header, outcomes(records), self.sync, self.redact
        # All rows count, also the starts of calls that `outcomes` omits.
        return SqlJournal(*args, rows=len(records))

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of a run; it is neither locked nor changed.

        Raises JournalError if the run does not exist, or was changed.
        """
        header, records = _parse(self.log(run_id), run_id)
        return header, without_starts(records, lambda: self.held(run_id))

    def has(self, run_id: str) -> bool:
        """Return whether a run with this id has begun. Raises JournalError for an invalid id."""
        return self._log(run_id).exists()

    def held(self, run_id: str) -> bool:
        """Return whether a process writes a run now; False if the run does not exist."""
        return self.has(run_id) and is_run_locked(self._database, run_id)

    def log(self, run_id: str) -> TableLog:
        """Return the lines of a run. Raises JournalError if it does not exist."""
        log = self._log(run_id)
        if not log.exists():
            raise unknown_run(self, run_id, self.runs())
        return log

    def tail(self, run_id: str) -> Tail:
        """Return a reader that follows a run. Raises JournalError if it does not exist."""
        return Tail(self.log(run_id), lambda: self.held(run_id))

    def runs(self) -> Sequence[str]:
        """Return the ids of all runs, the latest first."""
        if not self._database.exists():
            return ()
        query = sql.select(RUNS.c.created_at, RUNS.c.run_id)
        with self._database.connected() as connection, self._database.errors("read"):
            rows = connection.execute(query).all()
        return [run_id for _, run_id in sorted(map(tuple, rows), reverse=True)]

    def folder_of(self, run_id: str) -> None:
        """Return None: a database has no folders."""

    def __str__(self) -> str:
        return self._database.name

    def _log(self, run_id: str) -> TableLog:
        place = f"run {checked_run_id(run_id)!r}"
        return TableLog(self._database, RUN_TABLES, run_id, place=place, remedy=_REMEDY)

    def _lock(self, run_id: str) -> RunLock:
        lock = lock_run(self._database, run_id)
        if self._database.kind == "sqlite":
            try:
                with self._database.errors("set up"):
                    set_up_sqlite(lock.connection, flush=self.sync == "record")
            except BaseException:
                lock.close(self._database)
                raise
        return lock

    def _write_header(self, connection: sql.Connection, run_id: str, line: bytes) -> None:
        with self._database.errors("write the header of a run to"):
            try:
                connection.execute(RUNS.insert(), RUN_TABLES.first_row(run_id, line))
            except IntegrityError:
                raise known_run(self, run_id) from None
            flush(connection, self._database, self.sync)


_REMEDY = "restore the row from a backup, or begin a new run"


def _parse(log: TableLog, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
    """Return header and all records of a run, including the starts of calls."""
    lines, _ = log.since()
    # A newer format may have other lines: it is told before their checksums are checked.
    plain = decode_line(log, 1, lines[0])
    check_format(log.place, plain.get("format"), FORMAT)
    header = parse_line(log.place, log.where(1), FORMAT, RunHeader.from_plain, plain)
    records = ((n, decode_line(log, n, line)) for n, line in enumerate(lines[1:], 2))
    return header, tuple(
        parse_line(log.place, log.where(n), FORMAT, record_from_plain, plain, run_id)
        for n, plain in records
    )
