"""Journals in a database: SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mergepoint.journal.call_records import CallRecord, record_from_plain
from mergepoint.journal.checked_lines import JournalError, check_format, parse_line
from mergepoint.journal.fenced_rows import RunRows, write_rows
from mergepoint.journal.group_commit import (
    GroupedJournal,
    GroupWriter,
    LineWrite,
    by_journal,
    encode_at,
)
from mergepoint.journal.leases import LEASE_SECONDS, Lease, Leases
from mergepoint.journal.line_logs import Tail, decode_line
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.journal.redact import Redact
from mergepoint.journal.run_tables import RUN_SCHEMA, RUN_TABLES, RUNS
from mergepoint.journal.server_leases import ServerLeases
from mergepoint.journal.sql_database import RETRY_SECONDS, Database
from mergepoint.journal.sql_engines import SHARING, sql
from mergepoint.journal.sqlite_leases import FileLeases
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
from mergepoint.journal.table_logs import TableLog


class SqlJournal(GroupedJournal):
    """The journal of a run whose lease this process has; SqlStore returns it.

    After `append` returns, the record survives a crash of the process. Against a power failure,
    PostgreSQL flushes each record, and SQLite flushes as a file does (see `Sync`). It is safe to
    write from several threads.

    If PostgreSQL restarts or can't be reached, `append` tries again on a new connection (see
    `SqlStore`). It raises JournalError if another process has taken the run over.
    """

    def __init__(
        self,
        leases: Leases,
        lease: Lease,
        header: RunHeader,
        records: Iterable[CallRecord],
        redact: Redact | None,
        *,
        writer: GroupWriter,
        flush: Callable[[], None],
        rows: int = 0,
    ) -> None:
        self.lease = lease
        self.rows = rows
        self._leases = leases
        self._flush = flush
        self._closed = False
        place = f"run {header.run_id!r} in {leases.database.name}"
        super().__init__(writer, header, records, place=place, redact=redact)

    def new_rows(self, group: Sequence[LineWrite]) -> RunRows:
        """Return the rows of a group of this journal's records. Raises JournalError if it ended."""
        if self._closed or not self.is_own:
            state = "is closed" if self.is_own else "belongs to the process that opened it"
            raise JournalError(f"the journal of {self.place} {state}; to continue, open it again")
        # Counted here: if another process writes the run without a lease, the numbers collide in
        # the primary key, and the second writer fails instead of mixing two runs.
        return RunRows(self.lease, self.rows, [write.line for write in group])

    def release(self) -> None:
        """Flush the journal and release the run's lease; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.is_own:
                self._flush()
        finally:
            self._leases.release(self.lease)


class SqlStore:
    """A store of runs in a database, by its URL (`sqlite:///runs.db`) or an SQLAlchemy engine.

    The tables are created with the first run.

    Args:
        address: The URL, or an engine.
        sync: When SQLite flushes; PostgreSQL flushes as its server is configured.
        redact: A hook that may change texts before they are written.
        lease_seconds: In PostgreSQL, the seconds without a heartbeat of a worker after which others
            may take over its runs.
        retry_seconds: How long operations are tried again while PostgreSQL is unavailable.

    All stores of a process at the same URL share a few connections.

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
        lease_seconds: float = LEASE_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.sync = checked_sync(sync)
        self.redact = redact
        self._database = Database(address, schema=RUN_SCHEMA, retry_seconds=retry_seconds)
        self.leases = _leases_of(self._database, seconds=lease_seconds, flush=sync == "record")
        self._writer = GroupWriter(self._commit)

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
        lease = self.leases.begin(run_id, line)
        if lease is None:
            raise known_run(self, run_id)
        try:
            self._flush()
        except BaseException:
            self.leases.release(lease)
            raise
        return self._journal(lease, header, ())

    def open(self, run_id: str) -> SqlJournal:
        """Open a run to append to it; wait while the worker that wrote it may still live.

        Raises JournalError if it is missing or changed, or if another process writes it.
        """
        log = self.log(run_id)
        lease = self.leases.take(run_id)
        try:
            header, records = _parse(log, run_id)
        except BaseException:
            self.leases.release(lease)
            raise
        # All rows count, also the starts of calls that `outcomes` omits.
        return self._journal(lease, header, outcomes(records), rows=len(records))

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
        return self.has(run_id) and self.leases.is_held(run_id)

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
        rows = self._database.attempt("read", lambda connection: connection.execute(query).all())
        return [run_id for _, run_id in sorted(map(tuple, rows), reverse=True)]

    def folder_of(self, run_id: str) -> None:
        """Return None: a database has no folders."""

    def __str__(self) -> str:
        return self._database.name

    def _log(self, run_id: str) -> TableLog:
        place = f"run {checked_run_id(run_id)!r}"
        return TableLog(self._database, RUN_TABLES, run_id, place=place, remedy=_REMEDY)

    def _journal(
        self, lease: Lease, header: RunHeader, records: Iterable[CallRecord], *, rows: int = 0
    ) -> SqlJournal:
        args = self.leases, lease, header, records, self.redact
        return SqlJournal(*args, writer=self._writer, flush=self._flush, rows=rows)

    def _commit(self, group: Sequence[LineWrite]) -> None:
        """Commit a group of records of any number of journals, in one transaction."""
        new: dict[SqlJournal, RunRows] = {}
        found: dict[SqlJournal, list[LineWrite]] = by_journal(group)
        for journal, writes in found.items():
            try:
                new[journal] = journal.new_rows(writes)
            except JournalError as error:
                _fail(writes, error)
        if new:
            write_rows(self.leases, list(new.values()))
        for journal, rows in new.items():
            if rows.error is not None:
                _fail(found[journal], rows.error)
            else:
                journal.rows += len(rows.lines)
        if any(write.record.at_edge and write.error is None for write in group):
            self._flush()

    def _flush(self) -> None:
        """Flush SQLite's log; PostgreSQL flushes every record itself."""
        if isinstance(self.leases, FileLeases) and self.sync == "edges":
            with self._database.errors("flush"):
                self.leases.checkpoint()


def _leases_of(database: Database, *, seconds: float, flush: bool) -> Leases:
    """Return the leases of this process in a database, the same for all stores with it."""
    options = seconds, flush
    known = database.engine.leases
    with SHARING:
        found: Leases | None = known.get(options)
        if found is None:
            kind = FileLeases if database.kind == "sqlite" else ServerLeases
            found = known[options] = kind(database, seconds=seconds, flush=flush)
        return found


def _fail(writes: Iterable[LineWrite], error: JournalError) -> None:
    for write in writes:
        write.error = error


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
