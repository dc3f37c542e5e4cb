"""Places for stores under test: files, SQLite, PostgreSQL, each empty at the start of a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from json import loads
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import sqlalchemy as sql

from mergepoint.journal.checked_lines import encode, read_lines
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.run_tables import RECORDS, RUN_TABLES, RUNS
from mergepoint.journal.segment_store import SegmentStore
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.journal.stores import Store

SEGMENTS = "segments:"  # an empty folder doesn't tell which store it will have
LOCAL = "postgresql+psycopg://postgres@127.0.0.1:5432/test"


@dataclass(frozen=True)
class Place:
    """Where a test keeps its runs; `address` names it in another process.

    `damage` changes what is kept of a run behind the store's back: `body` the text of a record,
    `checksum`, `gone` takes a record out, `format` makes it newer.
    """

    kind: str
    address: str
    damage: Callable[[str, str], None]

    def store(self, **options: Any) -> Store:
        """Return a store there, as another process would make it."""
        return store_of(self.address, **options)

    def raw(self) -> bytes:
        """Return every byte that is kept there."""
        if self.kind == "postgresql":
            with engine_at(self.address).connect() as connection:
                rows = [
                    *connection.execute(sql.select(RUNS.c.header)),
                    *connection.execute(sql.select(RECORDS.c.body)),
                ]
            return b"\n".join(bytes(found[0]) for found in rows)
        if self.kind == "segments":  # without the index, which reading may write
            root = Path(self.address.removeprefix(SEGMENTS))
            return b"\n".join(file.read_bytes() for file in sorted(root.glob("segment-*")))
        root = Path(self.address.removeprefix("sqlite:///"))
        root = root if root.is_dir() else root.parent
        return b"\n".join(file.read_bytes() for file in root.rglob("*") if file.is_file())


def store_of(address: str, **options: Any) -> Store:
    """Return the store at a place's address, which is empty at first."""
    if address.startswith(SEGMENTS):
        return SegmentStore(address.removeprefix(SEGMENTS), **options)
    return SqlStore(address, **options) if "://" in address else FileStore(address, **options)


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[Place]:
    """Yield an empty place, and clear it up."""
    if kind == "files":
        runs = folder / "runs"
        yield Place(kind, str(runs), lambda run, what: _damage_file(runs, run, what))
        return
    if kind == "segments":
        runs = folder / "runs"
        yield Place(kind, f"{SEGMENTS}{runs}", lambda _, what: _damage_segment(runs, what))
        return
    if kind == "sqlite":
        address = f"sqlite:///{folder / 'db' / 'runs.db'}"
        yield Place(kind, address, lambda run, what: _damage_rows(address, run, what))
        return
    url, schema = postgres(), f"test_{token_hex(6)}"
    address = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{schema}"
    with engine_at(url).begin() as connection:
        connection.execute(sql.text(f"CREATE SCHEMA {schema}"))
    try:
        yield Place(kind, address, lambda run, what: _damage_rows(address, run, what))
    finally:
        with engine_at(url).begin() as connection:
            connection.execute(sql.text(f"DROP SCHEMA {schema} CASCADE"))


def postgres() -> str:
    """Return the URL of a server that answers; skip the test where none does, but not in CI."""
    url = os.environ.get("MERGEPOINT_TEST_POSTGRES", LOCAL)
    problem = _unreachable(url)
    if problem and os.environ.get("CI") == "true":
        pytest.fail(f"no PostgreSQL answers, and CI=true asks for one: {problem}")
    if problem:
        pytest.skip(f"no PostgreSQL answers (MERGEPOINT_TEST_POSTGRES names one): {problem}")
    return url


@cache
def _unreachable(url: str) -> str:
    try:
        with engine_at(url).connect():
            return ""
    except sql.exc.SQLAlchemyError as error:
        return str(error).splitlines()[0]


def engine_at(url: str) -> sql.Engine:
    """Return an engine that keeps no connection open."""
    limits = {"connect_timeout": 2} if url.startswith("postgresql") else {}
    return sql.create_engine(url, poolclass=sql.NullPool, connect_args=limits)


def _damage_file(runs: Path, run: str, what: str) -> None:
    path = runs / run / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if what == "format":
        header = read_lines(path).values[0] | {"format": "mergepoint.journal/2"}
        lines[0] = encode(header)
    elif what == "checksum":
        lines[2] = (b"0" if lines[2][:1] != b"0" else b"1") + lines[2][1:]
    else:
        lines[2] = lines[2].replace(b"answer", b"answEr")
    path.write_bytes(b"".join(lines))


def _damage_segment(runs: Path, what: str) -> None:
    (path,) = runs.glob("segment-*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    if what == "format":
        (at,) = [at for at, line in enumerate(lines) if b'"header":' in line]
        lines[at] = encode(loads(lines[at][9:].replace(b"journal/1", b"journal/2")))
    else:
        at = [at for at, line in enumerate(lines) if b'"record":' in line][1]
        damaged = b"0" if lines[at][:1] != b"0" else b"1"
        lines[at] = (
            damaged + lines[at][1:]
            if what == "checksum"
            else lines[at].replace(b"answer", b"answEr")
        )
    path.write_bytes(b"".join(lines))


def _damage_rows(address: str, run: str, what: str) -> None:
    one = sql.and_(RECORDS.c.run_id == run, RECORDS.c.n == 2)
    with engine_at(address).begin() as connection:
        if what == "format":
            own = RUNS.c.run_id == run
            header = connection.execute(sql.select(RUNS.c.header).where(own)).scalar_one()
            line = encode(loads(header) | {"format": "mergepoint.journal/2"})
            newer = RUN_TABLES.first_row(run, line)
            connection.execute(RUNS.update().where(own).values(newer))
        elif what == "checksum":
            connection.execute(RECORDS.update().where(one).values(checksum="00000000"))
        elif what == "gone":
            connection.execute(RECORDS.delete().where(one))
        else:
            body = connection.execute(sql.select(RECORDS.c.body).where(one)).scalar_one()
            changed = bytes(body).replace(b"answer", b"answEr")
            connection.execute(RECORDS.update().where(one).values(body=changed))
