"""Threads: the sessions of a place as threads of Chainlit, each with the rows beside it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mergepoint.apps.chainlit.rows import NAME, Kept
from mergepoint.apps.chainlit.scene import Scenes
from mergepoint.apps.chainlit.shown import Shown
from mergepoint.apps.chainlit.standing import Known, Standing
from mergepoint.core.errors import SessionError
from mergepoint.record.questions import open_questions
from mergepoint.session.memory import SessionMemory
from mergepoint.session.sessions import Sessions
from mergepoint.tree.node import Node

_MOST_OPEN = 64


class Threads:
    """Sessions by their ids, which are those of Chainlit's threads.

    Sessions that are looked at stay open, and are asked each time for what others wrote. Rows of
    one thread are written one after the other, in the order in which they were given. `running`
    tells how the turn stands that this process runs in a thread, None where it runs none.
    """

    def __init__(self, place: Sessions, tree: Node) -> None:
        self.place = place
        self.scenes = Scenes(tree, self._asked)
        self._persons: dict[str, frozenset[str]] = {}
        self.running: Callable[[str], Standing | None] = lambda _: None
        self._open: OrderedDict[str, SessionMemory] = OrderedDict()
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def memory(self, thread: str, *, create: bool = False) -> SessionMemory:
        """Give a thread's session as it is now. Raises SessionError where it cannot be read."""
        known = self._open.pop(thread, None)
        if known is not None:
            try:
                known.refresh()
            except SessionError:  # it was repaired, or deleted and begun anew
                known = None
        memory = known or self.place.open(thread, create=create)
        self._open[thread] = memory
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return memory

    def forget(self, thread: str) -> None:
        """Close a session that was deleted."""
        self._open.pop(thread, None)

    def lane(self, thread: str) -> asyncio.Lock:
        """Give the lock under which a thread is read and written, first come first served."""
        return self._lanes[thread]

    def kept(self, thread: str) -> Kept:
        """Give what the rows beside a thread come to."""
        return Kept.of(self.place.beside(NAME, thread).rows())

    async def keep(self, thread: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows beside a thread, behind those that were given before."""
        async with self.lane(thread):
            await asyncio.to_thread(self.place.beside(NAME, thread).append, list(rows))

    def standing(self, memory: SessionMemory) -> Standing:
        """Give how the last turn of a session stands."""
        running = self.running(memory.session_id)
        if running is not None:
            return running
        asked = memory.past.asked(memory.turn)
        runs = memory.runs()
        if asked is None or not asked.run or not runs.has(asked.run):
            return Standing(elsewhere=_held(memory))
        ended = memory.past.ended(memory.turn)
        if ended is not None and ended.error is None:
            return Standing()
        header, records = runs.read(asked.run)
        questions = open_questions(header, records, self.scenes.tree)
        return Standing(records=records, questions=questions, elsewhere=_held(memory))

    def _asked(self, memory: SessionMemory, run: str) -> frozenset[str]:
        """Give the gates at which a run that has ended asked a person."""
        if run not in self._persons:
            runs = memory.runs()
            records = runs.read(run)[1] if run and runs.has(run) else ()
            self._persons[run] = frozenset(one.path for one in records if one.asks)
        return self._persons[run]

    def scene(self, thread: str, kept: Kept | None = None) -> list[Shown]:
        """Give all that is shown of a thread's session."""
        memory = self.memory(thread)
        return self.scenes.all(memory, self.standing(memory), known_of(kept or self.kept(thread)))


def known_of(kept: Kept) -> Known:
    """Give the ids that Chainlit gave."""
    return Known(runs=kept.runs, words=kept.words)


def _held(memory: SessionMemory) -> bool:
    """Say whether somebody else runs a turn of the session at this moment."""
    if memory.unfinished is None:
        return False
    try:
        with memory.holding_turn():
            return False
    except SessionError:
        return True
