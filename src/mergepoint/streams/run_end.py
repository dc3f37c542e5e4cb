"""Run end: the record by which a journal tells that a recipe's run is over, and was not killed.

A tree tells from its outline which calls a run needs. What a recipe asks for comes of its items,
so the end is on record itself.
"""

from __future__ import annotations

from typing import Any

from mergepoint.record.journal import Journal
from mergepoint.record.record import CallKey, CallRecord, now
from mergepoint.streams.door import path_of
from mergepoint.streams.notes_on_record import NOTE
from mergepoint.streams.planned import PlannedRecipe


def end_in_outline(planned: PlannedRecipe) -> dict[str, Any]:
    """Give the end as a node of the run's outline."""
    return {"path": _path(planned), "kind": "call", "merge": "none"}


def write_end(journal: Journal, planned: PlannedRecipe, *, run_id: str, host: str = "") -> None:
    """Put on record that the run is over; where that is known already, do nothing."""
    key = CallKey(run_id, host, _path(planned))
    if any(record.key == key for record in journal.records):
        return
    moment = now()
    journal.append(
        CallRecord(key=key, prompt="", model=NOTE, started=moment, ended=moment, kind="call")
    )


def _path(planned: PlannedRecipe) -> str:
    return f"{path_of(planned.stage_id)}/end"
