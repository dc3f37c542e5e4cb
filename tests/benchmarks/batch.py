"""Batches: `python tests/benchmarks/batch.py [PART...] [--whole]`.

The parts are rates, loop, ideal, client, memory, processes, and large. Each prints its figures and,
where there is a baseline, ratios of the same run. CPU seconds are those of the whole process, and
hardly change when the machine is busy; runs per second do. With `--whole`, sizes are those of the
stated goals: half an hour on two cores.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from asyncio.events import Handle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from tests.benchmarks.batch_tree import CALLS, tree
from tests.benchmarks.model import EchoModel
from tests.benchmarks.model_server import LATENCY
from tests.journal.places import postgres
from tests.scale.fleet import TREE

from mergepoint.engine.run_tree import arun_generation
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.stores import Store
from mergepoint.scale import BatchResult, batch
from mergepoint.scale.batch_run import BatchRun
from mergepoint.scale.worker_processes import WorkerPool

IN_PROGRESS = 50
_ids = count()
_SESSION = token_hex(3)
OWN = f"{Path(__file__).with_name('batch_tree.py')}:own_model"


def topics(number: int) -> Iterator[dict[str, str]]:
    """Yield inputs."""
    for position in range(number):
        yield {"id": f"q{position}", "topic": f"topic {position}"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a run, of the clock and of the CPU."""

    wall: float
    cpu: float


async def timed(number: int, work: Callable[[int], Awaitable[None]]) -> Cost:
    """Return the cost of each of so many runs."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await work(number)
    return Cost((time.perf_counter() - wall) / number, (time.process_time() - cpu) / number)


async def one_by_one(place: str | Store, model: EchoModel, number: int) -> None:
    """Run the tree as the baseline does: each run compiles, and writes its files."""
    turns = iter(range(number))
    name = f"old{_SESSION}{next(_ids)}"

    async def lane() -> None:
        for turn in turns:
            run_id, given = f"{name}-{turn}", {"topic": f"topic {turn}"}
            await arun_generation(tree, model=model, inputs=given, runs=place, run_id=run_id)

    await asyncio.gather(*[lane() for _ in range(IN_PROGRESS)])


async def in_a_batch(place: str | Store, model: EchoModel, number: int) -> None:
    """Run the tree as a batch."""
    results = batch(
        tree, topics(number), store=place, batch_id=f"new{_SESSION}{next(_ids)}", model=model,
        concurrency=IN_PROGRESS,
    )  # fmt: skip
    assert len([one async for one in results if one.status == "done"]) == number


async def rates(folder: Path, *, whole: bool) -> None:
    """Print runs per second of a batch against those of single runs, by store."""
    number = 200 if whole else 60
    model = EchoModel()
    server = postgres()
    # The default store of a batch is made for many runs; single runs have a folder each.
    places: list[tuple[str, Any, Any]] = [
        ("default store", str(folder / "old"), str(folder / "segments")),
        ("files", str(folder / "old"), FileStore(folder / "new")),
        ("SQLite", f"sqlite:///{folder}/old.db", f"sqlite:///{folder}/new.db"),
        *([] if server is None else [("PostgreSQL", server, server)]),
    ]
    for name, old, new in places:
        pairs = []
        await timed(IN_PROGRESS, lambda size, at=new: in_a_batch(at, model, size))  # type: ignore[misc]
        for _ in range(3):
            # Next to each other, so that a busy minute of the machine hits both.
            before = await timed(number, lambda size, at=old: one_by_one(at, model, size))  # type: ignore[misc]
            after = await timed(number * 3, lambda size, at=new: in_a_batch(at, model, size))  # type: ignore[misc]
            pairs.append((before, after))
        wall, cpu = (
            median(getattr(one, clock) / getattr(other, clock) for one, other in pairs)
            for clock in ("wall", "cpu")
        )
        print(
            f"rates, {name}: {1 / median(one.wall for one, _ in pairs):.0f} -> "
            f"{1 / median(one.wall for _, one in pairs):.0f} runs/s ({wall:.1f}x), CPU "
            f"{median(one.cpu for one, _ in pairs) * 1e3:.1f} -> "
            f"{median(one.cpu for _, one in pairs) * 1e3:.1f} ms/run ({cpu:.1f}x)",
            flush=True,
        )


class Watchdog:
    """Measures the longest single step of the event loop, by the clock and by the thread's CPU."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self._run: Any = Handle._run

    def __enter__(self) -> Watchdog:
        run, steps = self._run, self.steps

        def watched(handle: Handle) -> None:
            wall, cpu = time.perf_counter(), time.thread_time()
            run(handle)
            steps.append((time.perf_counter() - wall, time.thread_time() - cpu))

        Handle._run = watched  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Handle._run = self._run  # type: ignore[method-assign]


async def loop(folder: Path, *, whole: bool) -> None:
    """Print how long a batch blocks the event loop."""
    number = 1_000 if whole else 200
    places: list[tuple[str, Any]] = [
        ("default store", str(folder / "loop")),
        ("files", FileStore(folder / "loop-files")),
        ("SQLite", f"sqlite:///{folder}/loop.db"),
        *([] if (server := postgres()) is None else [("PostgreSQL", server)]),
    ]
    for name, place in places:
        await in_a_batch(place, EchoModel(), IN_PROGRESS)
        with Watchdog() as watchdog:
            await in_a_batch(place, EchoModel(), number)
        walls = sorted(wall for wall, _ in watchdog.steps)
        cpus = sorted(cpu for _, cpu in watchdog.steps)
        over = sum(cpu > 0.005 for cpu in cpus)
        print(
            f"loop, {name}: {len(walls):,} steps, longest {cpus[-1] * 1e3:.1f} ms of CPU and "
            f"{walls[-1] * 1e3:.1f} ms by the clock; {over} above 5 ms of CPU; 99.9 % within "
            f"{walls[len(walls) * 999 // 1000] * 1e3:.2f} ms by the clock",
            flush=True,
        )


