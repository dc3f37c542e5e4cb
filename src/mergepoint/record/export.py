"""Export: the transcript of a run, worked out from its journal alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mergepoint.core.merge import last_response
from mergepoint.core.state import State
from mergepoint.record.header import RunHeader
from mergepoint.record.record import CallRecord
from mergepoint.record.replay import Replay, replay
from mergepoint.record.standing import pending
from mergepoint.record.transcript import Transcript
from mergepoint.tree.fold import Messages
from mergepoint.tree.outline import from_outline

UNFINISHED = "Unfinished"
WAITING = "GateOpen"

NOT_IN_JOURNAL = ("error",)
"""What a transcript has and a journal does not: an error may come from between the calls."""


def transcript_of(header: RunHeader, records: Iterable[CallRecord]) -> Transcript:
    """Give the transcript of what a journal holds, also of a run that was killed.

    Where every call that the tree needs is on record, text and outputs are those at the end of
    the run. Else they are empty, and `error` says why: a merge or a loop failed; "GateOpen", where
    nothing but decisions is missing; else "Unfinished", with the first call without an answer.
    """
    records = tuple(records)
    tree, base = from_outline(header.tree), State(header.messages)
    at = str(header.tree["path"])
    found = replay(records, tree, base=base, at=at)
    state = found.state
    transcript = Transcript.of(
        records,
        tree,
        run_id=header.run_id,
        at=at,
        base=header.messages,
        inputs=header.inputs,
        outputs={} if state is None else state.outputs,
        text=_text(state, given=len(header.messages)),
        error=_why(found, records) if state is None else None,
        created_at=header.created_at,
        seed=header.seed,
    )
    return replace(transcript, tree=header.tree)  # an outline of an outline has lost what is read


def agrees(transcript: Transcript, records: Iterable[CallRecord]) -> bool:
    """Say whether a transcript holds as many calls as the journal; a killed resume left fewer."""
    return len(transcript.everything) == len(tuple(records))


def _text(state: Messages | None, *, given: int) -> str:
    response = last_response(state.messages[given:]) if state is not None else None
    return str(response.text) if response is not None else ""


def _why(found: Replay, records: tuple[CallRecord, ...]) -> dict[str, str]:
    """Say why a run has no end, as far as its records tell."""
    if found.error is not None:
        path = str(getattr(found.error, "pipeline_path", ""))
        return _error(type(found.error).__name__, str(found.error), path)
    gates = [record.path for record in pending(records)]
    calls = [path for path in found.missing if path not in gates]
    if not calls:
        return _error(WAITING, f"waiting for a decision at {', '.join(gates)}", gates[0])
    path = calls[0]
    failed = [record.error for record in records if record.error and record.path == path]
    last = f"; tried, {failed[-1]['type']}: {failed[-1]['message']}" if failed else ""
    return _error(UNFINISHED, f"unfinished: no answer at {path} is on record{last}", path)


def _error(kind: str, message: str, path: str) -> dict[str, str]:
    return {"type": kind, "message": message, "path": path, "node": path.rpartition("/")[2]}
