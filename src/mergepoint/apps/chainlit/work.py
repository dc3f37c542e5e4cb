"""Work: plans, code and runs as steps, nested as they ran; also those that are just being made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from mergepoint.apps.chainlit.shown import ASSISTANT, Shown, shown_id
from mergepoint.apps.chainlit.texts import text_of
from mergepoint.apps.chainlit.turn_facts import TurnFacts
from mergepoint.apps.cli.output import printable
from mergepoint.session.working_step import StepType


def work(facts: TurnFacts) -> Iterator[Shown]:
    """Give what was made and what is just being made; open is what is in hand."""
    code: str | None = None
    made: dict[str, Shown] = {}
    for step in facts.steps:
        if facts.places.is_gate(step.path):
            continue
        shown = _step(facts, step.id, step.type, step.path, step.attempt or 1, step.created_at)
        parent = code if step.type is StepType.EXECUTE and code else shown.parent
        made[shown.id] = replace(
            shown,
            text=text_of(step),
            wrong=step.exit_code not in (None, 0),
            open=step.id in _in_hand(facts),
            parent=parent,
            ended_at=step.created_at,
        )
        code = shown.id if step.type is StepType.CODEGEN else code
    yield from made.values()
    yield from _begun(facts, code)


def _in_hand(facts: TurnFacts) -> set[str]:
    """Give the entries that are worked on: what is asked about, or what was made last.

    A step that was closed for a moment would not open again, so this has no gaps.
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


def _begun(facts: TurnFacts, code: str | None) -> Iterator[Shown]:
    """Give what is being said and done at this moment."""
    for one in facts.standing.partial:
        path = facts.places.drafted(one.path) or one.path
        kind = facts.places.artifacts.type_at(path)
        if kind is not None and facts.made(path) < one.number:
            entry = f"{facts.stem}/{path}/step-{one.number}"
            shown = _step(
                facts, entry, kind, path, facts.places.artifacts.attempt_at(path), one.started
            )
            parent = code if kind is StepType.EXECUTE and code else shown.parent
            yield replace(shown, text=printable(one.text), live=True, open=True, parent=parent)
            code = shown.id if kind is StepType.CODEGEN else code
        elif one.text and facts.end is None and facts.places.answers(one.path):
            yield Shown(
                id=shown_id(f"{facts.stem}/{one.path}/1"),
                type="assistant_message",
                name=ASSISTANT,
                turn=facts.turn,
                parent=facts.run_at(one.started),
                text=printable(one.text),
                created_at=one.started,
                live=True,
            )


def _step(
    facts: TurnFacts, entry: str, kind: StepType, path: str, attempt: int, at: datetime
) -> Shown:
    name = str(kind).capitalize()
    plain = kind is StepType.PLAN and attempt == 1
    return Shown(
        id=shown_id(entry),
        type="tool",
        name=name if plain else f"{name} (attempt {attempt})",
        turn=facts.turn,
        parent=facts.run_at(at),
        text="",
        created_at=at,
    )
