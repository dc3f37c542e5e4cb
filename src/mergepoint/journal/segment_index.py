"""The index of a folder of segments: which line of which segment is the last of a run.

It is an SQLite file that holds nothing of its own: if it is missing, damaged or behind, it is
computed from the segments. Processes use its transactions to agree on who writes a run.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from mergepoint.journal.checked_lines import (
    JournalError,
    JournalFileError,
    check_format,
    decode,
    file_errors,
    open_regular,
)
from mergepoint.journal.segment_files import (
    SEGMENT_FORMAT,
    RunRow,
    segment_path,
    segment_sizes,
)
from mergepoint.journal.sqlite_errors import file_error_of

INDEX = "index.sqlite"

_VERSION = 1
_BUSY_SECONDS = 30
_CHUNK = 4 << 20  # bytes that are scanned at once
_LINE = re.compile(rb'[0-9a-f]{8} \{"run":("(?:[^"\\]|\\.)*"),"n":(\d+),')
_SHARED = re.compile(rb'[0-9a-f]{8} \{"shared":')
_CLOSED = b',"mark":"closed"}\n'

_TABLES = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, created_at REAL, n INTEGER NOT NULL, segment INTEGER NOT NULL,
    position INTEGER NOT NULL, owner INTEGER
) WITHOUT ROWID;
CREATE INDEX runs_by_time ON runs (created_at, run_id);
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY, position INTEGER NOT NULL, fault INTEGER
);
"""


def created_at_of(header: dict[str, Any]) -> float:
    """Return when a run began, by the JSON data of its header, in seconds."""
    return datetime.fromisoformat(header["created_at"]).timestamp()


