"""Leases in PostgreSQL: workers that die, pause, or are far away, and servers that restart."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sql
from tests.journal.clusters import Proxy, cluster
from tests.journal.places import Place, engine_at, place_of
from tests.journal.processes import said, started
from tests.journal.test_stores import HEADER, begun, record

from mergepoint.journal.call_records import record_to_plain
from mergepoint.journal.checked_lines import JournalError, encode
from mergepoint.journal.run_tables import LEASES, RECORDS, RUN_TABLES, WORKERS
from mergepoint.journal.sql_journal import SqlStore


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Yield an empty place in PostgreSQL."""
    with place_of("postgresql", tmp_path) as found:
        yield found


@pytest.fixture
def store(place: Place) -> SqlStore:
    """Return a store there."""
    return SqlStore(place.address)


def rows(place: Place, query: sql.Executable) -> list[sql.Row[tuple[object, ...]]]:
    """Return the rows that a query finds, or change rows."""
    with engine_at(place.address).begin() as connection:
        found = connection.execute(query)
        return list(found) if found.returns_rows else []


def elsewhere(place: Place, seconds: float, worker: str = "far") -> None:
    """Let a worker on another host have run r1, for so many seconds by the server's clock."""
    expires = sql.text(f"clock_timestamp() + interval '{seconds} seconds'")
    known = sql.select(WORKERS.c.worker).where(WORKERS.c.worker == worker)
    if rows(place, known):
        rows(place, WORKERS.update().values(expires_at=expires))
        return
    row = {"worker": worker, "host": "far.example", "pid": 7, "process": "", "expires_at": expires}
    rows(place, WORKERS.insert().values(row))
    rows(place, LEASES.insert().values(run_id="r1", worker=worker))


