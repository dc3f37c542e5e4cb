"""`mergepoint view --serve`: the pages of a store on this machine, live, with answers at gates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mergepoint.apps.cli.output import put, put_json_line, tell
from mergepoint.apps.cli.run_store import VARIABLE, RunStore, in_queue
from mergepoint.session.session_memory import Sessions
from mergepoint.view.gate_resume import ResumeCommand
from mergepoint.view.live_pages import Address, PageState
from mergepoint.view.server import ViewServer, serve
from mergepoint.view.stored_pages import StoredPages

_SECOND = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStore:
    """The runs and sessions that are served.

    `page` returns the data of a page, and `first` is the page that is opened. `url` is the address
    of a database as it was given, with its password; None for a folder. `listed` returns the state
    of the list, if it isn't that of the runs, and `shows` says what the pages show. `answers` is
    False if the runs can't be resumed with an answer. With `enqueue`, a run whose gate is
    answered goes to the queue of the database.
    """

    runs: RunStore
    sessions: Sessions | None
    page: Callable[[Address], Mapping[str, Any]]
    first: Address
    url: str | None = None
    listed: Callable[[], PageState] | None = None
    shows: str = ""
    answers: bool = True
    enqueue: bool = False

    def pages(self) -> StoredPages:
        """Return the pages, which change with the journals, the sessions, and the queue."""
        return StoredPages(
            self.runs.store,
            self.sessions,
            page=self.page,
            listed=self.listed,
            queued=QueueStates(self.runs),
        )

    def resume(self, run_id: str, path: str) -> ResumeCommand:
        """Return the command that resumes a run with the answer at a gate, which it reads."""
        run = self.runs.get(run_id)
        answer = ["--answer", f"{path}=@-", "--yes", "--quiet", "--json"]
        if self.enqueue:
            answer.append("--enqueue")
        if run.folder is None:
            # The command line is shown to everybody on the machine, and a URL can have a password.
            url = {} if self.url is None else {VARIABLE: self.url}
            return ResumeCommand(["resume", *answer, "--", run_id], url, self.enqueue)
        folder = run.folder.resolve()
        return ResumeCommand(["resume", "--out", str(folder.parent), *answer, "--", str(folder)])


def serve_pages(
    served: ServedStore, *, port: int, opens: Callable[[str], object] | None, json: bool
) -> None:
    """Serve until Ctrl-C, which ends it with exit code 0.

    Args:
        served: What to serve.
        port: Port; 0 for any free port.
        opens: Opens an address in a browser; None if nobody wants one.
        json: Whether to print the address as JSON.

    Raises:
        NoSuchPage: The first page doesn't exist.
        ServeError: The extra isn't installed, or the port is in use.
    """
    pages = served.pages()
    # Now, and not in the browser, a person is told that there is no such run.
    pages.state(served.first)

    def ready(address: str) -> None:
        page = address.rstrip("/") + served.first.path
        if json:
            put_json_line({"address": page, "runs": str(served.runs)})
            return
        put(page)
        shows = served.shows or f"the runs in {served.runs}"
        then = ", whose runs wait for a worker" if served.enqueue else ""
        answers = f", and takes answers at gates{then}" if served.answers else ""
        tell(f"It shows {shows}{answers}; Ctrl-C ends it")
        if opens is not None:
            opens(page)

    def stopped(run_ids: list[str]) -> None:
        for run_id in run_ids:
            tell(f"Run {run_id} is interrupted: it finishes the calls in progress")
            tell(f"  resume: mergepoint resume {served.runs.get(run_id).name}")

    resume = served.resume if served.answers else None
    server = ViewServer(pages=pages, resume=resume, enqueues=served.enqueue, port=port)
    serve(server, ready=ready, stopped=stopped)


class QueueStates:
    """The states of the runs in the queue of a store, read at most once a second."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._read_at = -_SECOND
        self._states: Mapping[str, str] = {}

    def __call__(self) -> Mapping[str, str]:
        """Return the states by the ids of the runs."""
        with self._lock:
            if time.monotonic() - self._read_at > _SECOND:
                queued = in_queue(self._runs.store)
                self._states = {run_id: one.status for run_id, one in queued.items()}
                self._read_at = time.monotonic()
            return self._states
