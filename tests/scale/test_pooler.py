"""Journals and the queue behind PgBouncer, whose clients share the sessions of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from tests.scale.servers import own_server, pooled

import mergepoint
from mergepoint import Block, Step
from mergepoint.journal.sql_engines import sql
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.scale.queued_runs import QUEUE, RUN_TASK, queued_runs
from mergepoint.testing.scripted_model import ScriptedModel

pytest.importorskip("procrastinate", reason="it is not installed: pip install 'mergepoint[queue]'")

from mergepoint.scale.job_queue import open_queue

pytestmark = pytest.mark.scale

NOTHING = '{"command": {}}'
TREE = Block([Step(f"Say {n}.", name=f"s{n}") for n in range(8)], name="root")


@pytest.fixture(params=["transaction", "session"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of an empty database behind PgBouncer, with a way of pooling."""
    with own_server() as server, pooled(server, request.param) as address:
        yield address


def test_runs_are_written_and_read_behind_a_pooler(url: str) -> None:
    """Two clients write more statements than psycopg sends unprepared, and each reads all runs."""
    # An engine of its own makes a client that shares no connection with the other.
    stores = [SqlStore(url), SqlStore(f"{url}?application_name=other")]
    for number in range(3):
        for which, store in enumerate(stores):
            run_id = f"r{which}_{number}"
            answers = ScriptedModel(by_path={f"root/s{n}": f"{run_id} {n}" for n in range(8)})
            mergepoint.run_generation(TREE, model=answers, runs=store, run_id=run_id)
    for store in stores:
        assert len(store.runs()) == 6
        for run_id in store.runs():
            _, records = store.read(run_id)
            assert [one.response for one in records] == [f"{run_id} {n}" for n in range(8)]
    # The session of a pooler is also that of others: none of our settings stays in it.
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)


def test_jobs_are_taken_behind_a_pooler(url: str) -> None:
    """Two clients of the queue take every job once, and none of their statements is missing."""

    async def scenario() -> None:
        async with open_queue(url) as first, open_queue(url) as second:
            names = [f"run{number}" for number in range(20)]
            await first.put(RUN_TASK, [(name, {"order": NOTHING}) for name in names])
            workers = [(one, await one.jobs.register_worker()) for one in (first, second)]
            taken = []
            for number in range(20):
                queue, worker = workers[number % 2]
                job = await queue.jobs.fetch_job([QUEUE], worker)
                assert job is not None
                taken.append(job.lock)
                assert await queue.jobs.put_result(job, '{"status": "done"}')
            assert taken == names
            assert (await second.counts()).running == 20
            assert (await first.counts()).waiting == 0
        assert {one.status for one in queued_runs(SqlStore(url)).values()} == {"running"}

    asyncio.run(scenario())


def test_a_direct_connection_limits_its_statements() -> None:
    """Without a pooler, the server ends a statement that takes too long."""
    with own_server() as server:
        database = SqlStore(server.url).leases.database

        def limit(connection: sql.Connection) -> object:
            return connection.exec_driver_sql("SHOW statement_timeout").scalar()

        assert database.attempt("read", limit) == "30s"
