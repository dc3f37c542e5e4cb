"""Steps that show gates: the questions, the decisions, and the feedback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from mergepoint.apps.chainlit.buttons import gate_buttons
from mergepoint.apps.chainlit.shown_step import ASSISTANT, ShownStep, shown_id
from mergepoint.apps.chainlit.texts import code_change, last_line, shortened, worded
from mergepoint.apps.chainlit.turn_parts import MOMENT, TurnParts
from mergepoint.apps.cli.output import printable
from mergepoint.session.entries import StepType, WorkingStep
from mergepoint.tree.nodes import Gate

ASKS = "Is this what should be done?"

_DECIDED = {
    "approve": "✓ **Approved**",
    "edit": "✓ **Approved as edited**",
    "reject": "↻ **Sent back**",
}
_CANCELLED = "✗ **Cancelled**"


def gates(facts: TurnParts) -> Iterator[ShownStep]:
    """Yield the questions at gates, with the decisions and feedback."""
    decided = [step for step in facts.steps if facts.places.is_gate(step.path)]
    for step in decided:
        if step.path in facts.persons:
            yield _question(facts, step.path, _DECIDED.get(step.decision, ""), step.created_at)
            if step.feedback:
                yield _feedback(facts, step)
    if facts.broken and facts.end is not None:
        for path in {*facts.persons} - {step.path for step in decided}:
            yield _question(facts, path, _CANCELLED, facts.end.created_at)
        return
    for question in facts.standing.questions:
        shown = _question(facts, question.path, "", facts.last + 2 * MOMENT)
        free = not facts.standing.live and not facts.standing.elsewhere
        yield replace(shown, buttons=gate_buttons(question, facts.turn) if free else ())


def _question(facts: TurnParts, path: str, decided: str, at: datetime) -> ShownStep:
    """Return a question as a step; its subject is an earlier step or part of its text."""
    node = facts.places.artifacts.node_at(path)
    asks = (node.question if isinstance(node, Gate) else "") or ASKS
    held = facts.held(path)
    moment = ([one.created_at for one in held] or [at - MOMENT])[-1] + MOMENT
    asks = f"{worded(asks)} {decided}" if decided else f"**{worded(asks)}**"
    why = [] if decided or not held else _why_again(facts, held[-1])
    about = why if held else _about(facts, path)
    return ShownStep(
        id=shown_id(f"{facts.stem}/{path}/question"),
        type="system_message",
        name=ASSISTANT,
        turn=facts.turn,
        parent=facts.run_at(moment),
        text="\n\n".join([*about, asks]),
        created_at=moment,
        ended_at=moment,
    )


def _why_again(facts: TurnParts, code: WorkingStep) -> list[str]:
    """Return why a program was rewritten, and how it differs from the previous one."""
    earlier = [one for one in facts.steps if one.created_at < code.created_at]
    programs = [one for one in earlier if _is_program(one) and one.content]
    runs = [one for one in earlier if one.type is StepType.EXECUTE]
    if code.type is not StepType.CODEGEN or not programs or not runs or not runs[-1].exit_code:
        return []
    reason = last_line(*runs[-1].printed)
    return [
        f"The program before this one failed with exit code {runs[-1].exit_code}: {reason}",
        "What changed:",
        code_change(programs[-1].content, code.content),
    ]


def _is_program(step: WorkingStep) -> bool:
    """Return whether a step contains a program, as written by the model or edited by a person."""
    return StepType.CODEGEN in (step.type, step.decides)


def _about(facts: TurnParts, path: str) -> list[str]:
    """Return the subject of a question about a node without artifacts, as edited."""
    for step in facts.steps:
        if step.path == path and step.content:
            return [shortened(worded(step.content))]
    return [*facts.ran.kept.get(path, ())]


def _feedback(facts: TurnParts, step: WorkingStep) -> ShownStep:
    return ShownStep(
        id=facts.bubble(step),
        type="user_message",
        name="user",
        turn=facts.turn,
        parent=None,
        text=shortened(printable(step.feedback)),
        created_at=step.created_at,
        ended_at=step.created_at,
    )
