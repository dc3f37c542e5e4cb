"""Plans, code, and runs as steps, including those in progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Literal

from mergepoint.apps.chainlit.shown_step import ASSISTANT, ShownStep, shown_id
from mergepoint.apps.chainlit.texts import last_line, partial_text, run_text, text_of, worded
from mergepoint.apps.chainlit.turn_parts import TurnParts
from mergepoint.apps.chainlit.turn_run import ProgramExecution
from mergepoint.apps.cli.output import clock
from mergepoint.session.entries import StepType, WorkingStep

BY_USER = "user"
"""The reason for a stop by a person; other reasons are those of a CodeRun."""

Status = Literal["ok", "failed", "stopped"]

_ICONS = {StepType.PLAN: "list-checks", StepType.CODEGEN: "code", StepType.EXECUTE: "terminal"}
_STOPPED_BY = {
    BY_USER: "by you",
    "cancelled": "by you",
    "wall": "by its time limit",
    "cpu": "by its limit of CPU time",
    "memory": "by its memory limit",
    "processes": "by its limit of processes",
    "output": "by its limit of output",
    "files": "by its limit of files",
}


def work(facts: TurnParts) -> Iterator[ShownStep]:
    """Yield finished and unfinished work; the current step is unfolded."""
    made: dict[str, ShownStep] = {}
    for step in facts.steps:
        if facts.places.is_gate(step.path):
            yield from _edited(facts, step)
            continue
        shown = _step(facts, step.id, step.type, step.path, step.attempt or 1, step.created_at)
        if step.type is StepType.EXECUTE:
            shown = _ended(facts, step, shown)
        else:
            shown = replace(shown, text=text_of(step), ended_at=step.created_at)
        made[shown.id] = replace(shown, open=step.id in _in_hand(facts))
    yield from made.values()
    yield from _begun(facts)


def _ended(facts: TurnParts, step: WorkingStep, shown: ShownStep) -> ShownStep:
    """Return the step of a finished program: how, why, and when it ended."""
    known = facts.ran.executions.get(step.path) or _stopped_here(step)
    status, what = _status(step, known)
    seconds = "" if known is None else clock(known.seconds)
    by_person = known is not None and known.stopped == BY_USER
    why = f": {last_line(*step.printed)}" if status == "failed" else ""
    after = f" after {seconds}" if seconds else ""
    return replace(
        shown,
        name=" · ".join(filter(None, [shown.name, status, seconds])),
        text=run_text(*step.printed, f"{what}{after}{why}" if what else ""),
        ended_at=step.created_at,
        wrong=status != "ok" and not by_person,
        icon="circle-stop" if by_person else shown.icon,
    )


def _status(step: WorkingStep, known: ProgramExecution | None) -> tuple[Status, str]:
    """Return how a program ended, as a word and as a sentence."""
    if known is not None and known.stopped:
        return "stopped", f"Stopped {_STOPPED_BY.get(known.stopped, known.stopped)}"
    code = step.exit_code
    return ("failed" if code else "ok"), "" if code is None else f"Exit code {code}"


def _stopped_here(step: WorkingStep) -> ProgramExecution | None:
    """Return the end of a program that a person stopped: only the session has it."""
    about = step.metadata or {}
    if about.get("stopped") != BY_USER:
        return None
    return ProgramExecution(seconds=float(about.get("seconds") or 0.0), stopped=BY_USER)


def _edited(facts: TurnParts, step: WorkingStep) -> Iterator[ShownStep]:
    """Yield a plan or program as edited, below the decision."""
    if step.decision != "edit" or not step.content or not step.decides:
        return
    kind = StepType(step.decides)
    shown = _step(facts, f"{step.id}/edited", kind, step.path, 1, step.created_at)
    name = f"{str(kind).capitalize()} as edited"
    yield replace(shown, name=name, icon="pencil", text=text_of(step), ended_at=step.created_at)


def _in_hand(facts: TurnParts) -> set[str]:
    """Return the ids of the current entries: a question's subject, or the latest artifact.

    There are no gaps in between: a step that was folded for a moment wouldn't unfold again.
    """
    if facts.end is not None:
        return set()
    if facts.standing.live:
        made = [
            one.id
            for one in facts.steps
            if one.type is not StepType.EXECUTE and not facts.places.is_gate(one.path)
        ]
        return {*made[-1:]}
    return {one.id for asked in facts.standing.questions for one in facts.held(asked.path)}


def _begun(facts: TurnParts) -> Iterator[ShownStep]:
    """Yield the calls in progress."""
    for one in facts.standing.partial:
        path = facts.places.drafted(one.path) or one.path
        kind = facts.places.artifacts.type_at(path)
        if kind is not None and facts.made(path) < one.number:
            entry = f"{facts.stem}/{path}/step-{one.number}"
            shown = _step(
                facts, entry, kind, path, facts.places.artifacts.attempt_at(path), one.started
            )
            yield replace(shown, text=partial_text(kind, one.text), live=True, open=True)
        elif one.text and facts.end is None and facts.places.answers(one.path):
            yield ShownStep(
                id=shown_id(f"{facts.stem}/{one.path}/1"),
                type="assistant_message",
                name=ASSISTANT,
                turn=facts.turn,
                parent=facts.run_at(one.started),
                text=worded(one.text),
                created_at=one.started,
                live=True,
            )


def _step(
    facts: TurnParts, entry: str, kind: StepType, path: str, attempt: int, at: datetime
) -> ShownStep:
    name = str(kind).capitalize()
    plain = kind is StepType.PLAN and attempt == 1
    return ShownStep(
        id=shown_id(entry),
        type="tool",
        name=name if plain else f"{name} (attempt {attempt})",
        turn=facts.turn,
        parent=facts.run_at(at),
        text="",
        created_at=at,
        icon=_ICONS.get(kind, ""),
    )
