"""QueueWorker: take jobs from a queue, run them, and return the jobs of dead workers to it.

A worker that dies has many runs in progress, and only one of them may be the cause. So the last
attempt of a run is alone: its worker takes no other job, waits for those in progress, and marks
that the attempt begins. If the worker dies then, it died of this run. If it dies before, the
attempt doesn't count.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from procrastinate import exceptions
from procrastinate.job_context import JobContext
from procrastinate.jobs import Job, Status
from procrastinate.retry import BaseRetryStrategy, RetryDecision
from procrastinate.worker import Worker

from mergepoint.core.errors import describe_error
from mergepoint.journal.writer import run_off_loop
from mergepoint.scale.job_queue import HEARTBEAT_SECONDS, JobQueue
from mergepoint.scale.protocol import (
    LOST,
    BatchInput,
    BatchResult,
    RunSpec,
    run_id_of,
)
from mergepoint.scale.queued_runs import BATCH_TASK, QUEUE, RUN_TASK, STALLED_SECONDS
from mergepoint.scale.worker import BatchWorker

_POLL_SECONDS: Final = 2.0
_MOST_SPECS: Final = 8

Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Carries out the order of a single run; returns `status` and what else is told of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a run of the queue.

    Attributes:
        kind: "started", "done", "failed", "waiting" (at a gate), "returned" (left to be resumed),
            "lost" (taken from a dead worker), "superseded" (taken from this worker, which was
            believed dead), or "refused" (this worker can't run it).
        run_id: The id of the run.
        data: The result of a batch's input, or what is known of the end.
    """

    kind: str
    run_id: str
    data: Mapping[str, Any] = field(default_factory=dict)


