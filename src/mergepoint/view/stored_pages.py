"""The pages of a store's runs and sessions, and when each of them changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mergepoint.core.errors import SessionError
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.line_logs import START, Mark
from mergepoint.journal.stores import Store
from mergepoint.report.run_state import JOURNAL, TRANSCRIPT
from mergepoint.session.session_memory import SessionMemory, Sessions
from mergepoint.view.live_pages import Address, NoSuchPage, PageState

if TYPE_CHECKING:  # SQLAlchemy need not be installed
    from mergepoint.journal.sql_journal import SqlStore

_FILES = (JOURNAL, TRANSCRIPT)
_OVER = ("done", "rejected", "damaged")


class StoredPages:
    """Pages of a store (see `Pages`).

    Args:
        store: The store of the runs.
        sessions: The store of the sessions; None if there are none.
        page: Returns the data of a page, which is known to exist.
        listed: Returns the state of the list. None: that of the runs and sessions.
        queued: Returns the states of the runs in a queue by their ids; None without a queue.
    """

    def __init__(
        self,
        store: Store,
        sessions: Sessions | None,
        *,
        page: Callable[[Address], Mapping[str, Any]],
        listed: Callable[[], PageState] | None = None,
        queued: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._queued = queued or dict
        self._store = store
        self._sessions = sessions
        self._page = page
        self._listed = listed or self._of_list
        self._stamps = RunStamps(store)
        self._open: dict[str, SessionMemory] = {}
        self._changing: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def state(self, address: Address) -> PageState:
        """Return the state of a page. Raises NoSuchPage if there is no such run or session."""
        if address.kind == "session":
            return self._of_session(*address.ids)
        if address.kind == "runs":
            return self._listed()
        states = [self._stamps.of(run_id) for run_id in address.ids]
        queued = self._queued()
        # A run that is put into a queue, or taken from it, changes without a record.
        parts = [f"{s.stamp} {queued.get(i, '')}" for i, s in zip(address.ids, states, strict=True)]
        return PageState("\n".join(parts), any(one.written for one in states))

    def data(self, address: Address) -> Mapping[str, Any]:
        """Return the data of a page. Raises NoSuchPage and MergepointError, as `Pages.data`."""
        data = self._page(address)
        if address.kind == "runs":
            rows = data.get("list", ())
            kept = [row for row in rows if row["kind"] == "run" and row["status"] not in _OVER]
            self._changing = tuple(str(row["id"]) for row in kept)
        return data

    def _of_list(self) -> PageState:
        """Return the state of the list: which runs there are, and of those that may change."""
        stamps = []
        for run_id in self._changing:
            with suppress(NoSuchPage):  # deleted since the last look
                stamps.append(self._stamps.of(run_id))
        sessions = () if self._sessions is None else self._sessions.sessions()
        parts = [
            *self._ids(),
            *(f"{one.written} {one.stamp}" for one in stamps),
            *(f"{one.session_id} {one.updated_at}" for one in sessions),
            *(f"{run_id} {status}" for run_id, status in self._queued().items()),
        ]
        return PageState("\n".join(parts))

    def _ids(self) -> Iterator[str]:
        folder = self._store.folder_of("x")
        if folder is None:
            yield from self._store.runs()
            return
        # Not the store's own order, for which it reads every journal.
        for mark in _FILES:
            for file in sorted(folder.parent.glob(f"*/{mark}")):
                yield f"{file.parent.name} {stat_stamp(file)}"

    def _of_session(self, session_id: str) -> PageState:
        if self._sessions is None:
            raise NoSuchPage("There are no sessions here.")
        with self._lock:
            try:
                memory = self._open.get(session_id) or self._sessions.open(session_id)
                memory.refresh()
            except SessionError as error:
                self._open.pop(session_id, None)
                raise NoSuchPage(str(error)) from error
            self._open[session_id] = memory
            asked = memory.past.asked(memory.turn)
            parts = [len(memory.get_messages()), len(memory.get_steps()), len(memory.get_facts())]
            run = asked.run if asked is not None else ""
            state = PageState("")
            if run and memory.runs().has(run):
                state = RunStamps(memory.runs()).of(run)
        return PageState(f"{parts} {run} {state.stamp}", written=state.written)


class RunStamps:
    """Stamps of stored runs.

    A stamp changes whenever something is written about its run. It costs a look at two files, or at
    the rows that were added to a database since the last look.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._marks: dict[str, Mark] = {}
        self._lock = threading.Lock()

    def of(self, run_id: str) -> PageState:
        """Return the state of a run. Raises NoSuchPage if there is none."""
        try:
            folder = self._store.folder_of(run_id)
            stamp = self._of_rows(run_id) if folder is None else _of_files(folder)
            if not stamp:
                raise NoSuchPage(f"There is no run {run_id!r} in {self._store}.")
            return PageState(stamp, written=self._store.held(run_id))
        except JournalError as error:  # an id that no run can have, or a run that was deleted
            raise NoSuchPage(str(error)) from error

    def _of_rows(self, run_id: str) -> str:
        if not self._store.has(run_id):
            return ""
        log = cast("SqlStore", self._store).log(run_id)
        with self._lock:
            before = self._marks.get(run_id, START)
            try:
                _, mark = log.since(before)
            except JournalError:  # it was replaced, as by a repair
                _, mark = log.since(START)
            self._marks[run_id] = mark
        return f"{mark.number} {mark.first.hex()[:64]}"


def _of_files(folder: Path) -> str:
    return " ".join(filter(None, (stat_stamp(folder / name) for name in _FILES)))


def stat_stamp(file: Path) -> str:
    """Return size, time and number of a file, "" if there is none."""
    try:
        found = file.stat()
    except OSError:
        return ""
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}"
