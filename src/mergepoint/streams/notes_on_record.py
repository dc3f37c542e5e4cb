"""Notes on record: what blocks noted, as records of the run's journal."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final

from mergepoint.record.journal import Journal
from mergepoint.record.record import CallKey, CallRecord, now
from mergepoint.streams.door import path_of
from mergepoint.streams.notes import MISSING
from mergepoint.streams.sealed import plain, sealed

NOTE: Final = "note"


class NotesOnRecord:
    """Notes in a journal, each a record of kind "call" whose model is `note`.

    `known` are the records of a run that this one goes on from, or takes its answers from.
    """

    def __init__(self, run_id: str, journal: Journal, known: Iterable[CallRecord]) -> None:
        self._run_id = run_id
        self._journal = journal
        self._lock = threading.Lock()
        self._kept = {record.path: sealed(record.value) for record in known if record.model == NOTE}
        self._own = {record.path for record in journal.records if record.model == NOTE}

    def find(self, stage_id: str, key: str) -> Any:
        """Give the value on record, or `MISSING`."""
        path = _path(stage_id, key)
        found = self._kept.get(path, MISSING)
        if found is not MISSING and path not in self._own:  # it was another run's
            self._append(path, key, found)
        return found

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Write a value down. Raises ValueError for a key that has one already."""
        path = _path(stage_id, key)
        if path in self._kept:
            raise ValueError(f"{stage_id}: there is a note {key!r} already")
        self._append(path, key, sealed(value))

    def _append(self, path: str, key: str, value: Any) -> None:
        moment = now()
        record = CallRecord(
            key=CallKey(self._run_id, "", path),
            prompt=key,
            model=NOTE,
            started=moment,
            ended=moment,
            kind="call",
            value=plain(value),
        )
        with self._lock:
            self._journal.append(record)
            self._kept[path] = value
            self._own.add(path)


def _path(stage_id: str, key: str) -> str:
    return f"{path_of(stage_id)}/{NOTE}/{key}"
