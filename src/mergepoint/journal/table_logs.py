"""Logs of lines in tables: a row for each line, with the bytes that a file would have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from mergepoint.journal.checked_lines import JournalError, decode, line_fault
from mergepoint.journal.line_logs import START, LogLine, Mark
from mergepoint.journal.sql_database import Database, write_transaction
from mergepoint.journal.sql_engines import IntegrityError, sql

# A log has a row for its first line and a row for each other one, with the bytes that a file would
# have: checksum and body. So files and databases share encoding, checks and repair.


class LineTables:
    """Two tables of logs: one for their first lines, by the log's key, and one for the others."""

    def __init__(self, tables: sql.MetaData, *, first: str, rest: str, key: str) -> None:
        self.first = sql.Table(
            first,
            tables,
            sql.Column(key, sql.String, primary_key=True),
            sql.Column("created_at", sql.String, nullable=False),
            sql.Column("checksum", sql.String(8), nullable=False),
            sql.Column("header", sql.LargeBinary, nullable=False),
        )
        self.rest = sql.Table(
            rest,
            tables,
            sql.Column(key, sql.ForeignKey(self.first.c[key]), primary_key=True),
            sql.Column("n", sql.Integer, primary_key=True, autoincrement=False),
            sql.Column("checksum", sql.String(8), nullable=False),
            sql.Column("body", sql.LargeBinary, nullable=False),
        )
        self.key = key

    def first_row(self, key: str, line: bytes) -> dict[str, Any]:
        """Return the row of a log's first line."""
        header = decode(line)
        return {
            self.key: key,
            "created_at": _utc(header),
            "checksum": line[:8].decode(),
            "header": line[9:-1],
        }

    def row(self, key: str, n: int, line: bytes) -> dict[str, Any]:
        """Return the row of another line, which are counted from 1."""
        return {self.key: key, "n": n, "checksum": line[:8].decode(), "body": line[9:-1]}

    def keys(self, condition: sql.ColumnElement[bool] | None = None) -> sql.Select[Any]:
        """Return the query for the keys of logs."""
        keys = sql.select(self.first.c[self.key])
        return keys if condition is None else keys.where(condition)

    def delete(self, connection: sql.Connection, keys: Sequence[str]) -> None:
        """Delete logs."""
        # The other rows refer to the first ones by a foreign key, so they are deleted first.
        for table in (self.rest, self.first) if keys else ():
            statement = table.delete().where(table.c[self.key] == sql.bindparam("log"))
            connection.execute(statement, [{"log": key} for key in keys])


def _utc(header: dict[str, Any]) -> str:
    created_at = header.get("created_at")
    if created_at is None:
        return ""
    moment = datetime.fromisoformat(created_at).astimezone(UTC)
    return moment.isoformat(timespec="microseconds")


