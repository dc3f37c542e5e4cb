"""The queue: workers that are killed, paused or stopped, a restarted database, a killed driver."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of
from tests.scale.fleet import (
    CALLS,
    CountingModel,
    all_results,
    is_right,
    lines_of,
    numbered,
    spec_of,
    waited,
)
from tests.scale.servers import own_server

from mergepoint.scale import BatchError, BatchInput, BatchResult, RunSpec

pytest.importorskip("procrastinate", reason="it is not installed: pip install 'mergepoint[queue]'")
from procrastinate.jobs import Status

from mergepoint.scale.job_queue import JobQueue, open_queue
from mergepoint.scale.queue_engine import QueueEngine
from mergepoint.scale.queued_runs import BATCH_TASK

pytestmark = pytest.mark.scale

ROOT = Path(__file__).parents[2]


@contextmanager
def workers(
    url: str, count: int, folder: Path, *more: str
) -> Iterator[list[subprocess.Popen[Any]]]:
    """Yield processes of `mergepoint work`; they are killed at the end."""
    environment = {**os.environ, "OPENAI_API_KEY": "none", "MERGEPOINT_STORE": url}
    command = [sys.executable, "-m", "mergepoint.apps.cli", "work", "--json", "--concurrency", "4"]
    started: list[subprocess.Popen[Any]] = []
    try:
        for number in range(count):
            log = (folder / f"worker_{number}").open("wb")
            with log:
                started.append(
                    subprocess.Popen(  # noqa: S603  (our own words)
                        [*command, *more], cwd=ROOT, env=environment, stdout=log, stderr=log
                    )
                )
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()


def events(folder: Path, number: int = 0) -> list[dict[str, Any]]:
    """Return the events that a worker wrote."""
    lines = (folder / f"worker_{number}").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def driver(spec: RunSpec, count: int, out: Path) -> subprocess.Popen[bytes]:
    """Start a driver in a process of its own."""
    words = ["queue", "{}", json.dumps(spec.to_plain()), str(count), str(out)]
    command = [sys.executable, "-m", "tests.scale.fleet", *words]
    return subprocess.Popen(command, cwd=ROOT)  # noqa: S603  (our own words)


def test_a_batch_outlives_killed_and_paused_workers(tmp_path: Path) -> None:
    """400 inputs end right with at most 0.2 % of calls repeated, whatever happens to workers."""
    # Two of four are killed, one wakes up after its lease has run out, and the driver is killed.
    count, out = 400, tmp_path / "results.jsonl"
    with (
        CountingModel(delay=0.3) as model,
        place_of("postgresql", tmp_path) as place,
        workers(place.address, 4, tmp_path) as fleet,
    ):
        spec = spec_of(place.address, model.url)
        began = time.monotonic()
        running = driver(spec, count, out)
        waited(lambda: len(lines_of(out)) >= 20, "the first results", 400)
        fleet[0].kill()
        fleet[1].send_signal(signal.SIGSTOP)
        paused = time.monotonic()
        waited(lambda: len(lines_of(out)) >= 60, "more results", 400)
        running.kill()
        running.wait()
        running = driver(spec, count, out)
        fleet[2].kill()
        time.sleep(max(0, 40 - (time.monotonic() - paused)))
        fleet[1].send_signal(signal.SIGCONT)
        assert running.wait(400) == 0
        seconds = time.monotonic() - began
        results = lines_of(out)
        right = sum(map(is_right, results))
        print(
            f"{right} of {count} right, {model.answered} answers, {model.repeated} repeated, "
            f"{seconds:.0f} s"
        )
        assert {one.id for one in results} == {f"q{number}" for number in range(count)}
        assert right == count
        assert model.repeated <= 0.002 * CALLS * count
        # The paused worker goes on after it woke up.
        assert fleet[1].poll() is None


def test_a_batch_outlives_a_restarted_database(tmp_path: Path) -> None:
    """PostgreSQL is stopped and started in mid-batch: every input ends right, none is repeated."""
    count = 100
    out = tmp_path / "results.jsonl"
    with (
        CountingModel(delay=0.2) as model,
        own_server() as server,
        workers(server.url, 2, tmp_path) as fleet,
    ):
        spec = spec_of(server.url, model.url)
        running = driver(spec, count, out)
        waited(lambda: len(lines_of(out)) >= 10, "the first results", 400)
        server.control("stop", "-m", "immediate")
        time.sleep(3)
        server.control("start")
        assert running.wait(300) == 0
        assert [one.poll() for one in fleet] == [None, None]
        results = lines_of(out)
        print(f"{sum(map(is_right, results))} right, {model.repeated} repeated")
        assert sum(map(is_right, results)) == count
        assert model.repeated <= 0.002 * CALLS * count + 8  # those in progress at the stop


def test_a_stopped_worker_leaves_its_runs(tmp_path: Path) -> None:
    """SIGTERM ends a worker with code 0; runs that outlast the grace period are left, and named."""
    out = tmp_path / "results.jsonl"
    with CountingModel(delay=3) as model, place_of("postgresql", tmp_path) as place:
        spec = spec_of(place.address, model.url)
        running = driver(spec, 2, out)
        with workers(place.address, 1, tmp_path, "--grace", "1") as fleet:
            waited(lambda: len(events(tmp_path)) >= 3, "two runs", 200)
            fleet[0].send_signal(signal.SIGTERM)
            assert fleet[0].wait(60) == 0
        last = events(tmp_path)[-1]
        assert last["event"] == "ended"
        assert sorted(last["left"]) == ["fleet.q0", "fleet.q1"]
        model._delay = 0.01
        with workers(place.address, 1, tmp_path, "--until-empty") as fleet:
            assert fleet[0].wait(90) == 0
        told = events(tmp_path)
        assert sorted(one["run_id"] for one in told if one["event"] == "done") == sorted(
            last["left"]
        )
        assert told[-1]["done"] == 2
        assert running.wait(60) == 0
        assert all(map(is_right, lines_of(out)))


def test_workers_refuse_another_version(tmp_path: Path) -> None:
    """A worker with another version or tree refuses a batch, and the driver raises its reason."""
    with (
        CountingModel(delay=0) as model,
        place_of("postgresql", tmp_path) as place,
        workers(place.address, 1, tmp_path),
    ):
        spec = spec_of(place.address, model.url)
        with pytest.raises(BatchError, match=r"mergepoint 9\.9\.9"):
            asyncio.run(all_results(QueueEngine(), replace(spec, version="9.9.9"), 2))
        with pytest.raises(BatchError, match="fingerprint"):
            asyncio.run(all_results(QueueEngine(), replace(spec, fingerprint="0" * 32), 2))
        assert model.answered == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:///runs.db", "needs the URL of a PostgreSQL"),
        ("runs", "needs the URL of a PostgreSQL"),
        ("postgresql://postgres@127.0.0.1:1/none", "can't open the queue"),
    ],
)
def test_a_database_that_has_no_queue(url: str, message: str) -> None:
    """A folder, another database, and a server that isn't there are errors with the reason."""

    async def opened() -> None:
        async with open_queue(url):
            pass

    with pytest.raises(BatchError, match=message):
        asyncio.run(opened())


