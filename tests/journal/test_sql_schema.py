"""Versions of the tables: databases of earlier versions are extended, newer ones refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql
from tests.journal.places import Place, engine_at, place_of
from tests.journal.test_stores import HEADER, begun, record

from mergepoint.core.errors import MergepointError
from mergepoint.journal.call_records import record_to_plain
from mergepoint.journal.checked_lines import JournalError, encode
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.session.sql_sessions import SqlSessions

# The tables as version 0.x of mergepoint created them, which had no table of versions.
VERSION_1 = """
CREATE TABLE mergepoint_runs (
    run_id VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL,
    checksum VARCHAR(8) NOT NULL,
    header {bytes} NOT NULL,
    PRIMARY KEY (run_id)
);
CREATE TABLE mergepoint_records (
    run_id VARCHAR NOT NULL,
    n INTEGER NOT NULL,
    checksum VARCHAR(8) NOT NULL,
    body {bytes} NOT NULL,
    PRIMARY KEY (run_id, n),
    FOREIGN KEY(run_id) REFERENCES mergepoint_runs (run_id)
)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty database of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def old(place: Place) -> Place:
    """Return a database of version 1 with a run in it."""
    if place.kind == "sqlite":
        Path(place.address.removeprefix("sqlite:///")).parent.mkdir(parents=True)
    text = VERSION_1.format(bytes="BLOB" if place.kind == "sqlite" else "BYTEA")
    header, line = encode(HEADER.to_plain()), encode(record_to_plain(record("a")))
    with engine_at(place.address).begin() as connection:
        for statement in text.split(";"):
            connection.execute(sql.text(statement))
        connection.execute(
            sql.text("INSERT INTO mergepoint_runs VALUES ('r1', '2026-01-02', :sum, :body)"),
            {"sum": header[:8].decode(), "body": header[9:-1]},
        )
        connection.execute(
            sql.text("INSERT INTO mergepoint_records VALUES ('r1', 1, :sum, :body)"),
            {"sum": line[:8].decode(), "body": line[9:-1]},
        )
    return place


def tables(place: Place) -> set[str]:
    """Return the names of the tables."""
    with engine_at(place.address).connect() as connection:
        return set(sql.inspect(connection).get_table_names())


def version(place: Place) -> object:
    """Return the version of the tables of runs."""
    query = sql.text("SELECT version FROM mergepoint_schema WHERE part = 'runs'")
    with engine_at(place.address).connect() as connection:
        return connection.execute(query).scalar_one()


def test_reading_leaves_the_tables_as_they_were(old: Place) -> None:
    """Runs of version 1 are read, and nothing is added to the database."""
    before = tables(old)
    store = SqlStore(old.address)
    assert store.read("r1") == (HEADER, (record("a"),))
    assert list(store.runs()) == ["r1"]
    assert not store.held("r1")
    assert tables(old) == before


@pytest.mark.parametrize("act", ["open", "create"])
def test_the_first_writing_adds_what_is_new(old: Place, act: str) -> None:
    """To resume a run or to begin one brings the tables to this version, with the runs in them."""
    store = SqlStore(old.address)
    with store.open("r1") if act == "open" else store.create(begun("r2")) as journal:
        journal.append(record("b", run=journal.header.run_id))
    assert version(old) == 2
    assert {"mergepoint_leases", "mergepoint_workers", "mergepoint_schema"} <= tables(old)
    with SqlStore(old.address).open("r1") as again:
        assert [one.path for one in again.records][:1] == ["a"]


def test_stores_that_know_version_1_notice_the_new_one(old: Place) -> None:
    """A store that looked before another one added tables goes on with them."""
    first, second = SqlStore(old.address), SqlStore(old.address)
    assert first.has("r1")
    second.create(begun("r2")).close()
    with first.open("r1") as journal:
        journal.append(record("b"))
        assert second.held("r1")
    assert len(second.read("r1")[1]) == 2


def test_a_newer_version_is_refused(place: Place) -> None:
    """Neither reading nor writing touches tables that this version doesn't know."""
    SqlStore(place.address).create(HEADER).close()
    SqlSessions(place.address).create("s")
    with engine_at(place.address).begin() as connection:
        connection.execute(sql.text("UPDATE mergepoint_schema SET version = 3"))
    told = "tables of runs in .* are of version 3, and .* versions up to 2: update mergepoint"
    store = SqlStore(place.address)
    for act in (lambda: store.read("r1"), lambda: store.open("r1"), lambda: store.create(HEADER)):
        with pytest.raises(JournalError, match=told):
            act()
    with pytest.raises(MergepointError, match=r"tables of sessions in .* are of version 3"):
        SqlSessions(place.address).create("t")


def test_sessions_have_a_version_of_their_own(place: Place) -> None:
    """The table of versions has a row for runs, and one for sessions."""
    SqlSessions(place.address).create("s")
    SqlStore(place.address).create(HEADER).close()
    with engine_at(place.address).connect() as connection:
        found = connection.execute(sql.text("SELECT part, version FROM mergepoint_schema"))
        assert set(map(tuple, found)) == {("runs", 2), ("sessions", 1)}
