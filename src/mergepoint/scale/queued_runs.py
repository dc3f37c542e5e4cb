"""Runs in the queue of a database, as other commands show them; procrastinate isn't imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:  # the names below need no extra
    import sqlalchemy as sql

    from mergepoint.journal.sql_journal import SqlStore

QUEUE: Final = "mergepoint"
BATCH_TASK: Final = "mergepoint.batch_input"
RUN_TASK: Final = "mergepoint.run"

STALLED_SECONDS: Final = 30.0
"""A worker without a heartbeat for so long is believed dead, and its jobs go to others."""

# The table of results is created with those of procrastinate. A role without the right to read them
# can list the runs of the journals.
_HAS_QUEUE: Final = """
SELECT coalesce(bool_and(coalesce(has_table_privilege(to_regclass(name), 'SELECT'), false)), false)
FROM unnest(ARRAY[
    'mergepoint_job_results', 'procrastinate_jobs', 'procrastinate_events', 'procrastinate_workers'
]) AS name
"""
# The newest job of each run counts, but the one that a worker has comes first.
_QUEUED: Final = """
SELECT DISTINCT ON (job.lock)
    job.id, job.lock, job.status::text,
    coalesce(worker.last_heartbeat > now() - :stalled * interval '1 second', false),
    job.args->>'order', job.args->>'given', found.result,
    (SELECT min(event.at) FROM procrastinate_events AS event WHERE event.job_id = job.id)
FROM procrastinate_jobs AS job
LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
LEFT JOIN mergepoint_job_results AS found ON found.job_id = job.id
WHERE job.queue_name = :queue
    AND (job.status IN ('todo', 'doing') OR job.task_name = :task)
    AND (cast(:locks AS text[]) IS NULL OR job.lock = ANY(cast(:locks AS text[])))
ORDER BY job.lock, job.status = 'doing' DESC, job.id DESC
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run that a queue has, or one whose job failed.

    Attributes:
        run_id: The id of the run.
        status: "queued" if it waits for a worker, "running" if a worker has it, "failed" if its job
            ended with an error, maybe before the run began.
        target: What it runs, as in the command that enqueued it; blank for an input of a batch.
        inputs: Its inputs, without those of a run that is resumed.
        queued_at: When it was enqueued, in ISO 8601; blank if that isn't known.
        problem: The message of its error; blank without one.
    """

    run_id: str
    status: Literal["queued", "running", "failed"]
    target: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    queued_at: str = ""
    problem: str = ""


def queued_runs(store: SqlStore, run_ids: Sequence[str] | None = None) -> dict[str, QueuedRun]:
    """Return the runs in the queue of a store by their ids, the last enqueued first.

    Without a queue in its database, and without the right to read it, there are none.

    Args:
        store: The store; only PostgreSQL has a queue.
        run_ids: The runs to look for. Default: all.

    Raises:
        JournalError: The database can't be read.
    """
    from sqlalchemy import text

    database = store.leases.database
    if database.kind != "postgresql":
        return {}
    values = {
        "queue": QUEUE,
        "task": RUN_TASK,
        "stalled": STALLED_SECONDS,
        "locks": None if run_ids is None else list(run_ids),
    }

    def read(connection: sql.Connection) -> Sequence[Any]:
        if not connection.execute(text(_HAS_QUEUE)).scalar():
            return ()
        return connection.execute(text(_QUEUED), values).all()

    rows = sorted(database.attempt("read the queue of", read), reverse=True)
    known = (_of_row(tuple(row)[1:]) for row in rows)
    return {one.run_id: one for one in known if one is not None}


def _of_row(row: Sequence[Any]) -> QueuedRun | None:
    """Return the run of a job, None for a job that is done."""
    run_id, status, lives, order, given, result, added = row
    job = {"run_id": run_id, "queued_at": "" if added is None else added.isoformat()}
    if status in ("todo", "doing"):
        taken = status == "doing" and lives
        return QueuedRun(status="running" if taken else "queued", **job, **_asked(order, given))
    ended = json.loads(result) if result else {}
    if status == "succeeded" and ended.get("status") != "failed":
        return None
    problem = (ended.get("error") or {}).get("message") or f"its job was {status}"
    return QueuedRun(status="failed", problem=problem, **job, **_asked(order, given))


def _asked(order: str | None, given: str | None) -> dict[str, Any]:
    """Return the target and the inputs of a job."""
    if order is not None:
        plain = json.loads(order)
        # Of messages the newest is shown, as for a run that has begun.
        items = {"items": plain["items"]} if plain.get("items") else {}
        message = {"message": plain["messages"][-1]} if plain.get("messages") else {}
        inputs = items or plain.get("inputs") or message
        return {"target": str(plain["command"].get("target", "")), "inputs": inputs}
    value = json.loads(given or "{}").get("value")
    return {"inputs": value if isinstance(value, dict) else {} if value is None else {"": value}}
