"""Sessions as Chainlit threads, each with its rows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mergepoint.apps.chainlit.shown_step import ShownStep
from mergepoint.apps.chainlit.status_marks import Mark, held, mark_of
from mergepoint.apps.chainlit.thread_rows import NAME, ThreadRows
from mergepoint.apps.chainlit.thread_status import Known, ThreadStatus
from mergepoint.apps.chainlit.thread_view import ThreadView
from mergepoint.apps.chainlit.turn_run import TurnRun
from mergepoint.core.errors import SessionError
from mergepoint.journal.replay import open_questions
from mergepoint.session.session_memory import SessionMemory
from mergepoint.session.session_store import Sessions
from mergepoint.tree.nodes import Node

_MOST_OPEN = 64
_MOST_RAN = 1_000


class Threads:
    """Sessions by id, which are also the ids of Chainlit's threads.

    Sessions stay open and are refreshed at each access. Rows of one thread are written in order.
    `running` returns the state of the turn that this process runs in a thread, or None.
    """

    def __init__(self, place: Sessions, tree: Node) -> None:
        self.place = place
        self.scenes = ThreadView(tree, self._read)
        self._ran: OrderedDict[str, TurnRun] = OrderedDict()
        self.running: Callable[[str], ThreadStatus | None] = lambda _: None
        self._open: OrderedDict[str, SessionMemory] = OrderedDict()
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def memory(self, thread: str, *, create: bool = False) -> SessionMemory:
        """Return a thread's current session. Raise SessionError if it can't be read."""
        known = self._open.pop(thread, None)
        if known is not None:
            try:
                known.refresh()
            # It was repaired, or deleted and started again: open it anew below.
            except SessionError:
                known = None
        memory = known or self.place.open(thread, create=create)
        self._open[thread] = memory
        # The oldest session is closed; it opens again on the next access.
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return memory

    def forget(self, thread: str) -> None:
        """Close a deleted session."""
        self._open.pop(thread, None)

    def lane(self, thread: str) -> asyncio.Lock:
        """Return the lock for reading and writing a thread, which is granted in order."""
        return self._lanes[thread]

    def kept(self, thread: str) -> ThreadRows:
        """Return the state of a thread's rows."""
        return ThreadRows.of(self.place.beside(NAME, thread).rows())

    async def keep(self, thread: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a thread, after those that were passed before."""
        async with self.lane(thread):
            await asyncio.to_thread(self.place.beside(NAME, thread).append, list(rows))

    def standing(self, memory: SessionMemory) -> ThreadStatus:
        """Return the state of a session's last turn."""
        running = self.running(memory.session_id)
        if running is not None:
            return running
        asked = memory.past.asked(memory.turn)
        runs = memory.runs()
        if asked is None or not asked.run or not runs.has(asked.run):
            return ThreadStatus(elsewhere=held(memory))
        ended = memory.past.ended(memory.turn)
        if ended is not None and ended.error is None:
            return ThreadStatus()
        header, records = runs.read(asked.run)
        questions = open_questions(header, records, self.scenes.tree)
        return ThreadStatus(records=records, questions=questions, elsewhere=held(memory))

    def mark(self, thread: str) -> Mark:
        """Return a thread's status for the thread list.

        Call it on the event loop: to find out whether another process runs a turn, it holds the
        turn for a moment, and no turn may start meanwhile.
        """
        return "running" if self.running(thread) is not None else mark_of(self.memory(thread))

    def _read(self, memory: SessionMemory, run: str) -> TurnRun:
        """Return the run of a finished turn, which is cached because it can't change."""
        found = self._ran.get(run)
        if found is None:
            runs = memory.runs()
            found = self._ran[run] = TurnRun.of(runs.read(run)[1] if runs.has(run) else ())
            if len(self._ran) > _MOST_RAN:
                self._ran.popitem(last=False)
        return found

    def scene(self, thread: str, kept: ThreadRows | None = None) -> list[ShownStep]:
        """Return all steps of a thread's session."""
        memory = self.memory(thread)
        return self.scenes.all(memory, self.standing(memory), known_of(kept or self.kept(thread)))


def known_of(kept: ThreadRows) -> Known:
    """Return the ids that Chainlit assigned."""
    return Known(runs=kept.runs, words=kept.words)
