"""Workflow: a run as a Thing: what it came to, and what it used."""

from __future__ import annotations

from collections.abc import Iterable

from mergepoint.record.record import CallRecord
from mergepoint.record.usage import usage_of
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.sealed import plain
from mergepoint.streams.thing import Thing, stamp

DONE = "done"


def workflow_of(
    planned: PlannedRecipe, things: Iterable[Thing], records: Iterable[CallRecord], *, stopped: str
) -> Thing:
    """Give the run as a Thing: its content lists the contents of the Things.

    `stopped` is the rail that ended it, blank where none did.
    """
    made = list(records)
    used = usage_of(made)
    times = [(one.started, one.ended) for one in made]
    seconds = max((end for _, end in times), default=0.0) - min(
        (start for start, _ in times), default=0.0
    )
    props = {
        "kind": "workflow",
        "strategy": planned.recipe.name,
        "calls": used.calls,
        "tokens": used.total_tokens,
        "cost": used.known_cost,
        "seconds": round(seconds, 6),
        "stopped": stopped or DONE,
    }
    fresh = Thing([plain(one.content) for one in things], props)
    return stamp(None, fresh, block=planned.recipe.name, stage_id=planned.prefix)
