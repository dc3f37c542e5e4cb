"""LocalEngine: workers on this machine, as tasks of one process or in processes of their own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final

from mergepoint.journal.writer import run_off_loop
from mergepoint.scale.protocol import BatchError, BatchInput, BatchResult, RunSpec
from mergepoint.scale.run_spec import LiveValues
from mergepoint.scale.worker import BatchWorker
from mergepoint.scale.worker_processes import WorkerPool

CONCURRENCY: Final = 100
HEARTBEAT_SECONDS: Final = 60.0


class LocalEngine:
    """Runs a batch on this machine.

    With one worker, all runs are tasks of this process. With more, each worker is a process, so
    that CPU-bound work uses several cores. They end when this process ends, however it ends.

    Args:
        workers: Number of workers. With 1, no process is started.
        concurrency: Most runs in progress, over all workers.
        max_attempts: Number of dead workers after which an input is a failed result.
        heartbeat: Seconds without a sign of life after which a worker process is killed.
        live: Values that only this process has. They need `workers=1`.

    Raises:
        BatchError: A number is less than 1.
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        concurrency: int = CONCURRENCY,
        max_attempts: int = 3,
        heartbeat: float = HEARTBEAT_SECONDS,
        live: LiveValues | None = None,
    ) -> None:
        for name, number in (
            ("workers", workers),
            ("concurrency", concurrency),
            ("max_attempts", max_attempts),
        ):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise BatchError(f"{name} is a number from 1, not {number!r}")
        self._workers = workers
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._heartbeat = heartbeat
        self._live = live

    async def results(
        self, spec: RunSpec, inputs: AsyncIterator[BatchInput]
    ) -> AsyncIterator[BatchResult]:
        """Yield one result for each input, as they finish."""
        if self._workers == 1:
            source = self._in_tasks(spec, inputs)
        else:
            source = WorkerPool(
                spec,
                workers=self._workers,
                concurrency=self._concurrency,
                max_attempts=self._max_attempts,
                heartbeat=self._heartbeat,
            ).results(inputs)
        async with aclosing(source) as results:  # type: ignore[type-var]
            async for result in results:
                yield result

    async def _in_tasks(
        self, spec: RunSpec, inputs: AsyncIterator[BatchInput]
    ) -> AsyncIterator[BatchResult]:
        worker = await run_off_loop(BatchWorker, spec, live=self._live)
        try:
            lanes = _Lanes(worker, inputs)
            with _frozen_heap():
                async with aclosing(lanes.results(self._concurrency)) as results:  # type: ignore[type-var]
                    async for result in results:
                        yield result
        finally:
            await worker.close()


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Leave what is loaded now out of garbage collections: a full one stops the loop for 0.1 s."""
    # Another batch, or the host, may have frozen it already; then it is theirs to unfreeze.
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


class _Lanes:
    """Tasks that each take an input, run it, and hand over its result."""

    def __init__(self, worker: BatchWorker, inputs: AsyncIterator[BatchInput]) -> None:
        self._worker = worker
        self._inputs = inputs
        self._reading = asyncio.Lock()  # an async generator has one reader at a time
        self._ended = False
        self._failed: BaseException | None = None

    async def results(self, concurrency: int) -> AsyncIterator[BatchResult]:
        # Bounded: a slow consumer stops the lanes, and the memory stays flat.
        out: asyncio.Queue[BatchResult | None] = asyncio.Queue(concurrency)
        lanes = [asyncio.create_task(self._lane(out)) for _ in range(concurrency)]
        left = concurrency
        try:
            while left:
                result = await out.get()
                if result is None:
                    left -= 1
                else:
                    yield result
            # An input that can't be read, or a store that is down, ends the batch once the runs
            # in progress have ended.
            if self._failed is not None:
                raise self._failed
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    async def _lane(self, out: asyncio.Queue[BatchResult | None]) -> None:
        try:
            while (given := await self._next()) is not None:
                await out.put(await self._worker.run(given))
        except Exception as error:  # noqa: BLE001  (raised where the results are read)
            self._failed = self._failed or error
            self._ended = True
        await out.put(None)

    async def _next(self) -> BatchInput | None:
        async with self._reading:
            if self._ended:
                return None
            given = await anext(self._inputs, None)
            self._ended = given is None
            return given
