"""Notes on record: what blocks noted, as records of the run's journal."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Final

from mergepoint.core.errors import ReplayMiss
from mergepoint.record.answers import Asked
from mergepoint.record.record import CallKey, CallRecord, now
from mergepoint.run.recorder import Recorder
from mergepoint.streams.door import Passing, path_of
from mergepoint.streams.notes import MISSING
from mergepoint.streams.sealed import plain, sealed

NOTE: Final = "note"


class NotesOnRecord:
    """Notes in the journals of a run, each a record of kind "call" whose model is `note`.

    Those of a run that this one goes on from, or takes its answers from, are found there.
    """

    def __init__(self, passing: Passing) -> None:
        self._passing = passing
        self._recorders = passing.recorders
        self._lock = threading.Lock()
        self._kept: dict[str, Any] = {}

    def find(self, stage_id: str, key: str) -> Any:
        """Give the value on record, or `MISSING`."""
        place = self._key(stage_id, key)
        if place.full_path not in self._kept:
            for recorder in self._recorders:
                found = _found(recorder, place, key)
                if found is not None:
                    self._take_over(replace(found, key=place, source="replayed"), recorder, found)
                    break
        return self._kept.get(place.full_path, MISSING)

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Write a value down. Raises ValueError for a key that has one already."""
        place = self._key(stage_id, key)
        if place.full_path in self._kept:
            raise ValueError(f"{stage_id}: there is a note {key!r} already")
        moment = now()
        record = CallRecord(
            key=place,
            prompt=key,
            model=NOTE,
            started=moment,
            ended=moment,
            kind="call",
            request=_request(place),
            value=plain(value),
        )
        with self._lock:
            for recorder in self._recorders:
                recorder.journal.append(record)
            self._kept[place.full_path] = sealed(value)

    def _take_over(self, record: CallRecord, known: Recorder, found: CallRecord) -> None:
        """Keep a note, and write it to those journals that lack it."""
        owned = known.answers is not None and known.answers.owns(found)
        with self._lock:
            for recorder in self._recorders:
                if recorder is not known or not owned:
                    recorder.journal.append(record)
            self._kept[record.key.full_path] = sealed(record.value)

    def _key(self, stage_id: str, key: str) -> CallKey:
        return self._passing.key(f"{path_of(stage_id)}/{NOTE}/{key}")


def _found(recorder: Recorder, place: CallKey, key: str) -> CallRecord | None:
    """Give the record of a note; what a replayed run has not noted is noted anew."""
    if recorder.answers is None:
        return None
    asked = Asked(
        path=place.full_path,
        request=_request(place),
        prompt=key,
        model=NOTE,
        params={},
        context=0,
        kind="call",
    )
    try:
        return recorder.answers.find(asked)
    except ReplayMiss:
        return None


def _request(place: CallKey) -> str:
    """Give what stands for the request of a note: its place, so that no other is taken for it."""
    return f"{NOTE} {place.path}"
