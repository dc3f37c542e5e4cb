"""What waits at a gate as a text, and the decision that an edit of it comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.agent.tree import Plan
from mergepoint.agent.turns import Pending
from mergepoint.apps.chainlit.buttons import decision_for, editor_of
from mergepoint.core.errors import StepError
from mergepoint.core.merge import State
from mergepoint.tree.decision import Decision, Question

PLAN = Plan(intent="Sum: all", action="custom_script", skill="", steps=["Read.", 'Add "it".'])


def waiting(asks: Any, *messages: Any, key: str | None = None, **outputs: Any) -> Pending:
    """Return a question about messages and outputs."""
    question = Question("t/gate", "Well?", State.of(messages, outputs), capture_key=key)
    plan = PLAN if asks == "plan" else None
    return Pending(question, asks, plan=plan, code=str(outputs.get("code", "")))


PLANNED = waiting("plan", plan=PLAN.model_dump())
PROGRAM = waiting("code", code="print(1)\n")
ANSWERED = waiting("other", HumanMessage("Hi."), AIMessage("Hello."))
CAPTURED = waiting("other", key="best", best={"score": 1}, all=[1, 2])
OUTPUTS = waiting("other", best={"score": 1})


@pytest.mark.parametrize("pending", [PLANNED, PROGRAM, ANSWERED, CAPTURED, OUTPUTS])
def test_what_is_not_changed_is_approved(pending: Pending) -> None:
    """A text that is saved as it was is no edit, with other blanks around it either."""
    text = editor_of(pending).text
    assert text
    assert decision_for(pending, f"{text}\n") == "approve"


def test_a_plan_is_yaml() -> None:
    """A person edits no JSON, and the decision holds it."""
    text = editor_of(PLANNED).text
    assert text == (
        'intent: "Sum: all"\naction: custom_script\nskill: ""\nsteps:\n  - Read.\n  - Add "it".\n'
    )
    decision = Decision.of(decision_for(PLANNED, text.replace("Read.", "Look.")))
    assert json.loads(str(decision.text)) == {**PLAN.model_dump(), "steps": ["Look.", 'Add "it".']}
    with pytest.raises(StepError, match="the plan:2"):
        decision_for(PLANNED, "intent: [")


def test_anything_else_is_what_was_said_or_json() -> None:
    """A program and an answer are text, outputs of what said nothing are JSON."""
    assert decision_for(PROGRAM, "print(2)") == {"decision": "edit", "text": "print(2)"}
    assert decision_for(ANSWERED, "Hello!") == {"decision": "edit", "text": "Hello!"}
    assert decision_for(CAPTURED, '{"score": 2}') == {"decision": "edit", "text": '{"score": 2}'}
    outputs = {"decision": "edit", "outputs": {"best": {"score": 2}}}
    assert decision_for(OUTPUTS, '{"best": {"score": 2}}') == outputs
    with pytest.raises(StepError, match="isn't valid JSON"):
        decision_for(OUTPUTS, "{")