def test_a_run_of_a_dead_worker_is_waited_for(
    place: Place, store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An opening waits until the lease has run out, says so in the log, and then gets the run."""
    store.create(HEADER).close()
    elsewhere(place, 3)
    assert store.held("r1")
    is_over = WORKERS.c.expires_at <= sql.func.clock_timestamp()
    with caplog.at_level(logging.WARNING, "mergepoint.journal"), store.open("r1") as journal:
        far = sql.select(is_over).where(WORKERS.c.worker == "far")
        [(over,)] = rows(place, far)
        assert over
        journal.append(record("a"))
    assert "was being written by another process (pid 7 on host 'far.example'); wait" in caplog.text
    assert not store.held("r1")


def test_a_heartbeat_is_noticed_while_waiting(place: Place, store: SqlStore) -> None:
    """A worker that renews its lease lives, and the error says where it is."""
    store.create(HEADER).close()
    elsewhere(place, 10)
    beat = threading.Timer(0.3, elsewhere, (place, 30))
    beat.start()
    told = r"run 'r1' is being written by another process \(pid 7 on host 'far\.example'\); wait"
    with pytest.raises(JournalError, match=told):
        store.open("r1")
    beat.join()


def test_heartbeats_renew_all_leases_with_one_row(place: Place) -> None:
    """However many runs a worker writes, it has one row, whose time moves while it lives."""
    store = SqlStore(place.address, lease_seconds=3)
    with store.create(HEADER), store.create(begun("r2")):
        [(first,)] = rows(place, sql.select(WORKERS.c.expires_at))
        time.sleep(1.5)
        [(second,)] = rows(place, sql.select(WORKERS.c.expires_at))
        assert second > first
        assert store.held("r1")
        assert len(rows(place, sql.select(LEASES.c.token))) == 2
    assert rows(place, sql.select(LEASES.c.token)) == []


@pytest.mark.campaign
def test_a_paused_worker_writes_nothing_after_its_successor(place: Place) -> None:
    """A process that was stopped for longer than its lease is refused when it wakes up."""
    script = """
from mergepoint.journal.sql_journal import SqlStore
journal = SqlStore(sys.argv[1], lease_seconds=3).create(header("r1"))
journal.append(record(1))
print("open", flush=True)
sys.stdin.readline()
try:
    journal.append(record(2))
    print("it was written")
except JournalError as error:
    print(error)
journal.close()
"""
    store = SqlStore(place.address, lease_seconds=3)
    with started(script, place.address) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(JournalError, match="is being written by another"):
            store.open("r1")
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(3.5)
        with store.open("r1") as journal:
            journal.append(record("b"))
            os.kill(process.pid, signal.SIGCONT)
            message, _ = process.communicate("go on\n")
            assert f"another process (pid {os.getpid()} on host" in message
            assert "has taken it over, because this process gave no sign of life" in message
            assert "resume it when that one has ended" in message
            journal.append(record("c"))
    assert [one.path for one in store.read("r1")[1]] == ["a", "b", "c"]


@pytest.mark.campaign
def test_a_process_that_ends_releases_its_runs(place: Place, store: SqlStore) -> None:
    """A normal end leaves neither lease nor worker, even if a journal was left open."""
    said("journal = store_at(sys.argv[1]).create(header('r1'))\nprint(1)", place.address)
    assert rows(place, sql.select(LEASES.c.run_id)) == []
    assert rows(place, sql.select(WORKERS.c.worker)) == []
    store.open("r1").close()


@pytest.mark.campaign
@pytest.mark.parametrize("offset", [-7_200, 7_200])
def test_clocks_may_differ(place: Place, store: SqlStore, offset: int) -> None:
    """A worker whose clock is wrong by hours has its lease for as long as any other."""
    script = """
import time
offset, clock, ticks = float(sys.argv[2]), time.time, time.monotonic
time.time, time.monotonic = lambda: clock() + offset, lambda: ticks() + offset
journal = store_at(sys.argv[1]).create(header("r1"))
journal.append(record(1))
print("open", flush=True)
sys.stdin.read()
"""
    with started(script, place.address, offset) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        left = WORKERS.c.expires_at - sql.func.clock_timestamp()
        [(found,)] = rows(place, sql.select(sql.extract("epoch", left)))
        assert 15 < float(str(found)) <= 30
        with pytest.raises(JournalError, match="is being written by another"):
            store.open("r1")


def test_a_lost_connection_is_replaced(place: Place, store: SqlStore) -> None:
    """A record is written over a new connection, because the lease is still ours."""
    with store.create(HEADER) as journal:
        journal.append(record("a"))
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'x'"
        named = SqlStore(f"{place.address}&application_name=x")
        with named.create(begun("r2")) as other:
            other.append(record("a", run="r2"))
            rows(place, sql.text(end))
            other.append(record("b", run="r2"))
        journal.append(record("b"))
    assert [len(store.read(name)[1]) for name in ("r1", "r2")] == [2, 2]


def test_a_connection_that_hangs_is_given_up(
    place: Place, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that gets no answer is repeated on a new connection, and is stored once."""
    monkeypatch.setattr("mergepoint.journal.sql_engines.STALL_SECONDS", 0.5)
    proxy = Proxy(sql.make_url(place.address).port or 5432)
    far = SqlStore(sql.make_url(place.address).set(host="127.0.0.1", port=proxy.port))
    with far.create(HEADER) as journal:
        journal.append(record("a"))
        proxy.hang()
        journal.append(record("b"))
    assert [one.path for one in store.read("r1")[1]] == ["a", "b"]
    proxy.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_write_without_acknowledgement_is_recognised(kind: str, tmp_path: Path) -> None:
    """An equal row with the number of a new one is that row, which an earlier try has stored."""
    one = record("a")
    with place_of(kind, tmp_path) as found:
        store = SqlStore(found.address)
        with store.create(HEADER) as journal:
            row = RUN_TABLES.row("r1", 1, encode(record_to_plain(one)))
            rows(found, RECORDS.insert().values(row))
            journal.append(one)
            journal.append(record("b"))
        assert [each.path for each in store.read("r1")[1]] == ["a", "b"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_error_of_one_run_fails_only_that_run(kind: str, tmp_path: Path) -> None:
    """Of records that are committed together, those of other runs are stored."""
    with place_of(kind, tmp_path) as found, ExitStack() as stack:
        store = SqlStore(found.address)
        journals = [stack.enter_context(store.create(begun(name))) for name in "abc"]
        row = {"run_id": "b", "n": 1, "checksum": "00000000", "body": b"{}"}
        rows(found, RECORDS.insert().values(row))

        async def write() -> list[BaseException | None]:
            writes = [each.submit(record("x", run=each.header.run_id)) for each in journals]
            return await asyncio.gather(*writes, return_exceptions=True)

        told = asyncio.run(write())
        assert [told[0], told[2]] == [None, None]
        assert "run 'b' in" in str(told[1])
        assert "has a record 1 already, which another process wrote" in str(told[1])
        assert [len(store.read(name)[1]) for name in "ac"] == [1, 1]


def test_an_exhausted_pool_is_told_and_loses_nothing(place: Place) -> None:
    """A write that gets no connection fails after the stated time, and a later one succeeds."""
    own = sql.create_engine(place.address, pool_size=1, max_overflow=0, pool_timeout=0.1)
    store = SqlStore(own, retry_seconds=0.3)
    with store.create(HEADER) as journal:
        with (
            own.connect(),
            pytest.raises(JournalError, match=r"tried for 0\.3 seconds: QueuePool limit of size 1"),
        ):
            journal.append(record("a"))
        journal.append(record("b"))
    assert [one.path for one in store.read("r1")[1]] == ["b"]
    own.dispose()


@pytest.mark.campaign
def test_500_runs_need_a_handful_of_connections(place: Place) -> None:
    """A server for 100 connections has room for 500 runs of one process in progress."""
    store = SqlStore(f"{place.address}&application_name=many")
    names = [f"r{number}" for number in range(500)]
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many'"
    most: list[int] = []
    with ThreadPoolExecutor(50) as threads, ExitStack() as stack:
        journals = list(threads.map(lambda name: store.create(begun(name)), names))
        for journal in journals:
            stack.enter_context(journal)
        for number in range(3):
            each = (
                threads.submit(one.append, record(str(number), run=one.header.run_id))
                for one in journals
            )
            for write in list(each):
                write.result()
            most.append(int(str(rows(place, sql.text(count))[0][0])))
        assert len(rows(place, sql.select(LEASES.c.run_id))) == 500
    assert max(most) <= 4
    assert all(len(store.read(name)[1]) == 3 for name in names)


@pytest.mark.campaign
def test_runs_go_on_after_a_restart_of_the_server() -> None:
    """All runs finish with all their records while the server crashes and starts again."""
    with cluster() as server:
        store = SqlStore(server.url)

        def run(name: str) -> int:
            with store.create(begun(name)) as journal:
                for number in range(30):
                    journal.append(record(str(number), run=name))
                    time.sleep(0.02)
            return len(store.read(name)[1])

        with ThreadPoolExecutor(20) as threads:
            done = [threads.submit(run, f"r{number}") for number in range(60)]
            for _ in range(2):
                time.sleep(1)
                server.stop()
                time.sleep(0.5)
                server.start()
            assert [one.result() for one in done] == [30] * 60


@pytest.mark.campaign
def test_a_server_that_stays_away_is_told() -> None:
    """A write fails after the stated time with the way to go on, and nothing before it is lost."""
    with cluster() as server:
        store = SqlStore(server.url, retry_seconds=0.5)
        journal = store.create(HEADER)
        journal.append(record("a"))
        server.stop()
        with pytest.raises(JournalError, match=r"tried for 0\.5 seconds: .*; its earlier records"):
            journal.append(record("b"))
        server.start()
        journal.append(record("c"))
        journal.close()
        assert [one.path for one in store.read("r1")[1]] == ["a", "c"]
