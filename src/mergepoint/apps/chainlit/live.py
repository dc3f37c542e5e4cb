"""LiveTurn: a turn that runs in this process, and what is partly said in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mergepoint.agent.agent_turn import Listeners
from mergepoint.apps.chainlit.standing import Partial, Standing
from mergepoint.record.record import CallRecord
from mergepoint.run.recorder import Event
from mergepoint.session.memory import SessionMemory

_OURS = ("step", "call")


class LiveTurn:
    """Takes the events of a run, from any thread, and tells how the turn stands."""

    def __init__(self, memory: SessionMemory) -> None:
        self.listeners = Listeners(event=self._hear, output=self._printed)
        self.changed = asyncio.Event()
        self._memory = memory
        self._partial: dict[str, Partial] = {}
        self._records: Sequence[CallRecord] | None = None
        self._loop = asyncio.get_running_loop()

    def standing(self) -> Standing:
        """Give how the turn stands at this moment."""
        partial = tuple(self._partial.values())
        return Standing(records=self._on_record(), partial=partial, live=True)

    def _on_record(self) -> Sequence[CallRecord]:
        if self._records is None:
            asked, runs = self._memory.past.asked(self._memory.turn), self._memory.runs()
            there = asked is not None and asked.run and runs.has(asked.run)
            self._records = runs.read(asked.run)[1] if asked is not None and there else ()
        return self._records

    def _hear(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._note, event)

    def _printed(self, path: str, piece: str) -> None:
        self._add(path, piece)

    def _note(self, event: Event) -> None:
        """Keep what is partly said; it counts until there is a record of it."""
        if event.of in _OURS and event.kind == "token":
            self._add(event.path, event.text)
            return
        self._records = None
        if event.of in _OURS and event.kind == "start":
            made = Counter(one.path for one in self._on_record() if one.answered)
            begun = Partial(event.path, made[event.path] + 1, datetime.now(UTC))
            self._partial[event.path] = begun
        elif event.kind in ("error", "left_out"):
            self._partial.pop(event.path, None)
        self.changed.set()

    def _add(self, path: str, text: str) -> None:
        if (found := self._partial.get(path)) is not None:
            self._partial[path] = replace(found, text=found.text + text)
            self.changed.set()