async def ideal(folder: Path, *, whole: bool) -> None:
    """Print the time of a batch against that of its calls alone."""
    number, latency, at_once = (5_000 if whole else 300), 0.5, 100
    model = EchoModel(latency=latency)
    start = time.perf_counter()
    cpu = time.process_time()
    results = batch(tree, topics(number), out=folder / "ideal.jsonl", model=model)
    done = sum([1 async for one in results if one.status == "done"])
    seconds = time.perf_counter() - start
    best = number * CALLS * latency / at_once
    print(
        f"ideal: {done:,} inputs x {CALLS} calls of {latency} s, {at_once} in progress: "
        f"{seconds:.1f} s, ideal {best:.1f} s, {best / seconds:.0%}; CPU "
        f"{(time.process_time() - cpu) / number * 1e3:.1f} ms/run",
        flush=True,
    )


@contextmanager
def _served() -> Iterator[str]:
    """Yield the address of a model in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("model_server.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:  # noqa: S603
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


async def client(folder: Path, *, whole: bool) -> None:
    """Print the CPU time of a run whose calls go through OpenAI's client, and without it."""
    number = 1_000 if whole else 200
    os.environ.setdefault("OPENAI_API_KEY", "none")
    (folder / "parts.yaml").write_text(TREE)
    seconds = []
    with _served() as url:
        models: list[dict[str, Any]] = [
            {"model": EchoModel(latency=LATENCY)},
            {"model": "openai:scripted", "base_url": url},
        ]
        for turn, options in enumerate(models):
            cpu = 0.0
            for size, name in ((50, "first"), (number, "measured")):
                out = folder / f"{name}{turn}.jsonl"
                cpu = time.process_time()
                results = batch(folder / "parts.yaml", topics(size), out=out, **options)
                assert len([one async for one in results if one.status == "done"]) == size
            seconds.append((time.process_time() - cpu) / number)
    own, whole_run = seconds
    print(
        f"client: CPU {own * 1e3:.1f} ms/run with a model in this process, {whole_run * 1e3:.1f} "
        f"with OpenAI's client; {60 * CALLS / whole_run:,.0f} requests per minute and core",
        flush=True,
    )


def resident() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def memory(folder: Path, *, whole: bool) -> None:
    """Print the memory of a batch as it goes on."""
    first, last = 500, 5_000 if whole else 1_500
    number, found = 0, {}
    async for _ in batch(tree, topics(last), out=folder / "memory.jsonl", model=EchoModel()):
        number += 1
        if number in (first, last):
            gc.collect()
            found[number] = resident()
    print(
        f"memory: {found[first]:.0f} MiB after {first:,} inputs, {found[last]:.0f} MiB after "
        f"{last:,}: {found[last] - found[first]:+.1f} MiB",
        flush=True,
    )


async def processes(folder: Path, *, whole: bool) -> None:
    """Print the speed of two worker processes against one, on a model that only computes."""
    number = 2_000 if whole else 400
    seconds = {}
    for workers in (1, 2):
        start = 0.0
        done = 0
        results = _in_processes(folder / f"p{workers}.jsonl", number, workers)
        async for _ in results:
            done += 1
            if done == number // 8:  # the processes have started, and prepared the tree
                start = time.perf_counter()
        seconds[workers] = (time.perf_counter() - start) / (number - number // 8)
    print(
        f"processes: {1 / seconds[1]:.0f} runs/s with 1, {1 / seconds[2]:.0f} with 2: "
        f"{seconds[1] / seconds[2]:.2f}x",
        flush=True,
    )


async def _in_processes(out: Path, number: int, workers: int) -> AsyncIterator[BatchResult]:
    run = BatchRun.of(OWN, topics(number), out=out)

    class Pool:
        def results(self, spec: Any, inputs: Any) -> Any:
            pool = WorkerPool(
                spec, workers=workers, concurrency=IN_PROGRESS, max_attempts=3, heartbeat=60
            )
            return pool.results(inputs)

    try:
        async for result in run.results(Pool()):
            yield result
    finally:
        run.close()


async def large(folder: Path, *, whole: bool) -> None:
    """Print time, memory and file sizes of a large batch."""
    number = 20_000 if whole else 1_000
    start, out = time.perf_counter(), folder / "large.jsonl"
    before, cpu = resident(), time.process_time()
    done = sum(
        [1 async for one in batch(tree, topics(number), out=out, model=EchoModel()) if one.calls]
    )
    seconds = time.perf_counter() - start
    files = [path for path in (folder / "large-runs").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(
        f"large: {done:,} inputs x {CALLS} calls in {seconds:.0f} s ({number / seconds:.0f} "
        f"runs/s, CPU {(time.process_time() - cpu) / number * 1e3:.1f} ms/run); results "
        f"{out.stat().st_size / 2**20:.1f} MiB; journals {size / 2**20:.1f} MiB in {len(files):,} "
        f"files ({size / number:,.0f} bytes a run); memory {before:.0f} -> {resident():.0f} MiB",
        flush=True,
    )


PARTS = {part.__name__: part for part in (rates, loop, ideal, client, memory, processes, large)}


async def main(names: list[str], *, whole: bool) -> None:
    """Measure the named parts, or all."""
    for name in names or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            await PARTS[name](Path(folder), whole=whole)


if __name__ == "__main__":
    wanted = [one for one in sys.argv[1:] if not one.startswith("-")]
    asyncio.run(main(wanted, whole="--whole" in sys.argv))
