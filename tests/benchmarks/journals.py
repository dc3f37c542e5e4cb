"""Journals: runs of seven calls per second in each kind of store, and how long the loop waits.

`python tests/benchmarks/journals.py [store ...] [--runs 1000] [--url postgresql://...]`. Each store
is compared with a journal in memory in the same run of the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from langchain_core.messages import AIMessage

from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.segment_store import SegmentStore
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.journal.stores import MemoryJournal, RunHeader, Store, Sync
from mergepoint.journal.writer import append_record, call_and_flush, run_off_loop
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.transform import outline

CALLS = 7
AT_ONCE = 100
_TICK = 0.001  # seconds

TREE = Block([Step("Say it again.", name=f"s{n}") for n in range(CALLS)], name="t")
HEADER = RunHeader(
    run_id="r",
    created_at=datetime.now(UTC),
    seed=1,
    inputs={"topic": "rivers " * 20},
    messages=(),
    tree=outline(TREE),
    requests={f"t/s{n}": f"{n:032x}" for n in range(CALLS)},
)
ANSWER = AIMessage("An answer of some sixty words, as a small step has it. " * 6)


@dataclass
class Watched:
    """The longest time in which an event loop ran nothing, in seconds: elapsed, and CPU time.

    CPU time is that of the whole process. What other processes took is only in the elapsed time.
    """

    elapsed: float = 0.0
    cpu: float = 0.0


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Watched]:
    """Watch the event loop inside `async with`."""

    async def watch() -> None:
        while True:
            begun, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(_TICK)
            found.elapsed = max(found.elapsed, time.perf_counter() - begun - _TICK)
            found.cpu = max(found.cpu, time.process_time() - cpu)

    found = Watched()
    task = asyncio.create_task(watch())
    try:
        yield found
    finally:
        task.cancel()


@dataclass(frozen=True, slots=True)
class Found:
    """What one store took."""

    name: str
    runs_per_second: float
    cpu_per_run: float
    watched: Watched
    kilobytes: float

    def told(self, memory: Found) -> str:
        """Return a line of the table."""
        return (
            f"{self.name:20} {self.runs_per_second:8.0f} runs/s {self.cpu_per_run * 1e6:8.0f} us "
            f"CPU/run {self.cpu_per_run / memory.cpu_per_run:6.1f} x memory  longest wait "
            f"{self.watched.elapsed * 1e3:6.1f} ms ({self.watched.cpu * 1e3:.1f} ms CPU) "
            f"{self.kilobytes:6.1f} KB/run"
        )


async def _run(store: Store | None, run_id: str) -> None:
    header = replace(HEADER, run_id=run_id)
    journal: Any = MemoryJournal() if store is None else await run_off_loop(store.create, header)
    for number in range(CALLS):
        record = CallRecord(
            key=CallKey(run_id, "", f"t/s{number}"),
            prompt="Say it again. " * 20,
            response=str(ANSWER.content),
            message=ANSWER,
        )
        await asyncio.sleep(0)  # as a model
        await call_and_flush(_append, journal, record)
    if store is not None:
        await run_off_loop(journal.close)


def _append(journal: Any, record: CallRecord) -> None:
    append_record(journal, record)


def _found(store: Store | None, runs: int, name: str, folder: Path) -> Found:
    seconds, cpu, watched = asyncio.run(_runs(store, runs))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Found(name, runs / seconds, cpu / runs, watched, size / runs / 1000)


async def _runs(store: Store | None, runs: int) -> tuple[float, float, Watched]:
    async def work() -> None:
        for number in numbers:
            await _run(store, f"r{number}")

    numbers = iter(range(runs))
    begun, cpu = time.perf_counter(), time.process_time()
    async with watched_loop() as watched:
        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, runs))))
    return time.perf_counter() - begun, time.process_time() - cpu, watched


def measured(stores: Sequence[str], runs: int, url: str | None) -> list[Found]:
    """Return what each store took; the first is a journal in memory."""
    make: dict[str, Callable[[Path, Sync], Store]] = {
        "files": lambda folder, sync: FileStore(folder / "runs", sync=sync),
        "segments": lambda folder, sync: SegmentStore(folder / "runs", sync=sync),
        "sqlite": lambda folder, sync: SqlStore(f"sqlite:///{folder / 'runs.db'}", sync=sync),
    }
    if url is not None:
        make["postgresql"] = lambda _, sync: SqlStore(url, sync=sync)
    with tempfile.TemporaryDirectory() as folder:
        found = [_found(None, runs, "memory", Path(folder))]
    for name in stores or make:
        for sync in get_args(Sync):
            with tempfile.TemporaryDirectory() as folder:
                store = make[name](Path(folder), sync)
                found.append(_found(store, runs, f"{name}, {sync}", Path(folder)))
                if isinstance(store, SegmentStore):
                    store.close()
            if name == "postgresql":  # its server decides when it flushes
                break
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each store and way to flush."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", metavar="store")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--url", help="an empty PostgreSQL database")
    given = parser.parse_args(arguments)
    found = measured(given.stores, given.runs, given.url)
    print(f"{given.runs:,} runs of {CALLS} calls, {AT_ONCE} at once")
    for one in found:
        print(one.told(found[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
