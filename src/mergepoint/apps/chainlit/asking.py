"""Asking: what a person was asked at gates, and what they said to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from mergepoint.apps.chainlit.buttons import gate_buttons
from mergepoint.apps.chainlit.shown import ASSISTANT, Shown, shown_id
from mergepoint.apps.chainlit.texts import shortened
from mergepoint.apps.chainlit.turn_facts import MOMENT, TurnFacts
from mergepoint.apps.cli.output import printable
from mergepoint.session.working_step import WorkingStep
from mergepoint.tree.gate import Gate
from mergepoint.tree.template import as_text

ASKS = "Is this what should be done?"

_DECIDED = {
    "approve": "✓ **Approved**",
    "edit": "✓ **Approved as edited**",
    "reject": "↻ **Sent back**",
}
_CANCELLED = "✗ **Cancelled**"


def gates(facts: TurnFacts) -> Iterator[Shown]:
    """Give what a person was asked and what they said to it."""
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
        shown = _question(facts, question.path, "", facts.last)
        free = not facts.standing.live and not facts.standing.elsewhere
        yield replace(shown, buttons=gate_buttons(question, facts.turn) if free else ())


def _question(facts: TurnFacts, path: str, decided: str, at: datetime) -> Shown:
    """Give a question; what it is about is a step before it, else it is said with it."""
    node = facts.places.artifacts.node_at(path)
    asks = (node.question if isinstance(node, Gate) else "") or ASKS
    held = facts.held(path)
    moment = ([one.created_at for one in held] or [at - MOMENT])[-1] + MOMENT
    about = [] if held else _kept(facts, path)
    text = [asks, decided] if decided else [*about, f"**{asks}**"]
    return Shown(
        id=shown_id(f"{facts.stem}/{path}/question"),
        type="assistant_message",
        name=ASSISTANT,
        turn=facts.turn,
        parent=facts.run_at(moment),
        text=" ".join(text) if decided else "\n\n".join(text),
        created_at=moment,
        ended_at=moment,
    )


def _kept(facts: TurnFacts, path: str) -> list[str]:
    """Give what is held back of a node that makes no artifact."""
    found = [one.kept for one in facts.standing.questions if one.path == path]
    said = [str(message.text) for kept in found for message in kept.messages]
    outputs = {key: as_text(value) for kept in found for key, value in kept.outputs.items()}
    said += [f"**{key}:** {value}" for key, value in outputs.items() if value not in said]
    return [shortened(printable(text)) for text in said]


def _feedback(facts: TurnFacts, step: WorkingStep) -> Shown:
    return Shown(
        id=facts.bubble(step),
        type="user_message",
        name="user",
        turn=facts.turn,
        parent=None,
        text=shortened(printable(step.feedback)),
        created_at=step.created_at,
        ended_at=step.created_at,
    )
