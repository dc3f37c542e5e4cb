"""A recipe run in the journal: its header, its notes, and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from mergepoint.core.errors import Fault, RecipeError, ReplayMiss, StepError, TreeError
from mergepoint.core.frozen_json import freeze, thaw
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.start_and_resume import OtherInputsError
from mergepoint.journal.call_records import CallKey, CallRecord, now
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.recipe_records import NOTE, RecipeEnd, StageCount, end_path
from mergepoint.journal.recorded_answers import AnswerRequest
from mergepoint.journal.redact import MASK
from mergepoint.journal.stores import Journal, RunHeader
from mergepoint.journal.writer import append_record
from mergepoint.models.identity import ChatModel
from mergepoint.streams.block_context import MISSING, Trace
from mergepoint.streams.conditions import failed
from mergepoint.streams.model_calls import CallEnvironment, path_of
from mergepoint.streams.params import recorded
from mergepoint.streams.plan_proposals import outline_of, statics_of
from mergepoint.streams.resolved_recipe import PlannedRecipe
from mergepoint.streams.thing import Thing

# The journal of a tree needs no end: its outline shows which calls are missing. A recipe's calls
# depend on its items, so its end is recorded, with its results and lineage.


MOST_THINGS: Final = 1_000
"""Maximum number of Things that the end of a run contains; the others are counted."""

_COMPARED: Final = ("stopped", "count", "failed", "things")


@dataclass
class Results:
    """The results of a run so far: a count of all, and the first Things."""

    count: int = 0
    failed: int = 0
    things: list[Thing] = field(default_factory=list)
    stopped: str = ""

    def take(self, things: Iterable[Thing], *, stopped: str) -> None:
        """Add all results of a run, and the limit that ended it."""
        self.stopped = stopped
        for thing in things:
            self.add(thing)

    def add(self, thing: Thing) -> None:
        """Add one result."""
        self.count += 1
        self.failed += failed(thing)
        if len(self.things) < MOST_THINGS:
            self.things.append(thing)

    def end(self, trace: Trace, stages: tuple[StageCount, ...], *, stopped: str) -> RecipeEnd:
        """Return the end of the run with these results."""
        return RecipeEnd(
            stopped=stopped,
            count=self.count,
            failed=self.failed,
            things=tuple(
                {"id": one.id, "content": thaw(one.content), "props": thaw(one.props)}
                for one in self.things
            ),
            stages=stages,
            reasons=tuple(trace.reasons),
            lineage=tuple(trace.lineage),
            untold=trace.untold,
        )


def end_in_outline(planned: PlannedRecipe) -> dict[str, Any]:
    """Return the end as a node of the run's outline."""
    return {"path": _path(planned), "kind": "call", "merge": "none"}


def write_end(
    journal: Journal,
    planned: PlannedRecipe,
    *,
    run_id: str,
    host: str = "",
    end: RecipeEnd | None = None,
) -> None:
    """Record the end of a run, unless the same end is recorded already.

    A run that is resumed, for example with a larger budget, may end differently than before.
    """
    key = CallKey(run_id, host, _path(planned))
    known = [record for record in journal.records if record.key == key]
    if known and (end is None or _same(known[-1].value, end)):
        return
    value = None if end is None else end.to_plain()
    moment = now()
    record = CallRecord(
        key=key, prompt="", model=NOTE, started=moment, ended=moment, kind="call", value=value
    )
    append_record(journal, record, later=True)


def _same(known: Any, end: RecipeEnd) -> bool:
    """Return whether a recorded end equals this one, ignoring the order of lineage."""
    if not isinstance(known, Mapping):
        return False
    before = RecipeEnd.from_plain(known)
    return all(getattr(before, name) == getattr(end, name) for name in _COMPARED)


def _path(planned: PlannedRecipe) -> str:
    return end_path(path_of(planned.prefix))


