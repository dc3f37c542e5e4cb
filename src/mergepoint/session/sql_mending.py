"""SqlMending: a session in a database that is held to be looked at and written anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex

import sqlalchemy as sql

from mergepoint.core.errors import SessionError
from mergepoint.record.sql_database import Database
from mergepoint.session.entry import Entry, SessionHeader
from mergepoint.session.log import Line, Mark
from mergepoint.session.sql_tables import (
    ENTRIES,
    SESSIONS,
    about,
    entries_of,
    header_of,
    rows_of,
)


class SqlMending:
    """The session while it is held to be mended."""

    def __init__(
        self,
        database: Database,
        session_id: str,
        connection: sql.Connection,
        commit: Callable[[], None],
    ) -> None:
        self._database = database
        self._session_id = session_id
        self._connection = connection
        self._commit = commit
        with database.told("read"):
            first = connection.execute(header_of(session_id)).one_or_none()
            rows = connection.execute(entries_of(session_id, sql.true())).all()
        if first is None:
            raise SessionError(
                f"there is no session {session_id!r} in {database.name}; the list of sessions "
                "says which there are"
            )
        there = {found.n: _line(found.checksum, found.body) for found in rows}
        self.lines = [
            Line("its header", _line(first.checksum, first.header)),
            *(Line(f"record {n}", there.get(n)) for n in range(1, max(there, default=0) + 1)),
        ]

    def rewrite(self, header: SessionHeader, entries: Sequence[Entry]) -> str:
        """Write the session anew, keep what it was under another id, and give that id."""
        copy = f"{self._session_id[:80]}_damaged_{token_hex(4)}"
        execute, old = self._connection.execute, self._session_id
        same = [column for column in SESSIONS.c if column.name != "session_id"]
        first = sql.select(sql.literal(copy), *same).where(SESSIONS.c.session_id == old)
        names = ["session_id", *(column.name for column in same)]
        with self._database.told("repair a session in"):
            execute(SESSIONS.insert().from_select(names, first))
            moved = ENTRIES.update().where(ENTRIES.c.session_id == old)
            execute(moved.values(session_id=copy))
            execute(SESSIONS.update().where(SESSIONS.c.session_id == old).values(about(header)))
            if entries:
                execute(ENTRIES.insert(), rows_of(old, entries))
            self._commit()
        return f"session {copy!r}"

    def settle(self, snapshot: Callable[[Mark], str]) -> None:
        """Write nothing: a database has no place for a snapshot."""

    def snapshot(self) -> None:
        """Give None: a database has no place for a snapshot."""


def _line(checksum: str, body: bytes) -> bytes:
    return b"%s %s\n" % (checksum.encode(), body)
