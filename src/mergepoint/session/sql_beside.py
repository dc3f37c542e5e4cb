"""SqlBeside: an application's rows in a table of the database of the sessions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sql

from mergepoint.core.errors import SessionError
from mergepoint.record.lines import decode, encode
from mergepoint.record.sql_database import Database
from mergepoint.record.sql_journal import row
from mergepoint.session.beside import Row
from mergepoint.session.log import as_session_errors
from mergepoint.session.sql_tables import SESSIONS, lock_session, set_up, transaction

_TABLES = sql.MetaData()
BESIDE = sql.Table(
    "mergepoint_session_beside",
    _TABLES,
    sql.Column("name", sql.String, primary_key=True),
    sql.Column("session_id", sql.String, primary_key=True),
    sql.Column("n", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("checksum", sql.String(8), nullable=False),
    sql.Column("body", sql.LargeBinary, nullable=False),
)


def beside_table(address: str | sql.URL | sql.Engine) -> Database:
    """Give the database with the table; it is made with the first row."""
    return Database(address, tables=_TABLES)


class SqlBeside:
    """The rows of one application, beside one session or, without one, beside all of them."""

    def __init__(self, database: Database, name: str, session_id: str | None) -> None:
        self._database = database
        self._name = name
        self._session = session_id
        self._own = sql.and_(BESIDE.c.name == name, BESIDE.c.session_id == (session_id or ""))

    def rows(self) -> list[dict[str, Any]]:
        """Give all rows."""
        database = self._database
        with as_session_errors():
            if not database.exists():
                return []
            query = sql.select(BESIDE).where(self._own).order_by(BESIDE.c.n)
            with database.connected() as connection, database.told("read"):
                found = connection.execute(query).all()
        return [self._decoded(one) for one in found]

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows in one transaction."""
        with as_session_errors():
            bodies = [row(encode(dict(one))) for one in rows]
            if not bodies:
                return
            database = self._database
            database.make()
            with database.connected() as connection, database.told("write to"):
                if database.kind == "sqlite":
                    set_up(connection, flush=True)
                with transaction(connection) as commit:
                    if database.kind == "postgresql":
                        lock_session(connection, f"{self._name} beside {self._session}")
                    self._check(connection)
                    connection.execute(BESIDE.insert(), self._numbered(connection, bodies))
                    commit()

    def _numbered(
        self, connection: sql.Connection, bodies: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        last = connection.execute(sql.select(sql.func.max(BESIDE.c.n)).where(self._own)).scalar()
        key = {"name": self._name, "session_id": self._session or ""}
        return [{**key, "n": n, **body} for n, body in enumerate(bodies, (last or 0) + 1)]

    def _check(self, connection: sql.Connection) -> None:
        if self._session is None:
            return
        query = sql.select(SESSIONS.c.session_id).where(SESSIONS.c.session_id == self._session)
        if connection.execute(query).one_or_none() is None:
            raise SessionError(
                f"there is no session {self._session!r} in {self._database.name} any more; nothing "
                "is kept beside it"
            )

    def _decoded(self, found: Any) -> dict[str, Any]:
        try:
            return decode(b"%s %s\n" % (found.checksum.encode(), found.body))
        except (ValueError, RecursionError) as error:
            raise SessionError(
                f"what {self._name} keeps beside session {self._session!r} in "
                f"{self._database.name}, row {found.n}: {error}; it was changed after it was "
                "written: restore it from a backup"
            ) from error
