"""The tables of sessions in SQLite or PostgreSQL, and how they are written. docs/sessions.md."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from mergepoint.record.lines import encode
from mergepoint.record.sql_database import Database, line_tables
from mergepoint.record.sql_journal import row
from mergepoint.session.entry import FORMAT, Entry, SessionHeader, entry_to_plain
from mergepoint.session.log import PATIENCE

_TABLES = sql.MetaData()
SESSIONS, ENTRIES = line_tables(
    _TABLES,
    firsts="mergepoint_sessions",
    key="session_id",
    rest="mergepoint_session_entries",
)


def session_tables(address: str | sql.URL | sql.Engine) -> Database:
    """Give the database of sessions at an address. Raises what Database raises."""
    return Database(address, tables=_TABLES)


def header_of(session_id: str) -> sql.Select[Any]:
    """Give the query for the row that a session begins with."""
    return sql.select(SESSIONS).where(SESSIONS.c.session_id == session_id)


def entries_of(session_id: str, wanted: sql.ColumnElement[bool]) -> sql.Select[Any]:
    """Give the query for entries of a session, in their order."""
    own = ENTRIES.c.session_id == session_id
    return sql.select(ENTRIES).where(own, wanted).order_by(ENTRIES.c.n)


def about(header: SessionHeader) -> dict[str, Any]:
    """Give the row that a session begins with."""
    return {
        "session_id": header.session_id,
        "format": FORMAT,
        "created_at": header.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
        **row(encode(header.to_plain()), "header"),
    }


def rows_of(session_id: str, entries: Iterable[Entry], *, first: int = 1) -> list[dict[str, Any]]:
    """Give the rows of entries, numbered from the first on."""
    return [
        {"session_id": session_id, "n": n, **row(encode(entry_to_plain(entry)))}
        for n, entry in enumerate(entries, first)
    ]


def set_up(connection: sql.Connection, *, flush: bool) -> None:
    """Let readers of SQLite read while one writes; with `flush` a commit outlives a power loss."""
    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")


def lock_session(connection: sql.Connection, session_id: str) -> None:
    """Keep other transactions from this session until the end of this one (PostgreSQL)."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE:.0f}s'")
    digest = hashlib.blake2b(f"mergepoint session {session_id}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest, signed=True)
    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(key)))


@contextmanager
def transaction(connection: sql.Connection) -> Iterator[Callable[[], None]]:
    """Begin a transaction that writes, give what commits it; what is not committed is undone."""
    begun = True
    immediate = " IMMEDIATE" if connection.dialect.name == "sqlite" else ""
    connection.exec_driver_sql(f"BEGIN{immediate}")

    def commit() -> None:
        nonlocal begun
        connection.exec_driver_sql("COMMIT")
        begun = False

    try:
        yield commit
    finally:
        if begun and not connection.invalidated:
            with suppress(SQLAlchemyError):
                connection.exec_driver_sql("ROLLBACK")
