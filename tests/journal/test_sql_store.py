"""SQL stores: what only they do, beside what tests/journal/test_stores.py asks of every store."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sql
from tests.journal.places import Place, engine_at, place_of, postgres
from tests.journal.processes import started
from tests.journal.test_stores import HEADER, begun, record

from mergepoint.core.errors import MergepointError, install_command
from mergepoint.journal.call_records import record_to_plain
from mergepoint.journal.checked_lines import JournalError, encode
from mergepoint.journal.file_journal import FileStore, store_at
from mergepoint.journal.run_tables import RECORDS, RUNS
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.journal.sqlite_leases import FileLeases
from mergepoint.journal.stores import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty database of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def lite(tmp_path: Path) -> SqlStore:
    """Return a store in SQLite."""
    return SqlStore(f"sqlite:///{tmp_path / 'runs.db'}")


def engine(place: Place) -> sql.Engine:
    """Return an engine of one's own."""
    return engine_at(place.address)


def test_a_row_is_a_line(place: Place) -> None:
    """Checksum and body of a row are those of the line that a file would hold."""
    one = record("a")
    with place.store().create(HEADER) as journal:
        journal.append(one)
    line = encode(record_to_plain(one))
    with engine(place).connect() as connection:
        found = connection.execute(sql.select(RECORDS)).one()
        assert found.run_id == "r1"
        assert found.n == 1
        assert found.checksum.encode() + b" " + bytes(found.body) + b"\n" == line
        assert connection.execute(sql.select(RUNS.c.created_at)).scalar_one() == (
            "2026-01-02T01:04:05.678901+00:00"
        )


def test_bodies_can_be_asked_in_sql(place: Place) -> None:
    """The databases' own functions for JSON read what is in a body."""
    with place.store().create(HEADER) as journal:
        journal.append(record("a/b"))
    query = {
        "sqlite": "SELECT json_extract(CAST(body AS TEXT), '$.path') FROM mergepoint_records",
        "postgresql": "SELECT convert_from(body, 'UTF8')::json ->> 'path' FROM mergepoint_records",
    }[place.kind]
    with engine(place).connect() as connection:
        assert connection.execute(sql.text(query)).scalar_one() == "a/b"


def test_a_record_that_was_taken_out_is_missed(place: Place) -> None:
    """A gap in the numbers is an error that names the first that is missing."""
    store = place.store()
    with store.create(HEADER) as journal:
        for name in "abc":
            journal.append(record(name))
    place.damage("r1", "gone")
    for act in (store.read, store.open):
        with pytest.raises(
            JournalError, match=r"run 'r1' in .*, record 2: it is missing; .*restore"
        ):
            act("r1")


def test_two_writers_never_both_write(place: Place) -> None:
    """A row that somebody put in without the lock is told, and is not overwritten."""
    with place.store().create(HEADER) as journal:
        journal.append(record("a"))
        with engine(place).begin() as connection:
            row = {"run_id": "r1", "n": 2, "checksum": "00000000", "body": b"{}"}
            connection.execute(RECORDS.insert(), row)
        with pytest.raises(JournalError, match="has a record 2 already, which another process"):
            journal.append(record("b"))
        assert len(journal.records) == 1


def test_an_engine_of_ones_own_is_taken(place: Place) -> None:
    """Its pool gets every connection back, however many runs are held."""
    own = sql.create_engine(place.address, pool_size=1, max_overflow=0, pool_timeout=0.5)
    store = SqlStore(own)
    journals = [store.create(begun(name)) for name in "abc"]
    for journal in journals:
        journal.append(record("x", run=journal.header.run_id))
        journal.close()
    assert [len(store.read(name)[1]) for name in "abc"] == [1, 1, 1]
    with own.connect() as connection:
        assert not connection.get_isolation_level().startswith("AUTO")
    own.dispose()


def test_tables_that_went_away_are_told(place: Place) -> None:
    """The error of a write says what is missing; what was acknowledged before is not claimed."""
    with place.store().create(HEADER) as journal:
        with engine(place).begin() as connection:
            RECORDS.drop(connection)
        with pytest.raises(JournalError, match=r"cannot write record 1 of run 'r1' to .*records"):
            journal.append(record("a"))
        assert journal.records == ()


def test_a_record_after_a_refused_one_goes_in(lite: SqlStore, tmp_path: Path) -> None:
    """A full database refuses a record whole, and takes later ones once there is room."""
    with lite.create(HEADER) as journal:
        journal.append(record("a"))
        connection = _connection(lite)
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        with pytest.raises(
            JournalError, match=r"database or disk is full; its earlier records are"
        ):
            journal.append(replace(record("b"), response="x" * 100_000))
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        journal.append(record("c"))
        assert [one.path for one in journal.records] == ["a", "c"]
    assert [one.path for one in lite.read("r1")[1]] == ["a", "c"]