class QueueWorker:
    """Runs jobs of a queue until it is stopped.

    Args:
        queue: The queue.
        concurrency: Most runs in progress.
        run_order: Carries out the orders of single runs.
        on_event: Is called with each event.
        grace: Seconds that a stopped worker waits for its runs; then they are left to others.
        max_attempts: Number of dead workers after which a single run fails.
        stalled: Seconds without a heartbeat after which a worker is believed dead.
    """

    def __init__(
        self,
        queue: JobQueue,
        *,
        concurrency: int,
        run_order: Handler,
        on_event: Callable[[JobEvent], None],
        grace: float = 30.0,
        max_attempts: int = 3,
        stalled: float = STALLED_SECONDS,
    ) -> None:
        self._queue = queue
        self._concurrency = concurrency
        self._run_order = run_order
        self._on_event = on_event
        self._grace = grace
        self._max_attempts = max_attempts
        self._stalled = stalled
        self._specs: dict[str, asyncio.Task[BatchWorker]] = {}
        self._using: dict[str, int] = {}
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._present: set[asyncio.Task[Any]] = set()
        self._alone: int | None = None
        self._alone_ended = asyncio.Event()
        self._stopping = asyncio.Event()
        self._worker: Worker | None = None
        queue.jobs.may_fetch, queue.jobs.on_fetch = self._may_fetch, self._note_fetch
        retry = _ReturnStopped()
        task = queue.app.task
        task(name=BATCH_TASK, queue=QUEUE, pass_context=True, retry=retry)(self._batch_input)
        task(name=RUN_TASK, queue=QUEUE, pass_context=True, retry=retry)(self._single_run)

    async def run(self, *, until_empty: bool = False) -> None:
        """Take jobs until `stop`, or until no job waits or runs anywhere.

        Raises BatchError if the database doesn't answer for minutes.
        """
        sides = [asyncio.create_task(self._sweep())]
        if until_empty:
            sides.append(asyncio.create_task(self._stop_when_empty()))
        for one in sides:
            one.add_done_callback(lambda _: self.stop())
        try:
            while not self._stopping.is_set():
                self._worker = Worker(
                    self._queue.app,
                    queues=[QUEUE],
                    name=f"{platform.node()}-{os.getpid()}",
                    concurrency=self._concurrency,
                    fetch_job_polling_interval=_POLL_SECONDS,
                    shutdown_graceful_timeout=self._grace,
                    install_signal_handlers=False,
                    update_heartbeat_interval=min(HEARTBEAT_SECONDS, self._stalled / 4),
                    stalled_worker_timeout=self._stalled,
                )
                with suppress(exceptions.ConnectorException):
                    await self._worker.run()  # type: ignore[no-untyped-call]
                if not self._stopping.is_set():
                    # The database forgot this worker, or was away: it registers again.
                    await asyncio.sleep(1.0)
        finally:
            for one in sides:
                one.cancel()
            ended = await asyncio.gather(*sides, return_exceptions=True)
            for key in list(self._specs):
                await self._close(key)
        for problem in ended:
            if isinstance(problem, Exception):
                raise problem

    @property
    def running(self) -> list[str]:
        """The ids of the runs in progress."""
        return sorted(self._tasks.values())

    def stop(self) -> None:
        """Take no more jobs, and end once the runs in progress have, or the grace is over."""
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop()  # type: ignore[no-untyped-call]

    def drop(self) -> None:
        """Leave the runs in progress to be resumed, now."""
        for task in self._tasks:
            task.cancel()

    async def _stop_when_empty(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            counts = await self._queue.counts()
            if not counts.waiting and not counts.running:
                self.stop()
                return

    # The jobs of workers that died.

    async def _sweep(self) -> None:
        while True:
            with suppress(exceptions.ConnectorException):
                stalled = await self._queue.jobs.get_stalled_jobs(
                    queue=QUEUE, seconds_since_heartbeat=self._stalled
                )
                for job in stalled:
                    await self._take_from_dead(job)
            await asyncio.sleep(self._stalled / 4)

    async def _take_from_dead(self, job: Job) -> None:
        """Return a job to the queue, or end it after too many deaths."""
        lost = job.attempts + 1
        jobs = self._queue.jobs
        if lost < self._most_attempts(job):
            if await jobs.retry_lost(job):
                self._tell("lost", _run_of(job), attempts=lost)
            return
        if self._is_last(job) and not await jobs.is_alone(job):
            # Its worker died of another run, while this one waited to be alone.
            if await jobs.give_back(job):
                self._tell("lost", _run_of(job), attempts=job.attempts)
            return
        message = (
            f"{lost} workers ended while they had this run; it may use too much memory, or stop "
            "the process. It can be resumed by itself"
        )
        error = {"type": LOST, "message": message, "path": ""}
        result = {"id": "", "status": "failed", "error": error, "attempts": lost}
        if job.task_name == BATCH_TASK:
            given = BatchInput.from_plain(json.loads(str(job.task_kwargs["given"])))
            result |= {"id": given.id, "run_id": _run_of(job), "number": given.number}
        if await jobs.put_result(job, json.dumps(result)):
            await jobs.finish_job(job, Status.FAILED, delete_job=False)
            self._tell("failed", _run_of(job), error=error)

    # The last attempts, which are alone.

    def _most_attempts(self, job: Job) -> int:
        return int(str(job.task_kwargs.get("max_attempts", self._max_attempts)))

    def _is_last(self, job: Job) -> bool:
        """Return whether workers died with a job, and one more death ends it."""
        return job.attempts > 0 and job.attempts + 1 >= self._most_attempts(job)

    async def _may_fetch(self) -> bool:
        """Return whether a job may be taken; wait while one is alone, but not for long."""
        if self._alone is not None:
            # The limit: procrastinate looks whether to stop only after this.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._alone_ended.wait(), _POLL_SECONDS)
        return self._alone is None and not self._stopping.is_set()

    def _note_fetch(self, job: Job) -> None:
        if self._is_last(job):
            self._alone = job.id
            self._alone_ended.clear()

    async def _until_alone(self, job: Job) -> bool:
        """Wait until no other job is in progress; return whether this worker still has the job.

        Raises _NotBegunError if the worker is stopped before.
        """
        own = asyncio.current_task()
        # The tasks themselves: a job whose end isn't stored yet would be taken from a dead worker.
        while others := [one for one in self._present if one is not own and not one.done()]:
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([*others, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if self._stopping.is_set():
                raise _NotBegunError
        return await self._queue.jobs.mark_alone(job)

    # The jobs of this worker.

    async def _batch_input(
        self, context: JobContext, *, spec: str, given: str, max_attempts: str
    ) -> None:
        """Run one input of a batch; this is a task of procrastinate."""
        del max_attempts  # for the worker that finds the job of a dead one
        taken = BatchInput.from_plain(json.loads(given))
        plan = RunSpec.from_plain(json.loads(spec))
        run_id = run_id_of(plan.batch, taken.id)

        async def carry_out() -> tuple[str, dict[str, Any]]:
            try:
                worker = await self._worker_of(spec, plan)
                try:
                    result: BatchResult = await worker.run(taken)
                finally:
                    self._using[spec] -= 1
            except Exception as error:  # noqa: BLE001  (the driver raises it)
                reason = f"a worker on {platform.node()} can't run the batch: "
                return "refused", {"problem": reason + describe_error(error)}
            return result.status, replace(result, attempts=context.job.attempts + 1).to_plain()

        await self._carry_out(context.job, run_id, carry_out)

    async def _single_run(self, context: JobContext, *, order: str) -> None:
        """Begin or resume a run that was enqueued; this is a task of procrastinate."""
        plain = json.loads(order)

        async def carry_out() -> tuple[str, dict[str, Any]]:
            data = dict(await self._run_order(plain))
            return data["status"], data

        await self._carry_out(context.job, plain["run_id"], carry_out)

    async def _carry_out(
        self, job: Job, run_id: str, work: Callable[[], Awaitable[tuple[str, dict[str, Any]]]]
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (procrastinate runs each job in one)
        self._tasks[task] = run_id
        self._present.add(task)
        task.add_done_callback(self._present.discard)
        try:
            alone = {"alone": True} if job.id == self._alone else {}
            if alone and not await self._until_alone(job):
                self._tell("superseded", run_id)
                return
            self._tell("started", run_id, attempts=job.attempts + 1, **alone)
            kind, data = await work()
            own = await self._queue.jobs.put_result(job, json.dumps(data))
            # Without it, another worker was given the job while this one was believed dead.
            self._tell(kind if own else "superseded", run_id, **data)
        except (asyncio.CancelledError, _NotBegunError):
            self._tell("returned", run_id)
            raise
        finally:
            del self._tasks[task]
            if job.id == self._alone:
                self._alone = None
                self._alone_ended.set()

    async def _worker_of(self, spec: str, plan: RunSpec) -> BatchWorker:
        """Return the prepared worker of a batch, and count its use."""
        self._using[spec] = self._using.get(spec, 0) + 1
        try:
            if spec not in self._specs:
                self._specs[spec] = asyncio.ensure_future(run_off_loop(BatchWorker, plan))
                await self._make_room()
            # Shielded: another job waits for the same one.
            return await asyncio.shield(self._specs[spec])
        except BaseException:
            self._using[spec] -= 1
            made = self._specs.get(spec)
            if made is not None and made.done() and (made.cancelled() or made.exception()):
                del self._specs[spec]
            raise

    async def _make_room(self) -> None:
        for key in [one for one in self._specs if not self._using.get(one)]:
            if len(self._specs) <= _MOST_SPECS:
                break
            await self._close(key)

    async def _close(self, key: str) -> None:
        made = self._specs.pop(key)
        self._using.pop(key, None)
        with suppress(Exception):
            await (await made).close()

    def _tell(self, kind: str, run_id: str, /, **data: Any) -> None:
        self._on_event(JobEvent(kind=kind, run_id=run_id, data=data))


class _NotBegunError(Exception):
    """A worker was stopped while a job waited to be alone."""


class _ReturnStopped(BaseRetryStrategy):
    """Returns the job of a worker that was stopped to the queue; other errors end the job."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        """Return when to retry a job, None for never."""
        del job
        stopped = isinstance(exception, (asyncio.CancelledError, _NotBegunError))
        return RetryDecision(retry_in={"seconds": 0}) if stopped else None


def _run_of(job: Job) -> str:
    return str(job.lock)
