"""On random trees, views and fates are those of the run."""

from __future__ import annotations

import re
from collections import Counter
from typing import get_args

from langchain_core.messages import BaseMessage

from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.interpreter import interpret
from mergepoint.journal.transcript import Transcript
from mergepoint.report.transcript_index import TranscriptIndex
from mergepoint.report.views import End
from mergepoint.testing.random_trees import Case, seeded_case
from mergepoint.testing.tree_functions import TableModel
from mergepoint.tree.nodes import root_path
from mergepoint.tree.policy import Budget

RUN = "r1"
CASES = 250
MARKS = re.compile(r"^\[reasoning\]|\[calls [^\]]*\]$")
"""What a view shows of an answer beside its text."""


def looked_at(
    case: Case, budget: Budget | None
) -> tuple[TranscriptIndex, TableModel, tuple[BaseMessage, ...] | None]:
    """Run a case; give its sight, the model with what it saw, and the conversation at the end."""
    model, recorder = TableModel(table=case.answers), Recorder()
    end: tuple[BaseMessage, ...] | None = None
    error: dict[str, str] | None = None
    try:
        end = interpret(
            case.tree,
            model=model,
            messages=case.messages,
            inputs=case.inputs,
            run_id=RUN,
            recorder=recorder,
            budget=budget,
        ).messages
    except Exception as raised:  # noqa: BLE001  (a run that fails is looked at too)
        error = {"path": str(getattr(raised, "pipeline_path", "")), "message": str(raised)}
    transcript = Transcript.of(
        recorder.journal.records,
        case.tree,
        run_id=RUN,
        at=root_path(case.tree),
        base=case.messages,
        inputs=case.inputs,
        error=error,
    )
    return TranscriptIndex(transcript), model, end


def check(case: Case, budget: Budget | None = None) -> Counter[str]:
    """Hold what a sight says to what the model saw and what was left; count how answers ended."""
    ends: Counter[str] = Counter()
    sight, model, end = looked_at(case, budget)
    saw = {path: list(lines) for path, lines in model.saw}
    views = {path: sight.call(path) for path in sight.paths}
    calls = {path: view for path, view in views.items() if view.kind != "gate"}
    asked = {path for path, view in calls.items() if view.kind == "step" and not view.left_out}
    assert asked | {path for path, view in calls.items() if view.inside} == set(saw)
    for path, call in calls.items():
        if call.left_out:
            assert (call.error or {})["type"] == "BudgetExceeded"
            continue
        if call.kind == "call":
            ends[call.fate.end if call.fate is not None else "failed"] += 1
            continue
        assert [(seen.role, MARKS.sub("", seen.text)) for seen in call.seen] == saw[path]
        if call.fate is None:
            assert call.error is not None
            ends["failed"] += 1
            continue
        ends[call.fate.end] += 1
        seen_by = [
            other
            for other, view in calls.items()
            if not view.left_out
            and any(seen.path == path and seen.role == "assistant" for seen in view.seen)
        ]
        assert list(call.fate.seen_by) == seen_by
        if end is None:
            assert call.fate.end != "kept"
        else:
            ids = [message.id for message in end[len(case.messages) :]]
            assert (call.fate.end == "kept") == (f"{RUN}/{path}/1" in ids)
    return ends


def test_views_and_fates_are_those_of_the_run() -> None:
    """Of 250 random trees, cut short or failing too, calls show what they saw and left."""
    ends: Counter[str] = Counter()
    for seed in range(CASES):
        keep = Budget(calls=2 + seed % 4, on_exhausted="keep")
        ends += check(seeded_case(seed), None if seed % 3 else keep)
    assert min(ends[end] for end in (*get_args(End), "failed")) > CASES / 30