@pytest.mark.campaign
def test_the_holder_is_named(place: Place) -> None:
    """The error names process and host, which an administrator can look at."""
    script = """
with store_at(sys.argv[1]).create(header("r1")):
    print("open", flush=True)
    sys.stdin.read()
"""
    with started(script, place.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        told = rf"another process \(pid {process.pid} on host '.+'\); wait until it has"
        with pytest.raises(JournalError, match=told):
            place.store().open("r1")


def test_a_lock_file_goes_with_its_run(lite: SqlStore, tmp_path: Path) -> None:
    """A process has one lock file in SQLite, however many runs it writes, until the last ends."""
    with lite.create(HEADER), lite.create(begun("r2")):
        lock = tmp_path / f"runs.db.{lite.leases.worker}.lock"
        assert list(tmp_path.glob("*.lock")) == [lock]
    assert [file.name for file in tmp_path.iterdir()] == ["runs.db"]


def test_sqlite_lets_readers_and_writers_side_by_side(lite: SqlStore) -> None:
    """The database is in WAL mode, waits for others, and flushes as was promised."""
    asked = ("journal_mode", "synchronous", "busy_timeout")
    with lite.create(HEADER):
        connection = _connection(lite)
        found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in asked]
    assert found == ["wal", 1, 30_000]
    strict = SqlStore(str(lite), sync="record")
    with strict.open("r1"):
        assert _connection(strict).exec_driver_sql("PRAGMA synchronous").scalar() == 2


def _connection(store: SqlStore) -> sql.Connection:
    assert isinstance(store.leases, FileLeases)
    assert store.leases._connection is not None
    return store.leases._connection


@pytest.mark.parametrize("address", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_a_database_in_memory_is_refused(address: str) -> None:
    """It would end with its process."""
    with pytest.raises(JournalError, match="a database in memory ends with its process"):
        SqlStore(address)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("nonsense", r"isn't a URL; use sqlite:///runs\.db"),
        ("postgresql://u:geheim1@host:port/db", "isn't a URL"),
        ("cobol://u:geheim1@host/db", "SQLite or PostgreSQL, .* and not in cobol; give sqlite:"),
        ("postgresql+cobol://u:geheim1@h/d", r"u:\[masked\]@h/d: .* knows no 'postgresql\+cobol'"),
        ("postgresql+pg8000://u:geheim1@h/d", r"needs a driver .*\[postgres\]'"),
        ("sqlite+aiosqlite:///x.db", "not async"),
        (
            "postgresql://u:geheim1@127.0.0.1:1/d",
            r"cannot reach .*refused.*; make sure that the databas",
        ),
        ("postgresql://127.0.0.1:1/d?user=u&password=geheim1", r"cannot reach .*refused"),
    ],
)
def test_a_wrong_address_is_told_without_its_password(address: str, told: str) -> None:
    """The error says what is wrong and what to give, and its chain shows no password."""
    with pytest.raises(MergepointError, match=told) as raised:
        SqlStore(address).create(HEADER)
    error: BaseException | None = raised.value
    while error is not None:
        assert "geheim1" not in str(error)
        error = error.__cause__


def test_a_wrong_password_is_not_shown(tmp_path: Path) -> None:
    """What the server says of a failed login is told without what was tried."""
    url = sql.make_url(postgres()).set(username="nobody_here", password="geheim1")
    with pytest.raises(JournalError, match=r"cannot reach .*nobody_here") as raised:
        SqlStore(url).read("r1")
    assert "geheim1" not in str(raised.value)


def test_another_file_is_no_database(tmp_path: Path) -> None:
    """A file that SQLite does not know is told, and stays as it was."""
    path = tmp_path / "runs.db"
    path.write_text("hello, this is no database\n" * 50)
    before = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(JournalError, match="file is not a database"):
        SqlStore(f"sqlite:///{path}").create(HEADER)
    assert hashlib.sha256(path.read_bytes()).digest() == before


def test_errors_show_nothing_of_what_was_to_be_written(lite: SqlStore) -> None:
    """Neither the statement nor its parameters are in an error or in its causes."""
    with lite.create(HEADER) as journal:
        _connection(lite).exec_driver_sql("DROP TABLE mergepoint_records")
        with pytest.raises(JournalError) as raised:
            journal.append(replace(record("a"), response="private words"))
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert "INSERT" not in str(raised.value)
    assert "private" not in str(raised.value)


def test_without_sqlalchemy_the_way_out_is_told() -> None:
    """Files work without it, and a URL of a database says what to install."""
    script = """
import sys
sys.modules["sqlalchemy"] = None
from mergepoint.core.errors import MergepointError
from mergepoint.journal.stores import Store
from mergepoint.journal.file_journal import store_at
store_at("runs")
try:
    store_at("sqlite:///runs.db")
except MergepointError as error:
    print(error)
"""
    done = subprocess.run(  # noqa: S603  (this very Python)
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert install_command("sql") in done.stdout


def test_a_place_names_its_store(tmp_path: Path, lite: SqlStore) -> None:
    """Paths are folders, URLs are databases, a store is what it is."""
    assert isinstance(store_at(tmp_path), FileStore)
    assert isinstance(store_at("runs"), FileStore)
    assert isinstance(store_at("sqlite:///x.db"), SqlStore)
    assert store_at(lite) is lite
    stores: list[Store] = [store_at(tmp_path), lite]
    assert [one.folder_of("r1") for one in stores] == [tmp_path / "r1", None]
