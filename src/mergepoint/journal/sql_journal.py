"""Journals in a database: SQLite or PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from mergepoint.journal.call_records import CallRecord, record_from_plain
from mergepoint.journal.checked_lines import JournalError, check_format, parse_line
from mergepoint.journal.group_commit import GroupedJournal, GroupWriter, LineWrite, encode_at
from mergepoint.journal.line_logs import Tail, decode_line
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.journal.redact import Redact
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

_METADATA = sql.MetaData()
RUN_TABLES = LineTables(_METADATA, first="mergepoint_runs", rest="mergepoint_records", key="run_id")
RUNS, RECORDS = RUN_TABLES.first, RUN_TABLES.rest


class SqlJournal(GroupedJournal):
    """The journal of a run that this process has locked; SqlStore returns it.

    After `append` returns, the record survives a crash of the process. Against a power failure,
    PostgreSQL flushes each record, and SQLite flushes as a file does (see `Sync`). It is safe to
    write from several threads.
    """

    def __init__(
        self,
        database: Database,
        lock: RunLock,
        header: RunHeader,
        records: Iterable[CallRecord],
        sync: Sync,
        redact: Redact | None,
        *,
        writer: GroupWriter,
        rows: int = 0,
    ) -> None:
        self._database = database
        self._run_lock = lock
        self._rows = rows
        self._sync = sync
        self._closed = False
        self._lock = threading.Lock()
        place = f"run {header.run_id!r} in {database.name}"
        super().__init__(writer, header, records, place=place, redact=redact)

    def write_group(self, group: Sequence[LineWrite]) -> None:
        """Write the lines of a group."""
        self._check()
        with self._lock:
            for write in group:
                # Counted here: if another process writes the run without its lock, the numbers
                # collide in the primary key, and the second writer fails instead of mixing two
                # runs.
                self._write(self._rows + 1, write.line)
                self._rows += 1
                if write.record.at_edge:
                    self._flush()

    def release(self) -> None:
        """Flush the journal and unlock the run; a second call does nothing."""
        # A forked child shares the connection: what it sends would end the parent's session.
        if not self.is_own:
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if not self._run_lock.connection.invalidated:
                    self._flush()
            finally:
                self._run_lock.close(self._database)

    def _check(self) -> None:
        state = ""
        if self._closed:
            state = "is closed"
        elif not self.is_own:
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


def commit_to_database(group: Sequence[LineWrite]) -> None:
    """Commit a group of records of any number of journals in a database."""
    for write in group:
        try:
            write.journal.write_group([write])  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001  (only this write has failed)
            write.error = error


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
        self._writer = GroupWriter(commit_to_database)

    def create(self, header: RunHeader) -> SqlJournal:
        """Create the journal of a new run, and file and tables if they are missing.

        Raises JournalError if the id is taken, or if writing fails.
        """
        run_id = checked_run_id(header.run_id)
        plain = header.to_plain()
        place = f"run {run_id!r} in {self}"
        line = encode_at(place, "the header of the run", plain, self.redact)
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
        args = self._database, lock, header, (), self.sync, self.redact
        return SqlJournal(*args, writer=self._writer)

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
        return SqlJournal(*args, writer=self._writer, rows=len(records))

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