def header_of(
    planned: PlannedRecipe,
    models: Mapping[str, ChatModel],
    items: Iterable[Any] | None,
    *,
    run_id: str,
    seed: int = 0,
    knobs: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> RunHeader:
    """Return the header of a new run; items that came from a stream are None.

    Raise RecipeError for Things of another stream.
    """
    return RunHeader(
        run_id=run_id,
        created_at=datetime.now(UTC),
        seed=seed,
        inputs={
            "items": None if items is None else [on_wire(one) for one in items],
            "knobs": recorded(knobs or {}),
        },
        messages=(),
        tree=_outline(planned),
        requests=statics_of(planned, models),
        meta=dict(meta or {}),
    )


def _outline(planned: PlannedRecipe) -> dict[str, Any]:
    outline = outline_of(planned)
    return {**outline, "nodes": [*outline["nodes"], end_in_outline(planned)]}


def changed(header: RunHeader, planned: PlannedRecipe, models: Mapping[str, ChatModel]) -> None:
    """Raise TreeError with every stage that changed since the run began."""
    now, before = statics_of(planned, models), header.requests
    faults = [
        Fault(path, "is another than the run began with; begin one that reuses it (--reuse)")
        for path in sorted(now.keys() | before.keys())
        if now.get(path) != before.get(path)
    ]
    if faults:
        raise TreeError(faults)


def check_knobs(header: RunHeader, given: Mapping[str, Any]) -> None:
    """Raise JournalError if knobs are masked in the journal and aren't passed again."""
    if "knobs" not in header.hidden.get("names", ()):
        return
    known = header.inputs.get("knobs", {})
    if missing := [
        name for name, value in known.items() if MASK in str(value) and name not in given
    ]:
        raise JournalError(_needed(header, "knobs", [f"--input {name}=VALUE" for name in missing]))


def check_items(
    header: RunHeader, items: Iterable[Any] | None, knobs: Mapping[str, Any] | None
) -> None:
    """Check a resumed run's items and knobs against the header, masked ones by their digests.

    Raise JournalError if masked items aren't passed again, and StepError if they differ.
    """
    names = header.hidden.get("names", ())
    if not names:
        return
    if "items" in names and items is None:
        raise JournalError(_needed(header, "items", ["--input items=TEXT"]))
    if "items" in names and not isinstance(items, list | tuple):
        raise StepError(f"give the items of run {header.run_id!r} as a list: they are compared")
    known = header.inputs.get("items")
    given = [on_wire(one) for one in items] if isinstance(items, list | tuple) else known
    again = {"items": given if "items" in names else known, "knobs": recorded(knobs or {})}
    if header.differing(again, ()):
        raise OtherInputsError(
            f"run {header.run_id!r} began with other {' and '.join(names)}; give it the same to go "
            "on with it, or begin a new run"
        )


def _needed(header: RunHeader, what: str, options: Iterable[str]) -> str:
    return (
        f"run {header.run_id!r} cannot be resumed without its {what}, which were masked before "
        "they were written (they held what looks like a key, or what the redact hook changed); "
        f"give the same again ({' '.join(options)}; in Python {what}); a digest checks it"
    )


def on_wire(item: Any) -> Any:
    """Return an item as JSON data: its content, and its props if it has any."""
    if not isinstance(item, Thing):
        return {"content": thaw(Thing(item).content)}
    if item.history:
        raise RecipeError(f"{item.id} is of another stream; give Thing(content, props)")
    props = {"props": thaw(item.props)} if item.props else {}
    return {"content": thaw(item.content), **props}


def off_wire(data: Mapping[str, Any]) -> Thing:
    """Return an item from JSON data."""
    return Thing(data["content"], data.get("props", {}))


class JournaledNotes:
    """Notes in the run's journals, each a record of kind "call" whose model is `note`.

    The notes of a resumed or reused run are found too.
    """

    def __init__(self, environment: CallEnvironment) -> None:
        self._environment = environment
        self._recorders = environment.recorders
        self._lock = threading.Lock()
        self._kept: dict[str, Any] = {}

    def find(self, stage_id: str, key: str) -> Any:
        """Return the stored value, or `MISSING`."""
        place = self._key(stage_id, key)
        if place.full_path not in self._kept:
            for recorder in self._recorders:
                found = _found(recorder, place, key)
                if found is not None:
                    # Copied into this run's journals: resuming it must not need the other run.
                    self._take_over(replace(found, key=place, source="replayed"), recorder, found)
                    break
        return self._kept.get(place.full_path, MISSING)

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Store a value. Raise ValueError if the key already has one."""
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
            value=thaw(value),
        )
        with self._lock:
            for recorder in self._recorders:
                append_record(recorder.journal, record, later=True)
            self._kept[place.full_path] = freeze(value)

    def _take_over(self, record: CallRecord, known: Recorder, found: CallRecord) -> None:
        """Keep a note from another run, and write it to the journals that lack it."""
        owned = known.answers is not None and known.answers.owns(found)
        with self._lock:
            for recorder in self._recorders:
                if recorder is not known or not owned:
                    append_record(recorder.journal, record, later=True)
            self._kept[record.key.full_path] = freeze(record.value)

    def _key(self, stage_id: str, key: str) -> CallKey:
        return self._environment.key(f"{path_of(stage_id)}/{NOTE}/{key}")


def _found(recorder: Recorder, place: CallKey, key: str) -> CallRecord | None:
    """Return the record of a note, or None; a replayed run may write new notes."""
    if recorder.answers is None:
        return None
    asked = AnswerRequest(
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
    """Return a note's request text: its place, so that it matches no other record."""
    return f"{NOTE} {place.path}"