async def _one(queue: JobQueue, status: str) -> None:
    """Take the oldest job, and put a result."""
    worker = await queue.jobs.register_worker()
    job = await queue.jobs.fetch_job(["mergepoint"], worker)
    assert job is not None
    result = BatchResult(id="q0", status="done", text=status)
    assert await queue.jobs.put_result(job, json.dumps(result.to_plain()))


def test_only_the_worker_that_has_a_job_can_end_it(tmp_path: Path) -> None:
    """A job that was given to another worker can't be ended or answered by the first one."""

    async def scenario(url: str) -> None:
        async with open_queue(url) as queue, open_queue(url):  # the second finds its tables
            jobs = queue.jobs
            await queue.put(
                BATCH_TASK, [("run", {"spec": "{}", "given": "{}", "max_attempts": "3"})]
            )
            first, second = await jobs.register_worker(), await jobs.register_worker()
            job = await jobs.fetch_job(["mergepoint"], first)
            assert job is not None
            assert await jobs.fetch_job(["mergepoint"], second) is None
            assert await jobs.retry_lost(job)
            again = await jobs.fetch_job(["mergepoint"], second)
            assert again is not None
            assert (again.id, again.attempts) == (job.id, 1)
            assert not await jobs.put_result(job, "{}")
            assert not await jobs.retry_lost(job)
            await jobs.finish_job(job, Status.SUCCEEDED, delete_job=False)
            assert (await queue.counts()).running == 1
            assert await jobs.put_result(again, '{"status": "done"}')

    with place_of("postgresql", tmp_path) as place:
        asyncio.run(scenario(place.address))


def test_an_early_end_takes_back_what_waits(tmp_path: Path) -> None:
    """Closing a batch deletes the jobs that no worker has, and reads no further inputs."""
    read = []

    async def inputs() -> AsyncIterator[BatchInput]:
        async for given in numbered(100):
            read.append(given.id)
            yield given

    async def scenario(spec: RunSpec) -> None:
        async with open_queue(spec.store) as queue:
            results = QueueEngine(concurrency=5, poll=0.05).results(spec, inputs())
            first = asyncio.ensure_future(anext(aiter(results)))
            await asyncio.sleep(1)
            assert (await queue.counts()).waiting == 5
            await _one(queue, "by hand")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(first), 0.5)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert (await queue.counts()).waiting == 0

    with CountingModel(delay=0) as model, place_of("postgresql", tmp_path) as place:
        asyncio.run(scenario(spec_of(place.address, model.url)))
    assert len(read) == 5
