"""Worker processes: nothing is lost when workers or the driver die, and no call is paid twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.scale.batch_driver import TARGET

from mergepoint.scale import BatchError, BatchResult, LocalEngine, batch
from mergepoint.scale.protocol import LOST, BatchInput, RunSpec
from mergepoint.scale.run_spec import installed_version

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
ROOT = Path(__file__).parents[2]


def topics(*words: str) -> list[dict[str, str]]:
    """Return inputs whose ids are their topics."""
    return [{"id": word.replace(" ", "_"), "topic": word} for word in words]


def run(inputs: Any, out: Path, **options: Any) -> list[BatchResult]:
    """Run a batch in worker processes to its end."""

    async def every() -> list[BatchResult]:
        return [one async for one in batch(TARGET, inputs, out=out, **options)]

    return asyncio.run(every())


def workers_of(calls: Path) -> set[int]:
    """Return the ids of the worker processes that write their calls to a file."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_worker = b"scale.worker_process" in (process / "cmdline").read_bytes()
            if is_worker and f"CALLS={calls}".encode() in (process / "environ").read_bytes():
                found.add(int(process.name))
    return found


def test_processes_share_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes run all inputs, and none is left at the end."""
    calls = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(calls))
    # On a busy machine one process starts seconds before the other.
    monkeypatch.setenv("LATENCY", "0.3")
    words = [f"t{number}" for number in range(16)]
    results = run(topics(*words), tmp_path / "r.jsonl", workers=2, concurrency=2)
    assert sorted(one.id for one in results) == sorted(words)
    assert {(one.status, one.calls) for one in results} == {("done", 3)}
    lines = [line.split(" ", 2) for line in calls.read_text().splitlines()]
    assert len(lines) == 3 * len(words)
    assert len({pid for _, pid, _ in lines}) == 2
    assert workers_of(calls) == set()


@pytest.mark.campaign
def test_an_input_that_kills_its_workers_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poison input is a failed result after three workers, and all others are done."""
    monkeypatch.setenv("LATENCY", "0.05")
    words = ["t0", "t1", "die", *(f"t{number}" for number in range(2, 20))]
    results = run(topics(*words), tmp_path / "r.jsonl", workers=2, concurrency=8)
    by_id = {one.id: one for one in results}
    assert len(by_id) == len(results) == len(words)
    lost = by_id.pop("die")
    assert lost.error is not None
    assert (lost.status, lost.error["type"], lost.attempts) == ("failed", LOST, 3)
    assert "3 workers died" in lost.error["message"]
    assert {one.status for one in by_id.values()} == {"done"}


@pytest.mark.campaign
def test_a_worker_that_is_paused_is_replaced(tmp_path: Path) -> None:
    """A worker without a sign of life is killed, and its inputs go to another one."""

    async def every() -> list[BatchResult]:
        engine = LocalEngine(workers=2, concurrency=4, heartbeat=6, max_attempts=2)
        words = topics("t0", "pause", "t1", "t2")
        return [one async for one in batch(TARGET, words, out=tmp_path / "r", engine=engine)]

    by_id = {one.id: one for one in asyncio.run(every())}
    assert by_id.pop("pause").status == "failed"
    assert {one.status for one in by_id.values()} == {"done"}


@pytest.mark.campaign
def test_a_worker_of_another_version_refuses() -> None:
    """A spec of another version or another tree is refused, and the error names both sides."""

    async def first(**changed: str) -> None:
        spec = RunSpec.from_plain(
            {
                "batch": "b", "target": TARGET, "kind": "name", "store": "runs",
                "version": installed_version(), "fingerprint": "0" * 32, **changed,
            }
        )  # fmt: skip

        async def given() -> Any:
            yield BatchInput(id="1", value={"topic": "x"}, number=0)

        async for _ in LocalEngine(workers=2).results(spec, given()):
            pass

    with pytest.raises(BatchError, match=r"started by mergepoint 0\.0\.1, and this worker runs"):
        asyncio.run(first(version="0.0.1"))
    with pytest.raises(BatchError, match="is another tree or recipe on this worker"):
        asyncio.run(first())


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [1, 2])
def test_kills_at_random_moments_lose_and_repeat_nothing(workers: int, tmp_path: Path) -> None:
    """After kills of the driver and of workers, every input has one right result, paid once."""
    calls, out, number = tmp_path / "calls", tmp_path / "results.jsonl", 200
    environment = {**os.environ, "CALLS": str(calls), "LATENCY": "0.15"}
    command = [
        sys.executable,
        "-m",
        "tests.scale.batch_driver",
        str(out),
        str(number),
        str(workers),
    ]
    chance = random.Random(workers)  # noqa: S311
    kills: list[float] = []

    def made() -> int:
        return calls.read_bytes().count(b"\n") if calls.exists() else 0

    # Moments are counted in calls and not in seconds, so that a busy machine gets as far.
    for rounds in range(6):
        driver = subprocess.Popen(command, cwd=ROOT, env=environment)  # noqa: S603
        end = made() + chance.randrange(40, 160) if rounds < 5 else sys.maxsize
        next_worker = made() + chance.randrange(10, 80)
        while driver.poll() is None and made() < end:
            time.sleep(chance.uniform(0.05, 0.3))
            own = sorted(workers_of(calls))
            if own and made() >= next_worker:
                os.kill(chance.choice(own), signal.SIGKILL)
                kills.append(time.time())
                next_worker = made() + chance.randrange(80, 200)
        if driver.poll() is None:
            driver.kill()
            kills.append(time.time())
        driver.wait()
        # The workers of a killed driver end by themselves.
        deadline = time.monotonic() + 90
        while workers_of(calls) and time.monotonic() < deadline:
            time.sleep(1)
        assert workers_of(calls) == set()
    assert driver.returncode == 0
    results = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert Counter(one["id"] for one in results) == Counter(f"q{at}" for at in range(number))
    assert all(
        one["outputs"]["c"] == f"<<<{one['id'].replace('q', 't')} a> b> c>" for one in results
    )
    moments_of: dict[str, list[float]] = {}
    for line in calls.read_text().splitlines():
        moment, _, prompt = line.split(" ", 2)
        moments_of.setdefault(prompt, []).append(float(moment))
    assert len(moments_of) == 3 * number
    repeated = {prompt: moments for prompt, moments in moments_of.items() if len(moments) > 1}
    # What was answered within this time before a kill may not have been on disk.
    late = [
        prompt
        for prompt, moments in repeated.items()
        if not all(any(0 <= kill - moment < 0.5 for kill in kills) for moment in moments[:-1])
    ]
    print(f"{workers} workers, {len(kills)} kills: {len(repeated)} of {3 * number} calls repeated")
    assert len(late) <= 0.002 * 3 * number, late
