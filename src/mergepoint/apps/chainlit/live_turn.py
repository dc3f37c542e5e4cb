"""The events of a turn that runs in this process, including partial text."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mergepoint.agent.turns import Listeners
from mergepoint.apps.chainlit.thread_status import Partial, ThreadStatus
from mergepoint.engine.callbacks import Event
from mergepoint.journal.records import CallRecord
from mergepoint.session.session_memory import SessionMemory

_OURS = ("step", "call")


class LiveTurn:
    """Collects the events of a run, from any thread, as the state of the turn."""

    def __init__(self, memory: SessionMemory) -> None:
        self.listeners = Listeners(event=self._hear, output=self._printed)
        self.changed = asyncio.Event()
        self._memory = memory
        self._partial: dict[str, Partial] = {}
        self._stopped: list[Partial] = []
        self._records: Sequence[CallRecord] | None = None
        self._loop = asyncio.get_running_loop()

    def standing(self) -> ThreadStatus:
        """Return the current state of the turn."""
        partial = tuple(self._partial.values())
        return ThreadStatus(records=self._on_record(), partial=partial, live=True)

    def interrupted(self) -> Sequence[Partial]:
        """Return the stopped calls with their partial output."""
        return (*self._stopped, *self._partial.values())

    def _on_record(self) -> Sequence[CallRecord]:
        if self._records is None:
            asked, runs = self._memory.past.asked(self._memory.turn), self._memory.runs()
            there = asked is not None and asked.run and runs.has(asked.run)
            self._records = runs.read(asked.run)[1] if asked is not None and there else ()
        return self._records

    def _hear(self, event: Event) -> None:
        # Runs call back from worker threads; the state belongs to the loop.
        self._loop.call_soon_threadsafe(self._note, event)

    def _printed(self, path: str, piece: str) -> None:
        self._add(path, piece)

    def _note(self, event: Event) -> None:
        """Collect partial text, which counts until the call has a record."""
        if event.of in _OURS and event.kind == "token":
            self._add(event.path, event.text)
            return
        # Any other event may have added records: read them again on the next look.
        self._records = None
        if event.of in _OURS and event.kind == "start":
            made = Counter(one.path for one in self._on_record() if one.answered)
            begun = Partial(event.path, made[event.path] + 1, datetime.now(UTC))
            self._partial[event.path] = begun
        elif event.kind in ("error", "stopped", "left_out"):
            gone = self._partial.pop(event.path, None)
            if gone is not None and event.kind == "stopped":
                self._stopped.append(gone)
        self.changed.set()

    def _add(self, path: str, text: str) -> None:
        if (found := self._partial.get(path)) is not None:
            self._partial[path] = replace(found, text=found.text + text)
            self.changed.set()
