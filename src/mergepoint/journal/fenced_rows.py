"""Writes of records to a database: rows of many runs at once, where their leases are ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.leases import Lease, Leases
from mergepoint.journal.run_tables import RECORDS, RUN_TABLES
from mergepoint.journal.sql_database import DatabaseUnavailable
from mergepoint.journal.sql_engines import IntegrityError, sql
from mergepoint.journal.sqlite_leases import FileLeases


@dataclass(slots=True, eq=False)
class RunRows:
    """New rows of one run, and why they aren't stored: all or none of them.

    `after` is the number of the run's last row.
    """

    lease: Lease
    after: int
    lines: Sequence[bytes]
    error: JournalError | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table."""
        return [
            RUN_TABLES.row(self.lease.run_id, n, line)
            for n, line in enumerate(self.lines, self.after + 1)
        ]


def write_rows(leases: Leases, group: Sequence[RunRows]) -> None:
    """Write the rows of a group in one transaction; set `error` of each run that has failed."""
    try:
        is_written = _is_written(leases, group)
    except DatabaseUnavailable as error:
        # Not run by run: each of them would wait as long again.
        for one in group:
            one.error = error
        return
    except JournalError as error:
        is_written = False
        if len(group) == 1:
            group[0].error = error
    if is_written or group[0].error is not None:
        return
    if len(group) > 1:
        for one in group:
            write_rows(leases, [one])
        return
    _write_again(leases, group[0])


def _is_written(leases: Leases, group: Sequence[RunRows]) -> bool:
    """Write a group, and set the errors of lost leases. Return False if its rows exist."""
    if isinstance(leases, FileLeases):
        return _written_to_sqlite(leases, group)

    def write(connection: sql.Connection) -> bool:
        try:
            found = set(connection.execute(_INSERT, _values(group)).scalars())
        except IntegrityError:
            return False
        lost.extend(one for one in group if one.lease.run_id not in found)
        return True

    lost: list[RunRows] = []
    is_written = leases.database.attempt(_act_of(group), write, fix=_FIX)
    for one in lost:
        one.error = leases.lost(one.lease)
    return is_written


def _written_to_sqlite(leases: FileLeases, group: Sequence[RunRows]) -> bool:
    # The worker's lock file is fence enough: nobody takes a run over while this process lives.
    rows = [row for one in group for row in one.rows()]
    with leases.database.errors(_act_of(group), _FIX):
        try:
            with leases.transaction() as (connection, commit):
                connection.execute(RECORDS.insert(), rows)
                commit()
        except IntegrityError:
            return False
    return True


def _write_again(leases: Leases, one: RunRows) -> None:
    """Write rows of which some exist: by us, if an acknowledgement was lost, or by another one."""
    own = RECORDS.c.run_id == one.lease.run_id
    query = sql.select(RECORDS.c.n, RECORDS.c.checksum, RECORDS.c.body)
    query = query.where(own, RECORDS.c.n > one.after).order_by(RECORDS.c.n)
    try:
        found = leases.database.attempt("read", lambda it: it.execute(query).all())
        rows = one.rows()
        for old, new in zip(found, rows, strict=False):
            if tuple(old) != (new["n"], new["checksum"], new["body"]):
                raise _known(leases, one, old.n)
        if len(found) > len(rows) or not found:
            raise _known(leases, one, one.after + 1)
        rest = RunRows(one.lease, one.after + len(found), one.lines[len(found) :])
        if rest.lines and not _is_written(leases, [rest]):
            raise _known(leases, one, rest.after + 1)
        one.error = rest.error
    except JournalError as error:
        one.error = error


def _known(leases: Leases, one: RunRows, n: int) -> JournalError:
    return JournalError(
        f"run {one.lease.run_id!r} in {leases.database.name} has a record {n} already, which "
        "another process wrote; stop one of the two, then resume the run"
    )


def _act_of(group: Sequence[RunRows]) -> str:
    one = group[0]
    if len(group) > 1:
        return "write records to"
    return f"write record {one.after + 1} of run {one.lease.run_id!r} to"


_FIX = (
    "its earlier records are unchanged. Make sure that the database exists and has room, then "
    "resume the run"
)

# One statement is one transaction. FOR SHARE makes a takeover wait until this is committed, and
# this until a takeover is: then the token differs, and the run's rows are not inserted. In order,
# because two groups that lock the same rows in different orders would wait for each other.
_INSERT = sql.text(
    "WITH given AS (SELECT * FROM unnest(CAST(:runs AS text[]), CAST(:tokens AS bigint[])) "
    "AS g (run_id, token)), "
    "ours AS MATERIALIZED (SELECT l.run_id FROM mergepoint_leases l JOIN given g "
    "ON l.run_id = g.run_id AND l.token = g.token ORDER BY l.run_id FOR SHARE OF l), "
    "written AS (INSERT INTO mergepoint_records (run_id, n, checksum, body) "
    "SELECT r.run_id, r.n, r.checksum, r.body FROM unnest(CAST(:of AS text[]), "
    "CAST(:numbers AS integer[]), CAST(:checksums AS text[]), CAST(:bodies AS bytea[])) "
    "AS r (run_id, n, checksum, body) JOIN ours USING (run_id)) "
    "SELECT run_id FROM ours"
)


def _values(group: Sequence[RunRows]) -> dict[str, list[Any]]:
    rows = [row for one in group for row in one.rows()]
    return {
        "runs": [one.lease.run_id for one in group],
        "tokens": [one.lease.token for one in group],
        "of": [row["run_id"] for row in rows],
        "numbers": [row["n"] for row in rows],
        "checksums": [row["checksum"] for row in rows],
        "bodies": [row["body"] for row in rows],
    }
