"""Runs that end their workers: the last attempt of each is alone, so that only it is to blame."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of
from tests.scale.batch_driver import TARGET
from tests.scale.fleet import waited

from mergepoint.scale.protocol import LOST

pytest.importorskip("procrastinate", reason="it is not installed: pip install 'mergepoint[queue]'")

from mergepoint.apps.cli.enqueue import RunOrder
from mergepoint.apps.cli.invocation import Invocation
from mergepoint.report.run_state import COMMAND
from mergepoint.scale import QueueEngine, batch
from mergepoint.scale.job_queue import JobQueue, open_queue
from mergepoint.scale.queue_worker import JobEvent, QueueWorker
from mergepoint.scale.queued_runs import RUN_TASK

pytestmark = pytest.mark.scale

ROOT = Path(__file__).parents[2]
WORDS = ["t0", "t1", "die", "t2"]  # a worker takes them together: it has room for four


@contextmanager
def replaced_worker(url: str, out: Path) -> Iterator[None]:
    """Run one worker at a time, and start another one after each that dies."""
    over = threading.Event()
    environment = {**os.environ, "LATENCY": "1", "OPENAI_API_KEY": "none"}
    started: list[subprocess.Popen[bytes]] = []

    def supervise() -> None:
        while not over.is_set():
            with out.open("ab") as file:
                words = [sys.executable, "-m", "tests.scale.queue_process", url]
                worker = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=file)  # noqa: S603
            started.append(worker)
            worker.wait()

    thread = threading.Thread(target=supervise, name="supervisor")
    thread.start()
    try:
        yield
    finally:
        over.set()
        for one in started:
            one.kill()
        thread.join()


def events(out: Path) -> list[dict[str, Any]]:
    """Return the events of the workers."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def blamed_alone(happened: list[dict[str, Any]]) -> None:
    """Check that a worker began no other run while it had the last attempt of one."""
    alone: dict[int, str] = {}
    for one in happened:
        worker, run = one["worker"], one["run_id"]
        assert one["event"] != "started" or worker not in alone
        if one["alone"]:
            alone[worker] = run
        elif alone.get(worker) == run:
            del alone[worker]
    assert sum(one["alone"] for one in happened) == len(WORDS)


def test_an_input_that_ends_its_workers_is_alone_to_blame(tmp_path: Path) -> None:
    """Of four inputs in progress at each death, the one that causes it fails; all others end."""
    out = tmp_path / "events"

    async def drive(url: str) -> dict[str, Any]:
        inputs = [{"id": word, "topic": word} for word in WORDS]
        engine = QueueEngine(max_attempts=3)
        return {one.id: one async for one in batch(TARGET, inputs, store=url, engine=engine)}

    with place_of("postgresql", tmp_path) as place, replaced_worker(place.address, out):
        found = asyncio.run(asyncio.wait_for(drive(place.address), 400))
    lost = found.pop("die")
    assert (lost.status, lost.error["type"], lost.attempts) == ("failed", LOST, 3)
    assert {one.id: (one.status, one.attempts) for one in found.values()} == {
        word: ("done", 3) for word in WORDS if word != "die"
    }
    blamed_alone(events(out))


def order(topic: str) -> str:
    """Return the order of a run of the tree."""
    command = Invocation(target=TARGET, model="offline").to_meta(None)[COMMAND]
    return RunOrder(run_id=f"run_{topic}", command=command, inputs={"topic": topic}).to_text()


def test_a_run_that_ends_its_workers_is_alone_to_blame(tmp_path: Path) -> None:
    """Of four single runs in progress at each death, the one that causes it is given up."""
    out = tmp_path / "events"

    async def put(url: str) -> None:
        async with open_queue(url) as queue:
            jobs = [(f"run_{word}", {"order": order(word)}) for word in WORDS]
            await queue.put(RUN_TASK, jobs)

    with place_of("postgresql", tmp_path) as place:
        asyncio.run(put(place.address))
        with replaced_worker(place.address, out):
            ends = ("done", "failed")
            waited(
                lambda: sum(one["event"] in ends for one in events(out)) == len(WORDS), "ends", 400
            )
    happened = events(out)
    assert {one["run_id"]: one["event"] for one in happened if one["event"] in ends} == {
        f"run_{word}": "failed" if word == "die" else "done" for word in WORDS
    }
    blamed_alone(happened)


async def lose(queue: JobQueue, lock: str, times: int, *, mark: bool = False) -> None:
    """Take the oldest job as a worker that dies, a number of times."""
    for _ in range(times):
        worker = await queue.jobs.register_worker()
        job = await queue.jobs.fetch_job(["mergepoint"], worker)
        assert job is not None
        assert job.lock == lock
        assert await queue.jobs.retry_lost(job)
    worker = await queue.jobs.register_worker()
    job = await queue.jobs.fetch_job(["mergepoint"], worker)
    assert job is not None
    assert not mark or await queue.jobs.mark_alone(job)
    await queue.app.connector.execute_query_async(
        "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
    )


async def carried_out(queue: JobQueue, concurrency: int) -> list[JobEvent]:
    """Return the events of a worker that empties a queue; a run takes 0.3 seconds."""
    happened: list[JobEvent] = []

    async def run_order(given: Mapping[str, Any]) -> Mapping[str, Any]:
        await asyncio.sleep(0.3)
        return {"status": "done"}

    worker = QueueWorker(
        queue, concurrency=concurrency, run_order=run_order, on_event=happened.append, stalled=2.0
    )
    await asyncio.wait_for(worker.run(until_empty=True), 60)
    return happened


@pytest.mark.parametrize("begun", [False, True])
def test_a_worker_that_died_of_another_run_is_no_attempt(tmp_path: Path, *, begun: bool) -> None:
    """A last attempt counts only if it had begun when its worker died."""

    async def scenario(url: str) -> list[tuple[str, Any]]:
        async with open_queue(url) as queue:
            await queue.put(RUN_TASK, [("run", {"order": json.dumps({"run_id": "run"})})])
            await lose(queue, "run", 2, mark=begun)
            happened = await carried_out(queue, 4)
            return [(one.kind, one.data.get("attempts")) for one in happened]

    with place_of("postgresql", tmp_path) as place:
        told = asyncio.run(scenario(place.address))
    again = [("lost", 2), ("started", 3), ("done", None)]
    assert told == ([("failed", None)] if begun else again)


def test_a_last_attempt_waits_for_others_and_keeps_others_out(tmp_path: Path) -> None:
    """Runs before it end first, and runs after it begin later, also with room for four."""

    async def scenario(url: str) -> list[tuple[str, str]]:
        async with open_queue(url) as queue:
            await queue.put(RUN_TASK, [("last", {"order": json.dumps({"run_id": "last"})})])
            await lose(queue, "last", 2)
            # Until it is known to be lost, the worker takes two others, and later the rest.
            names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
            jobs = [(name, {"order": json.dumps({"run_id": name})}) for name in names]
            await queue.put(RUN_TASK, jobs[:2])
            happened = asyncio.ensure_future(carried_out(queue, 4))
            await asyncio.sleep(0.1)
            await queue.put(RUN_TASK, jobs[2:])
            return [(one.kind, one.run_id) for one in await happened]

    with place_of("postgresql", tmp_path) as place:
        told = asyncio.run(scenario(place.address))
    started = told.index(("started", "last"))
    assert told[started + 1] == ("done", "last")
    running = {run for kind, run in told[:started] if kind == "started"}
    assert running == {run for kind, run in told[:started] if kind == "done"}
    assert sum(kind == "done" for kind, _ in told) == 11