class SegmentIndex:
    """The index of a folder, safe to use from several threads and in a forked process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / INDEX
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._open: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def find(self, run_id: str, *, refresh: bool = True) -> RunRow | None:
        """Return a run's row, None if there is none. Raises JournalError.

        Without `refresh`, lines that another process has written since may be missing.
        """
        with self._connected(writes=False) as connection:
            if connection is None:
                return None
            if refresh:
                self._catch_up(connection)
            query = "SELECT * FROM runs WHERE run_id = ?"
            row = connection.execute(query, (run_id,)).fetchone()
        return None if row is None else RunRow(*row)

    def runs(self) -> list[str]:
        """Return the ids of all runs, the latest first."""
        with self._connected(writes=False) as connection:
            if connection is None:
                return []
            self._catch_up(connection)
            query = "SELECT run_id FROM runs WHERE n > 0 ORDER BY created_at DESC, run_id DESC"
            return [run_id for (run_id,) in connection.execute(query)]

    def fault_of(self, segment: int) -> int | None:
        """Return the position of a segment's first damaged line."""
        with self._connected(writes=False) as connection:
            if connection is None:
                return None
            query = "SELECT fault FROM segments WHERE segment = ?"
            row = connection.execute(query, (segment,)).fetchone()
        return None if row is None else row[0]

    def rescan(self, segment: int, position: int) -> None:
        """Forget a segment from a position on, so that the next look reads it again."""
        with self._connected(writes=True) as connection, _transaction(connection):
            connection.execute(
                "UPDATE segments SET position = min(position, ?), fault = NULL WHERE segment = ?",
                (position, segment),
            )

    def claim(self, rows: Sequence[RunRow], owner: int) -> list[bool]:
        """Claim runs for the process with a segment, and return for each whether that worked.

        A row with n = 0 is that of a new run, whose id must be free. Another row is claimed if it
        is unchanged.
        """
        with self._connected(writes=True) as connection, _transaction(connection):
            return [self._claim(connection, row, owner) for row in rows]

    def _claim(self, connection: sqlite3.Connection, row: RunRow, owner: int) -> bool:
        if row.n == 0 and row.owner is None:
            done = connection.execute(
                "INSERT INTO runs VALUES (?, ?, 0, ?, 0, ?) ON CONFLICT DO NOTHING",
                (row.run_id, row.created_at, owner, owner),
            )
        else:
            done = connection.execute(
                "UPDATE runs SET owner = ? WHERE run_id = ? AND n = ? AND owner IS ?",
                (owner, row.run_id, row.n, row.owner),
            )
        return done.rowcount == 1

    def drop_claims(self, run_ids: Iterable[str], owner: int) -> None:
        """Remove the claims of new runs whose first line could not be written."""
        with self._connected(writes=True) as connection, _transaction(connection):
            connection.executemany(
                "DELETE FROM runs WHERE run_id = ? AND n = 0 AND owner = ?",
                [(run_id, owner) for run_id in run_ids],
            )

    def update(self, rows: Iterable[RunRow], segment: int, position: int) -> None:
        """Store rows of runs, and that all lines of a segment up to a position are indexed."""
        with self._connected(writes=True) as connection, _transaction(connection):
            _upsert(connection, rows, also_same=True)
            connection.execute(
                "INSERT INTO segments VALUES (?, ?, NULL) ON CONFLICT DO UPDATE SET "
                "position = max(position, excluded.position)",
                (segment, position),
            )

    def close(self) -> None:
        """Close the file."""
        if self._owner == os.getpid() and self._open is not None:
            self._open.close()
            self._open = None

    @contextmanager
    def _connected(self, *, writes: bool) -> Iterator[Any]:
        """Yield the connection, or None if there are no segments and nothing is to be written."""
        if self._owner != os.getpid():
            # SQLite's connections don't survive a fork. Closing the copy could harm the parent's.
            _of_parents.append(self._open)
            self._reset()
        with self._lock:
            if self._file is not None and self._identity() != self._file:
                self.close()  # another process has replaced it
            if self._open is None and not writes and not segment_sizes(self.folder):
                yield None
                return
            try:
                yield self._connection(writes=writes)
            except sqlite3.DatabaseError as error:
                # Not the errors of one statement: the file is no database, or damaged.
                if type(error) is sqlite3.DatabaseError:
                    self.close()
                    _remove(self.path)
                    problem = "it was damaged and is removed; try again, and it is computed anew"
                else:
                    problem = f"{error}; make sure that the disk has room, then try again"
                said = f"cannot use the index {self.path}: {problem}"
                if (cause := file_error_of(error)) is not None:
                    raise JournalFileError(said, cause, self.path) from error
                raise JournalError(said) from error

    def _connection(self, *, writes: bool) -> sqlite3.Connection:
        if self._open is not None:
            return self._open
        try:
            self._open = self._made(str(self.path))
            self._file = self._identity()
        except sqlite3.OperationalError:
            if writes or os.access(self.folder, os.W_OK):
                raise
            # A folder that may only be read: the index lives as long as this store.
            self._open, self._file = self._made(":memory:"), None
        except sqlite3.DatabaseError:
            _remove(self.path)
            self._open = self._made(str(self.path))
            self._file = self._identity()
        self._catch_up(self._open)
        return self._open

    def _made(self, name: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            name, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # Against a power failure, nothing is flushed at a commit: what is lost is scanned.
            connection.execute("PRAGMA synchronous = NORMAL")
            with _transaction(connection):
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version != _VERSION:
                    for table in ("runs", "segments"):
                        connection.execute(f"DROP TABLE IF EXISTS {table}")
                    for statement in filter(str.strip, _TABLES.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        """Index the lines that were written since, by any process."""
        sizes, known = self._sizes_and_known(connection)
        if sizes == known:
            return
        with _transaction(connection):
            sizes, known = self._sizes_and_known(connection)
            if any(sizes.get(one, -1) < position for one, position in known.items()):
                # A segment was removed or cut: what is known of it is wrong.
                connection.execute("DELETE FROM runs")
                connection.execute("DELETE FROM segments")
                known = {}
            for number, size in sorted(sizes.items()):
                if size > known.get(number, 0):
                    self._scan(connection, number, known.get(number, 0), size)

    def _sizes_and_known(
        self, connection: sqlite3.Connection
    ) -> tuple[dict[int, int], dict[int, int]]:
        rows = connection.execute("SELECT segment, position FROM segments").fetchall()
        return segment_sizes(self.folder), dict(rows)

    def _scan(self, connection: sqlite3.Connection, number: int, start: int, size: int) -> None:
        path = segment_path(self.folder, number)
        position, fault = start, None
        for chunk in _chunks(path, start, size):
            found = _Scan(path, number)
            for line in chunk:
                if not found.take(line, position) and fault is None:
                    fault = position
                position += len(line)
            found.store(connection)
        connection.execute(
            "INSERT INTO segments VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET position = "
            "excluded.position, fault = coalesce(fault, excluded.fault)",
            (number, position, fault),
        )


_of_parents: list[object] = []


class _Scan:
    """The runs of some lines of a segment."""

    def __init__(self, path: Path, number: int) -> None:
        self._path = path
        self._number = number
        self._last: dict[bytes, RunRow] = {}
        self._created: list[tuple[float, str]] = []

    def take(self, line: bytes, position: int) -> bool:
        """Take the next line. Return whether it is undamaged."""
        whole = line[:8] == b"%08x" % crc32(line[9:-1])
        if position == 0:
            if whole:
                check_format(self._path, decode(line).get("format"), SEGMENT_FORMAT)
            return whole
        match = _LINE.match(line)
        if not whole or match is None:
            return whole and _SHARED.match(line) is not None
        name, n = match[1], int(match[2])
        run_id = orjson.loads(name)
        owner = None if line.endswith(_CLOSED) else self._number
        if n == 1:
            self._created.append((created_at_of(decode(line)["header"]), run_id))
        self._last[name] = RunRow(run_id, None, n, self._number, position, owner)
        return True

    def store(self, connection: sqlite3.Connection) -> None:
        """Store them in the index."""
        _upsert(connection, self._last.values())
        connection.executemany("UPDATE runs SET created_at = ? WHERE run_id = ?", self._created)


def _chunks(path: Path, start: int, end: int) -> Iterator[list[bytes]]:
    """Yield the complete lines of a part of a file."""
    with file_errors("read", path), open(path, "rb", opener=open_regular) as file:
        file.seek(start)
        rest = b""
        while start < end and (data := file.read(min(_CHUNK, end - start))):
            start += len(data)
            *lines, rest = (rest + data).split(b"\n")
            yield [line + b"\n" for line in lines]


def _upsert(
    connection: sqlite3.Connection, rows: Iterable[RunRow], *, also_same: bool = False
) -> None:
    """Store rows, unless that line of the run or a later one is known.

    With `also_same`, the row of the known line is replaced. Not by a scan: since a line was
    written, another process may have claimed the run.
    """
    connection.executemany(
        "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = excluded.n, "
        "created_at = coalesce(excluded.created_at, created_at), segment = excluded.segment, "
        "position = excluded.position, owner = excluded.owner "
        "WHERE excluded.n > n OR (excluded.n = n AND ?)",
        [(*row, also_same) for row in rows],
    )


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE: a transaction that reads first and then writes would fail without waiting.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
