"""JobQueue: jobs in the database of the journals, by procrastinate, with results and fencing.

procrastinate takes jobs, sends heartbeats, and finds the jobs of workers without one. This module
adds the fencing of a job's state (a worker that was believed dead can't end a job that another one
has), a table of results, and patience with a database that restarts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mergepoint.core.errors import MergepointError, install_command
from mergepoint.scale.protocol import BatchError
from mergepoint.scale.queued_runs import QUEUE, STALLED_SECONDS

try:
    import procrastinate
    import psycopg
    from procrastinate import exceptions
    from procrastinate.jobs import Job, Status
    from procrastinate.manager import JobManager
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError
except ImportError as error:
    raise MergepointError(
        "the queue needs procrastinate and a driver for PostgreSQL, which are not installed: "
        f"{install_command('queue')}"
    ) from error

HEARTBEAT_SECONDS: Final = 5.0

_PATIENCE_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 10
_MAKING: Final = 0x6D65726768  # the advisory lock for creating the tables

# Of one schema version: a database with an older one lacks some.
_FUNCTIONS: Final = (
    "procrastinate_defer_jobs_v1",
    "procrastinate_fetch_job_v2",
    "procrastinate_finish_job_v1",
    "procrastinate_retry_job_v2",
    "procrastinate_register_worker_v1",
)
_RESULTS: Final = """
CREATE TABLE IF NOT EXISTS mergepoint_job_results (
    job_id bigint PRIMARY KEY REFERENCES procrastinate_jobs (id) ON DELETE CASCADE,
    result text NOT NULL
)
"""

# The row is locked and compared with the worker that took the job, and only then changed.
_OWN: Final = """
    SELECT id FROM procrastinate_jobs
    WHERE id = %(job_id)s AND status = 'doing' AND worker_id IS NOT DISTINCT FROM %(worker_id)s
    FOR UPDATE
"""
_FINISH: Final = f"""
SELECT procrastinate_finish_job_v1(
    own.id, %(status)s::procrastinate_job_status, %(delete_job)s
) FROM ({_OWN}) AS own
"""  # noqa: S608  (constants)
_RETRY: Final = f"""
SELECT procrastinate_retry_job_v2(own.id, NULL, NULL, NULL, NULL) FROM ({_OWN}) AS own
"""  # noqa: S608
# With the mark of its last attempt, which hasn't ended, and begins again.
_RETURN: Final = f"""
WITH returned AS (
    UPDATE procrastinate_jobs SET status = 'todo', scheduled_at = NULL WHERE id IN ({_OWN})
    RETURNING id
), unmarked AS (
    DELETE FROM mergepoint_job_results WHERE job_id IN (SELECT id FROM returned)
)
SELECT id FROM returned
"""  # noqa: S608
_ALONE: Final = '{"alone": true}'
_PUT: Final = f"""
INSERT INTO mergepoint_job_results (job_id, result)
SELECT own.id, %(result)s FROM ({_OWN}) AS own
ON CONFLICT (job_id) DO UPDATE SET result = EXCLUDED.result RETURNING job_id
"""  # noqa: S608
_IS_ALONE: Final = """
SELECT 1 FROM mergepoint_job_results WHERE job_id = %(job_id)s AND result = %(mark)s
"""
_ENDED: Final = """
SELECT asked.id, job.status::text AS status, found.result
FROM unnest(%(ids)s::bigint[]) AS asked (id)
LEFT JOIN procrastinate_jobs AS job ON job.id = asked.id
LEFT JOIN mergepoint_job_results AS found ON found.job_id = asked.id
WHERE job.id IS NULL OR job.status NOT IN ('todo', 'doing')
"""
_KNOWN: Final = """
SELECT job.id, job.lock, job.status::text AS status, found.result
FROM procrastinate_jobs AS job
LEFT JOIN mergepoint_job_results AS found ON found.job_id = job.id
WHERE job.queue_name = %(queue)s AND job.task_name = %(task)s AND job.lock = ANY(%(locks)s::text[])
ORDER BY job.id
"""
_DELETE: Final = """
DELETE FROM procrastinate_jobs
WHERE id = ANY(%(ids)s::bigint[]) AND (NOT %(waiting)s OR status = 'todo')
RETURNING id
"""
_COUNTS: Final = """
SELECT
    (SELECT count(*) FROM procrastinate_jobs
     WHERE queue_name = %(queue)s AND status = 'todo') AS waiting,
    (SELECT count(*) FROM procrastinate_jobs
     WHERE queue_name = %(queue)s AND status = 'doing') AS running,
    (SELECT count(*) FROM procrastinate_workers
     WHERE last_heartbeat > now() - %(stalled)s * interval '1 second') AS workers
