"""SqlStore: journals in SQLite or PostgreSQL. The tables: docs/journal.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any

from mergepoint.core.errors import MergepointError

try:
    import sqlalchemy as sql
    from sqlalchemy.exc import IntegrityError
except ImportError as error:
    raise MergepointError(
        "journals in SQL need SQLAlchemy, which is not installed: pip install 'mergepoint[sql]'"
    ) from error

from mergepoint.record.header import FORMAT, RunHeader
from mergepoint.record.lines import JournalError, decode
from mergepoint.record.plain import record_from_plain
from mergepoint.record.read_journal import check_format, parsed
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact
from mergepoint.record.sql_database import RECORDS, RUNS, Database
from mergepoint.record.sql_hold import Held, held_run, hold_run
from mergepoint.record.sql_journal import SqlJournal, flush, row, safe_line
from mergepoint.record.store import Sync, checked_run_id, checked_sync, known_run, unknown_run

_RESTORE = "it was changed after it was written: restore the row from a backup, or begin a new run"


class SqlStore:
    """Keeps runs in a database, by its URL (`sqlite:///runs.db`) or as an SQLAlchemy engine.

    The tables are made when the first run is created. `sync` is for SQLite, PostgreSQL flushes as
    its server is set.

    Raises MergepointError for a driver that is not installed, and JournalError for an address
    that is no database of the two kinds.
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
        """Begin the journal of a new run; file and tables are made where they are missing.

        Raises JournalError for an id that was used before, and where nothing can be written.
        """
        run_id = checked_run_id(header.run_id)
        place = f"run {run_id!r} in {self}"
        plain = header.to_plain()
        line = safe_line(plain, self.redact, place, "the header of the run")
        parsed(place, 1, RunHeader.from_plain, plain, unit="row")  # what was begun can be resumed
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
        """Go on with a run. Raises JournalError if there is none, it is held, or was changed."""
        if not self.has(run_id):
            raise unknown_run(self, run_id, self.runs())
        held = self._hold(run_id)
        try:
            header, records = self.read(run_id)
        except BaseException:
            held.close(self._database)
            raise
        return SqlJournal(self._database, held, header, records, self.sync, self.redact)

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Give header and records of a run; it is neither locked nor changed.

        Raises JournalError if there is none, or it was changed.
        """
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
        """Say whether a run of this id has begun. Raises JournalError for an id that is none."""
        known = sql.select(RUNS.c.run_id).where(RUNS.c.run_id == checked_run_id(run_id))
        return bool(self._rows(known))

    def held(self, run_id: str) -> bool:
        """Say whether a process writes a run now; of one that is not there nobody does."""
        return self.has(run_id) and held_run(self._database, run_id)

    def lines(self, run_id: str, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Give number and line of a run's rows, as a file would hold them; the header is 1.

        Raises JournalError if there is no such run, and where a row is missing.
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
        """Give the ids of all runs, the one that began last first."""
        rows = self._rows(sql.select(RUNS.c.created_at, RUNS.c.run_id))
        return [run_id for _, run_id in sorted(map(tuple, rows), reverse=True)]

    def folder_of(self, run_id: str) -> None:
        """Give None: a database has no folders."""

    def __str__(self) -> str:
        return self._database.name

    def _records(self, run_id: str, first: int = 1) -> Sequence[Any]:
        own = sql.select(RECORDS).where(RECORDS.c.run_id == run_id, RECORDS.c.n >= first)
        return self._rows(own.order_by(RECORDS.c.n))

    def _gap(self, run_id: str, n: int) -> JournalError:
        return JournalError(f"run {run_id!r} in {self}, record {n} is missing; {_RESTORE}")

    def _hold(self, run_id: str) -> Held:
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
    """Let readers read while one writes, and flush as was promised."""
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
