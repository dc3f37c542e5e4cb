"""`mergepoint work`: a worker that takes runs from the queue of a database until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from mergepoint.apps.cli.framework import option
from mergepoint.apps.cli.options import Json, Quiet
from mergepoint.apps.cli.output import CommandError, count, put_json_line, tell

if TYPE_CHECKING:
    from mergepoint.scale.queue_worker import JobEvent, QueueWorker

EXAMPLES = (
    "mergepoint work --store postgresql://postgres@localhost/runs",
    "mergepoint work --store postgresql://postgres@localhost/runs --concurrency 50",
    "mergepoint work --store postgresql://postgres@localhost/runs --until-empty",
    "mergepoint work --json | jq -r 'select(.event == \"failed\") | .run_id'",
)


def work(
    *,
    store: Annotated[
        str | None,
        option(
            "--store",
            metavar="URL",
            help="PostgreSQL database of the runs and the queue.",
            default="the variable MERGEPOINT_STORE",
        ),
    ] = None,
    concurrency: Annotated[
        int, option("--concurrency", metavar="N", min=1, help="Maximum number of runs in progress.")
    ] = 10,
    until_empty: Annotated[
        bool, option("--until-empty", help="End when no run waits, and none is in progress.")
    ] = False,
    grace: Annotated[
        float,
        option(
            "--grace",
            metavar="SECONDS",
            min=0,
            help="Time that runs in progress have to end after Ctrl-C or SIGTERM.",
        ),
    ] = 30.0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Take runs from a queue and run them, until Ctrl-C or SIGTERM.

    It takes the runs of 'run --enqueue', 'resume --enqueue' and 'batch --engine queue', the turns
    of 'ui --enqueue', and those of workers that died. After a signal it takes no more runs; runs
    that aren't done after the grace period are left for other workers, without repeating recorded
    calls. A second signal leaves them at once. With --json, each event is a JSON object on a line
    of stdout.
    """
    from mergepoint.apps.cli.run_store import VARIABLE, RunStore, database_url

    url = database_url(None, store)
    if url is None:
        raise CommandError(
            f"Pass the database of the runs: --store postgresql://user@host/database, or set "
            f"{VARIABLE}."
        )
    runs = RunStore.at(None, url)
    asyncio.run(
        _work(
            url,
            runs,
            concurrency=concurrency,
            until_empty=until_empty,
            grace=grace,
            report=_Report(quiet=quiet, json=json),
        )
    )


async def _work(
    url: str, runs: Any, *, concurrency: int, until_empty: bool, grace: float, report: _Report
) -> None:
    from mergepoint.apps.cli.enqueue import carry_out
    from mergepoint.apps.cli.turn_queue import carry_out_turn
    from mergepoint.scale.job_queue import open_queue
    from mergepoint.scale.queue_worker import QueueWorker
    from mergepoint.session.session_store import sessions_at

    sessions = sessions_at(url)

    async def run_order(order: Mapping[str, Any]) -> Mapping[str, Any]:
        if "session" in order:
            return await carry_out_turn(sessions, order)
        return await carry_out(runs.store, order)

    async with open_queue(url) as queue:
        worker = QueueWorker(
            queue,
            concurrency=concurrency,
            run_order=run_order,
            on_event=report.note,
            grace=grace,
        )
        with _Signals(worker, report):
            report.begin(queue.name, concurrency)
            await worker.run(until_empty=until_empty)
        report.end()


class _Signals:
    """Stops a worker at the first signal, and leaves its runs at the second."""

    def __init__(self, worker: QueueWorker, report: _Report) -> None:
        self._worker = worker
        self._report = report
        self._presses = 0
        self._known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM")]

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._known:
            loop.add_signal_handler(one, self._stop)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for one in self._known:
            loop.remove_signal_handler(one)

    def _stop(self) -> None:
        self._presses += 1
        if self._presses > 1:
            self._worker.drop()
            return
        self._report.stopping(self._worker.running)
        self._worker.stop()


class _Report:
    """The output of a worker: lines on stderr, or events as JSON on stdout."""

    def __init__(self, *, quiet: bool, json: bool) -> None:
        self._quiet = quiet
        self._json = json
        self._counts = Counter[str]()
        self._returned: list[str] = []

    def begin(self, name: str, concurrency: int) -> None:
        """Report that the worker takes runs."""
        self._put("ready", {"store": name, "concurrency": concurrency})
        self._tell(
            f"Taking runs from {name}, {concurrency:,} at a time. Ctrl-C ends it when they are done"
        )

    def note(self, event: JobEvent) -> None:
        """Report an event of a run."""
        self._counts[event.kind] += 1
        if event.kind == "returned":
            self._returned.append(event.run_id)
        data = {name: value for name, value in event.data.items() if name not in _LONG}
        self._put(event.kind, {"run_id": event.run_id, **data})
        if event.kind != "started":
            self._tell(f"{event.kind:<9} {event.run_id}{_detail(event.data)}")

    def stopping(self, running: list[str]) -> None:
        """Report that no more runs are taken."""
        self._put("stopping", {"running": running})
        in_progress = f"; {count(len(running), 'run')} in progress" if running else ""
        self._tell(f"Stopping{in_progress}. Press Ctrl-C again to leave them to other workers")

    def end(self) -> None:
        """Report what was done, and which runs are left to be resumed."""
        done = {kind: self._counts[kind] for kind in ("done", "failed", "waiting", "returned")}
        self._put("ended", {**done, "left": self._returned})
        text = ", ".join(f"{number:,} {kind}" for kind, number in done.items() if number)
        self._tell(f"Ended: {text or 'no run was taken'}")
        if self._returned:
            self._tell(f"Left to be resumed by another worker: {', '.join(self._returned)}")

    def _tell(self, line: str) -> None:
        if not self._quiet:
            tell(line)

    def _put(self, event: str, data: Mapping[str, Any]) -> None:
        if self._json:
            put_json_line({"event": event, **data})


_LONG = frozenset({"text", "outputs", "status", "run_id"})


def _detail(data: Mapping[str, Any]) -> str:
    """Return the calls, gates or error of an event, as the end of its line."""
    if data.get("error"):
        place = f" at {data['error']['path']}" if data["error"].get("path") else ""
        return f"{place}: {data['error']['type']}: {data['error']['message']}"
    if data.get("problem"):
        return f": {data['problem']}"
    if data.get("gates"):
        return f" at {', '.join(data['gates'])}"
    if "calls" in data:
        return f" ({count(data['calls'], 'call')})"
    return ""