class TableLog:
    """A log in a database, whose appends are transactions that no other process interrupts.

    Args:
        database: The database.
        tables: Its tables for this kind of log.
        key: The log's key in them.
        place: The name of the log, in errors.
        remedy: What to do about a damaged line, in errors.
        flush: Flush every append.
        owner: The tables and the key of a log that must exist when this one is written.
    """

    def __init__(
        self,
        database: Database,
        tables: LineTables,
        key: str,
        *,
        place: str,
        remedy: str,
        flush: bool = False,
        owner: tuple[LineTables, str] | None = None,
    ) -> None:
        self.database = database
        self.tables = tables
        self.key = key
        self.place = f"{place} in {database.name}"
        self.remedy = remedy
        self._flush = flush
        self._owner = owner

    def where(self, number: int) -> str:
        """Return the place of a line: the header, or the number of a record."""
        return "its header" if number == 1 else f"record {number - 1}"

    def exists(self) -> bool:
        """Return whether the log exists, without creating a database file."""
        if not self.database.exists():
            return False
        query = self.tables.keys(self.tables.first.c[self.tables.key] == self.key)
        found = self.database.attempt("read", lambda connection: connection.execute(query).first())
        return found is not None

    def create(self, lines: Sequence[bytes]) -> bool:
        """Create the log with lines, all or none. Return False if it exists."""
        self.database.make()
        with self._transaction(flush=True, act="write to") as (connection, commit):
            try:
                connection.execute(
                    self.tables.first.insert(), self.tables.first_row(self.key, lines[0])
                )
                self.insert(connection, lines[1:], after=0)
            except IntegrityError:
                return False
            commit()
        return True

    def since(self, mark: Mark = START, *, most: int | None = None) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark, and the mark after them."""
        return self.database.attempt("read", lambda found: self.read(found, mark, most=most))

    def last(self) -> bytes | None:
        """Return the last line, or None if there is none but the first."""
        rest = self.tables.rest
        query = self._rest().order_by(None).order_by(rest.c.n.desc()).limit(1)
        found = self.database.attempt("read", lambda connection: connection.execute(query).first())
        return None if found is None else _line(found.checksum, found.body)

    def whole(self) -> list[LogLine]:
        """Return all lines, also missing ones."""
        return self.database.attempt("read", self.read_whole)

    @contextmanager
    def locked(self, *, flush: bool) -> Iterator[LockedRows]:
        """Lock the log for writing; others wait."""
        flush = flush or self._flush
        with self._transaction(flush=flush, act="lock rows in") as (connection, commit):
            yield LockedRows(self, connection, commit)

    def read(
        self, connection: sql.Connection, mark: Mark, *, most: int | None = None
    ) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark over a connection, and the mark after them."""
        after = max(0, mark.number - 1)
        first = connection.execute(self._first()).one_or_none()
        rows = connection.execute(self._rest(after).limit(most)).all()
        if first is None:
            raise JournalError(f"{self.place} doesn't exist any more; it was deleted")
        header = _line(first.checksum, first.header)
        # A repair writes another header, so rows after the same header are those of the same log.
        if mark.first not in (b"", header):
            raise JournalError(
                f"{self.place} was replaced since it was opened, as by a repair; open it again"
            )
        lines = [] if mark.number else [header]
        for n, found in enumerate(rows, after + 1):
            if found.n != n:
                raise line_fault(self.place, self.where(n + 1), "it is missing", self.remedy)
            lines.append(_line(found.checksum, found.body))
        return lines[:most], Mark(0, mark.number + len(lines[:most]), header)

    def read_whole(self, connection: sql.Connection) -> list[LogLine]:
        """Return all lines over a connection, also missing ones."""
        first = connection.execute(self._first()).one_or_none()
        rows = connection.execute(self._rest()).all()
        if first is None:
            raise JournalError(f"there is no {self.place}")
        found = {row.n: _line(row.checksum, row.body) for row in rows}
        rest = (
            LogLine(self.where(n + 1), found.get(n)) for n in range(1, max(found, default=0) + 1)
        )
        return [LogLine(self.where(1), _line(first.checksum, first.header)), *rest]

    def insert(self, connection: sql.Connection, lines: Sequence[bytes], *, after: int) -> None:
        """Insert lines after the row with a number."""
        rows = [self.tables.row(self.key, n, line) for n, line in enumerate(lines, after + 1)]
        if rows:
            connection.execute(self.tables.rest.insert(), rows)

    def _first(self) -> sql.Select[Any]:
        first = self.tables.first
        return sql.select(first).where(first.c[self.tables.key] == self.key)

    def _rest(self, after: int = 0) -> sql.Select[Any]:
        rest = self.tables.rest
        own = rest.c[self.tables.key] == self.key
        return sql.select(rest).where(own, rest.c.n > after).order_by(rest.c.n)

    @contextmanager
    def _transaction(
        self, *, flush: bool, act: str
    ) -> Iterator[tuple[sql.Connection, Callable[[], None]]]:
        database = self.database
        with (
            database.connected() as connection,
            database.errors(act),
            write_transaction(
                database, connection, flush=flush, lock=f"log {self.tables.key} {self.key}"
            ) as commit,
        ):
            self._check_owner(connection)
            yield connection, commit

    def _check_owner(self, connection: sql.Connection) -> None:
        if self._owner is None:
            return
        tables, key = self._owner
        # The row is locked until the commit: PostgreSQL would otherwise let another transaction
        # delete the owner before this one's rows are visible to it.
        query = tables.keys(tables.first.c[tables.key] == key).with_for_update(read=True)
        if connection.execute(query).first() is None:
            raise JournalError(
                f"{key!r} doesn't exist in {self.database.name} any more; nothing is stored there"
            )


class LockedRows:
    """The rows of a log while one writer has locked it; one append or replacement is possible."""

    def __init__(
        self, log: TableLog, connection: sql.Connection, commit: Callable[[], None]
    ) -> None:
        self._log = log
        self._connection = connection
        self._commit = commit

    def since(self, mark: Mark) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark."""
        with self._log.database.errors("read"):
            return self._log.read(self._connection, mark)

    def append(self, mark: Mark, lines: Sequence[bytes]) -> Mark:
        """Write lines, one row each, and commit; return the new end."""
        log = self._log
        fix = "its earlier rows are unchanged. Make sure that the database has room, then try again"
        with log.database.errors(f"write to {log.place}, in", fix):
            try:
                log.insert(self._connection, lines, after=mark.number - 1)
                self._commit()
            except IntegrityError:
                raise JournalError(
                    f"{log.place} was deleted, or written without its lock; open it again"
                ) from None
        return Mark(0, mark.number + len(lines), mark.first)

    def whole(self) -> list[LogLine]:
        """Return all lines, also missing ones."""
        with self._log.database.errors("read"):
            return self._log.read_whole(self._connection)

    def replace(self, lines: Sequence[bytes]) -> tuple[str, Mark]:
        """Replace all rows, keep the old ones under another key, and return it and the new end."""
        log, tables, execute = self._log, self._log.tables, self._connection.execute
        copy = f"{log.key[:80]}_damaged_{os.urandom(4).hex()}"
        first, rest = tables.first, tables.rest
        others = [column for column in first.c if column.name != tables.key]
        old = sql.select(sql.literal(copy), *others).where(first.c[tables.key] == log.key)
        with log.database.errors("repair a log in"):
            # The rows refer to their header: its copy is there before they move to it.
            names = [tables.key, *(column.name for column in others)]
            execute(first.insert().from_select(names, old))
            execute(rest.update().where(rest.c[tables.key] == log.key).values({tables.key: copy}))
            header = tables.first_row(log.key, lines[0])
            execute(first.update().where(first.c[tables.key] == log.key).values(header))
            log.insert(self._connection, lines[1:], after=0)
            self._commit()
        return copy, Mark(0, len(lines), lines[0])


def _line(checksum: str, body: bytes) -> bytes:
    return b"%s %s\n" % (checksum.encode(), body)
