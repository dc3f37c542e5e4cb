"""Export: the transcript of a run, worked out from its journal alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mergepoint.core.merge import last_response
from mergepoint.core.state import State
from mergepoint.record.header import RunHeader
from mergepoint.record.record import CallRecord
from mergepoint.record.replay import replay
from mergepoint.record.transcript import Transcript
from mergepoint.tree.fold import Messages
from mergepoint.tree.outline import from_outline, leaf_paths

UNFINISHED = "Unfinished"

NOT_IN_JOURNAL = ("error",)
"""What a transcript has and a journal does not: an error may come from between the calls."""


def transcript_of(header: RunHeader, records: Iterable[CallRecord]) -> Transcript:
    """Give the transcript of what a journal holds, also of a run that was killed.

    Where every call that the tree needs is on record, text and outputs are those at the end of
    the run; else they are empty, and `error` is of type "Unfinished" and names the first call
    without an answer.
    """
    records = tuple(records)
    tree, base = from_outline(header.tree), State(header.messages)
    at = str(header.tree["path"])
    state = replay(records, tree, base=base, at=at).state
    transcript = Transcript.of(
        records,
        tree,
        run_id=header.run_id,
        at=at,
        base=header.messages,
        inputs=header.inputs,
        outputs={} if state is None else state.outputs,
        text=_text(state, given=len(header.messages)),
        error=_unfinished(header, records) if state is None else None,
        created_at=header.created_at,
        seed=header.seed,
    )
    return replace(transcript, tree=header.tree)  # an outline of an outline has lost what is read


def unanswered(shape: Mapping[str, Any], records: Iterable[CallRecord]) -> list[str]:
    """Give the paths of an outline without an answer, in the order of the tree."""
    answered = {record.path for record in records if record.answered and record.kind != "inner"}
    return [path for path in leaf_paths(shape) if path not in answered]


def agrees(transcript: Transcript, records: Iterable[CallRecord]) -> bool:
    """Say whether a transcript holds as many calls as the journal; a killed resume left fewer."""
    told = (*transcript.records, *transcript.inner, *transcript.failures)
    return len(told) == len(tuple(records))


def _text(state: Messages | None, *, given: int) -> str:
    response = last_response(state.messages[given:]) if state is not None else None
    return str(response.text) if response is not None else ""


def _unfinished(header: RunHeader, records: tuple[CallRecord, ...]) -> dict[str, str]:
    missing = unanswered(header.tree, records)
    path = missing[0] if missing else str(header.tree["path"])
    failed = [record.error for record in records if record.error and record.path == path]
    last = f"; tried, {failed[-1]['type']}: {failed[-1]['message']}" if failed else ""
    return {
        "type": UNFINISHED,
        "message": f"unfinished: no answer at {path} is on record{last}",
        "path": path,
        "node": path.rpartition("/")[2],
    }
