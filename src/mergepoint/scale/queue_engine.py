"""QueueEngine: give the inputs of a batch to the workers of a queue (`mergepoint work`)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from mergepoint.scale.job_queue import EndedJob, JobQueue, open_queue
from mergepoint.scale.protocol import BatchError, BatchInput, BatchResult, RunSpec, run_id_of
from mergepoint.scale.queued_runs import BATCH_TASK, STALLED_SECONDS

_CHUNK: Final = 200
_logger = logging.getLogger(__name__)


class QueueEngine:
    """Runs a batch on the workers that `mergepoint work` started, on any machine.

    The queue is in the database of the batch's journals, which must be PostgreSQL. If the driver
    dies, the workers go on with the inputs that it added, and the same batch finds their results.

    Args:
        workers: 1. The workers are those that `mergepoint work` started.
        concurrency: Most inputs in the queue at a time.
        max_attempts: Number of dead workers after which an input is a failed result.
        poll: Seconds between two looks at the results; one query asks for all of them.

    Raises:
        BatchError: A number is less than 1, or `workers` is another number than 1.
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        concurrency: int = 1000,
        max_attempts: int = 3,
        poll: float = 0.5,
    ) -> None:
        for name, number in (("concurrency", concurrency), ("max_attempts", max_attempts)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise BatchError(f"{name} is a number from 1, not {number!r}")
        if workers != 1:
            raise BatchError(
                "the engine 'queue' starts no workers; leave out their number, and run 'mergepoint "
                "work' for each"
            )
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._poll = poll

    async def results(
        self, spec: RunSpec, inputs: AsyncIterator[BatchInput]
    ) -> AsyncIterator[BatchResult]:
        """Yield one result for each input, as they finish.

        Closing it takes back the inputs that no worker has; the others are finished by their
        workers, and their results are in the journals.

        Raises:
            BatchError: The store isn't a PostgreSQL database or doesn't answer, or a worker can't
                run the batch, for example because its version differs.
        """
        async with open_queue(spec.store) as queue:
            run = _QueueRun(queue, spec, self._concurrency, self._max_attempts)
            reading = asyncio.create_task(run.read(inputs))
            try:
                async for result in run.finished(self._poll):
                    yield result
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                with suppress(BatchError):
                    await run.take_back()


class _QueueRun:
    """One batch in the queue: the inputs that wait for a result."""

    def __init__(self, queue: JobQueue, spec: RunSpec, concurrency: int, max_attempts: int) -> None:
        self._queue = queue
        self._spec = spec
        self._text = json.dumps(spec.to_plain())
        self._max_attempts = max_attempts
        self._room = asyncio.Semaphore(concurrency)
        self._read: list[BatchInput] = []
        self._jobs: dict[int, BatchInput] = {}
        self._ended = False
        self._failed: BaseException | None = None
        self._taken: list[int] = []

    async def read(self, inputs: AsyncIterator[BatchInput]) -> None:
        """Read inputs while there is room."""
        try:
            while True:
                await self._room.acquire()
                given = await anext(inputs, None)
                if given is None:
                    break
                self._read.append(given)
        except Exception as error:  # noqa: BLE001  (raised where the results are read)
            self._failed = error
        self._ended = True

    async def finished(self, poll: float) -> AsyncIterator[BatchResult]:
        """Yield the results until all inputs are read and answered."""
        idle = 0.0
        while True:
            await self._add()
            found = await self._queue.ended(self._jobs) if self._jobs else []
            for job in found:
                given = self._jobs.pop(job.id)
                if job.status is None:
                    self._read.append(given)  # somebody deleted the job
                    continue
                self._taken.append(job.id)
                yield self._result(given, job)
                self._room.release()
            if self._taken:
                # Their results were taken; the journals have the runs.
                await self._queue.delete(self._taken)
                self._taken.clear()
            if self._ended and not self._jobs and not self._read:
                break
            if not self._read:
                await asyncio.sleep(poll)
                idle = 0.0 if found else idle + poll
            if idle > STALLED_SECONDS and self._jobs:
                idle = 0.0
                await self._warn()
        if self._failed is not None:
            raise self._failed

    async def _add(self) -> None:
        """Add the inputs that were read to the queue, or find the jobs that it has of them."""
        while self._read:
            chunk = self._read[:_CHUNK]
            known = await self._known([run_id_of(self._spec.batch, one.id) for one in chunk])
            fresh = []
            for given in chunk:
                run_id = run_id_of(self._spec.batch, given.id)
                if run_id in known:
                    self._jobs[known[run_id]] = given
                else:
                    fresh.append((given, run_id, self._arguments(given)))
            if fresh:
                ids = await self._queue.put(BATCH_TASK, [one[1:] for one in fresh])
                self._jobs.update(zip(ids, [one[0] for one in fresh], strict=True))
            del self._read[: len(chunk)]

    def _arguments(self, given: BatchInput) -> dict[str, str]:
        # As text: a JSON column of PostgreSQL refuses some characters, such as \0.
        plain = json.dumps(given.to_plain())
        return {"spec": self._text, "given": plain, "max_attempts": str(self._max_attempts)}

    async def _known(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Return the jobs that a driver added before it died, by the ids of their runs.

        A job that ended without success is deleted, so that its input is run again.
        """
        known: dict[str, int] = {}
        useless = []
        for row in await self._queue.known(BATCH_TASK, run_ids):
            done = row["result"] is not None and json.loads(row["result"]).get("status") == "done"
            if row["status"] in ("todo", "doing") or done:
                known[row["lock"]] = row["id"]
            else:
                useless.append(row["id"])
        if useless:
            await self._queue.delete(useless)
        return known

    def _result(self, given: BatchInput, job: EndedJob) -> BatchResult:
        """Return the result of a job. Raises BatchError if no worker can run the batch."""
        if job.result is None:
            message = f"its job in the queue was {job.status} without a result"
            return BatchResult(
                id=given.id,
                status="failed",
                error={"type": "JobEnded", "message": message, "path": ""},
                run_id=run_id_of(self._spec.batch, given.id),
                number=given.number,
            )
        plain = json.loads(job.result)
        if "problem" in plain:
            raise BatchError(plain["problem"])
        return BatchResult.from_plain({**plain, "number": given.number})

    async def _warn(self) -> None:
        if not (await self._queue.counts()).workers:
            _logger.warning(
                "%d inputs wait, and no worker takes runs from the queue; start one: "
                "mergepoint work --store %s",
                len(self._jobs),
                self._queue.name,
            )

    async def take_back(self) -> None:
        """Delete the jobs whose results were taken, and those that no worker has."""
        await self._queue.delete(self._taken)
        await self._queue.delete(self._jobs, waiting=True)