"""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Jobs that wait, jobs that a worker has, and workers with a heartbeat."""

    waiting: int
    running: int
    workers: int


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended, with its result if it has one; without `status`, it was deleted."""

    id: int
    status: str | None
    result: str | None


class JobQueue:
    """The jobs of a database. Use `open_queue`."""

    def __init__(self, app: procrastinate.App, name: str) -> None:
        self.app = app
        self.name = name
        self.jobs = FencedJobs(app.connector)
        app.job_manager = self.jobs

    async def put(self, task: str, jobs: Sequence[tuple[str, Mapping[str, str]]]) -> list[int]:
        """Add jobs as pairs of a lock (the id of a run) and arguments; return their ids.

        Of jobs with the same lock, one runs at a time, in the order in which they were added.
        """
        made = [
            Job(
                queue=QUEUE,
                task_name=task,
                lock=lock,
                queueing_lock=None,
                task_kwargs=dict(arguments),
            )
            for lock, arguments in jobs
        ]
        stored = await patiently(lambda: self.jobs.batch_defer_jobs_async(made))
        return [job.id for job in stored if job.id is not None]

    async def known(self, task: str, locks: Sequence[str]) -> list[dict[str, Any]]:
        """Return `id`, `lock`, `status` and `result` of the jobs with these locks, oldest first."""
        return await self._rows(_KNOWN, queue=QUEUE, task=task, locks=list(locks))

    async def ended(self, ids: Iterable[int]) -> list[EndedJob]:
        """Return those of the jobs that have ended or are gone."""
        return [EndedJob(**row) for row in await self._rows(_ENDED, ids=list(ids))]

    async def delete(self, ids: Iterable[int], *, waiting: bool = False) -> list[int]:
        """Delete jobs with their results, and return their ids.

        With `waiting`, only those that no worker has taken are deleted.
        """
        deleted = await self._rows(_DELETE, ids=list(ids), waiting=waiting)
        return [one["id"] for one in deleted]

    async def counts(self) -> QueueCounts:
        """Return the number of jobs and workers."""
        return QueueCounts(**(await self._rows(_COUNTS, queue=QUEUE, stalled=STALLED_SECONDS))[0])

    async def _rows(self, query: Any, **values: Any) -> list[dict[str, Any]]:
        execute = self.app.connector.execute_query_all_async
        rows: list[dict[str, Any]] = await patiently(lambda: execute(query, **values))
        return rows


class FencedJobs(JobManager):
    """procrastinate's manager, in which only the worker that has a job can change its state.

    A database that doesn't answer for a while ends neither the worker nor its jobs.

    Attributes:
        may_fetch: Returns whether a job may be taken now; it may wait before it returns.
        on_fetch: Is called with each job before the next one is taken.
    """

    may_fetch: Callable[[], Awaitable[bool]] | None = None
    on_fetch: Callable[[Job], None] | None = None

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:  # noqa: FBT001  (its signature)
        """End a job, unless another worker has it by now."""
        await self._change(_FINISH, job, status=status.value, delete_job=delete_job)

    async def retry_job(
        self,
        job: Job,
        retry_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        lock: str | None = None,
    ) -> None:
        """Return a job to the queue without counting an attempt: its worker was stopped."""
        await self._change(_RETURN, job)

    async def give_back(self, job: Job) -> bool:
        """Return the job of a dead worker to the queue without counting an attempt."""
        return await self._change(_RETURN, job)

    async def retry_lost(self, job: Job) -> bool:
        """Return the job of a dead worker to the queue, and count the attempt."""
        return await self._change(_RETRY, job)

    async def put_result(self, job: Job, result: str) -> bool:
        """Store the result of a job; return whether this worker still has it."""
        return await self._change(_PUT, job, result=result)

    async def mark_alone(self, job: Job) -> bool:
        """Mark that the last attempt of a job begins; return whether this worker still has it."""
        return await self.put_result(job, _ALONE)

    async def is_alone(self, job: Job) -> bool:
        """Return whether the worker that has a job has begun its last attempt."""
        ask = self.connector.execute_query_all_async
        given = {"job_id": job.id, "mark": _ALONE}
        return bool(await patiently(lambda: ask(_IS_ALONE, **given)))

    async def _change(self, query: Any, job: Job, **values: Any) -> bool:
        ask = self.connector.execute_query_all_async
        given = {"job_id": job.id, "worker_id": job.worker_id, **values}
        return bool(await patiently(lambda: ask(query, **given)))

    async def update_heartbeat(self, worker_id: int) -> None:
        """Send a heartbeat, if the database answers."""
        try:
            await super().update_heartbeat(worker_id)
        except exceptions.ConnectorException:
            return  # the next one may arrive

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Take a job. None if there is none, or if the database doesn't answer now.

        Raises ConnectorException if the database forgot this worker, which was believed dead.
        """
        if self.may_fetch is not None and not await self.may_fetch():
            return None
        try:
            job = await super().fetch_job(queues, worker_id)
        except exceptions.ConnectorException as error:
            if isinstance(error.__cause__, psycopg.errors.ForeignKeyViolation):
                raise
            return None
        if job is not None and self.on_fetch is not None:
            self.on_fetch(job)
        return job

    async def listen_for_jobs(self, **options: Any) -> None:
        """Listen for new jobs, also after the database restarted."""
        while True:
            try:
                await super().listen_for_jobs(**options)
            except exceptions.ConnectorException:
                await asyncio.sleep(_PAUSE_SECONDS)


async def patiently(ask: Any) -> Any:
    """Return what the database answers; wait while it doesn't, for up to two minutes.

    Raises BatchError if it still doesn't.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    while True:
        try:
            return await ask()
        except exceptions.ConnectorException as error:
            cause = error.__cause__ or error
            # A pool without a connection raises an OperationalError as well.
            if not isinstance(cause, psycopg.OperationalError) or loop.time() > deadline:
                raise BatchError(
                    f"the queue's database can't be used: {' '.join(str(cause).split())}"
                ) from error
        await asyncio.sleep(_PAUSE_SECONDS)


@asynccontextmanager
async def open_queue(url: str, *, log: bool = False) -> AsyncIterator[JobQueue]:
    """Yield the queue of a database, and create its tables if they are missing.

    Args:
        url: The URL of the store, for PostgreSQL.
        log: Whether procrastinate's own messages are logged.

    Raises:
        BatchError: It isn't a PostgreSQL database, can't be reached, or has an older schema.
    """
    if not log:
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    conninfo, name = _address(url)
    await _make_tables(conninfo, name)
    # Behind a pooler, the next transaction may be in a session without the prepared statement.
    plain = {"prepare_threshold": None}
    connector = procrastinate.PsycopgConnector(
        conninfo=conninfo, min_size=1, max_size=4, kwargs=plain
    )
    app = procrastinate.App(connector=connector)
    async with app.open_async():
        yield JobQueue(app, name)


def _address(url: str) -> tuple[str, str]:
    """Return the address for the driver, and the one for messages, without the password."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() != "postgresql":
        shown = url if parsed is None else parsed.render_as_string()
        raise BatchError(
            f"the queue needs the URL of a PostgreSQL database, not {shown!r}, such as "
            "postgresql://user@host/database"
        )
    plain = parsed.set(drivername="postgresql")
    return plain.render_as_string(hide_password=False), plain.render_as_string()


async def _make_tables(conninfo: str, name: str) -> None:
    """Create the tables of procrastinate and of the results; a second time changes nothing."""
    try:
        connection = await psycopg.AsyncConnection.connect(
            conninfo, connect_timeout=_CONNECT_SECONDS
        )
        async with connection:  # one transaction
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKING])
            if await _is_missing(connection, "to_regclass", ["procrastinate_jobs"]):
                schema = procrastinate.schema.SchemaManager.get_schema()
                await connection.execute(schema)
            missing = await _is_missing(connection, "to_regproc", _FUNCTIONS)
            if not missing:
                await connection.execute(_RESULTS)
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        raise BatchError(f"can't open the queue in {name}: {said}") from None
    if missing:
        raise BatchError(
            f"the tables of procrastinate in {name} are of an older version, without {missing[0]}; "
            "apply its migrations (https://procrastinate.readthedocs.io, 'Migrate the schema')"
        )


async def _is_missing(
    connection: psycopg.AsyncConnection[Any], find: str, names: Sequence[str]
) -> list[str]:
    """Return the names that the database doesn't have."""
    query = f"SELECT name FROM unnest(%s::text[]) AS name WHERE {find}(name) IS NULL"  # noqa: S608
    cursor = await connection.execute(query, [list(names)])
    return [name for (name,) in await cursor.fetchall()]
