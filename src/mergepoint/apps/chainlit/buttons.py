"""Buttons below messages (Chainlit calls them actions), and the editor at gates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mergepoint.agent.turns import Pending
from mergepoint.apps.chainlit.shown_step import Button
from mergepoint.core.errors import StepError
from mergepoint.core.merge import last_response
from mergepoint.core.strict_yaml import YamlError, dump, load
from mergepoint.tree.decision import Question

APPROVE = "approve"
EDIT = "edit"
# Sent by the editor of the page's own script; Chainlit shows no button for it.
SAVE = "save"
REPLAN = "replan"
CANCEL = "cancel"
GO_ON = "go_on"
NAMES = (APPROVE, EDIT, REPLAN, CANCEL, GO_ON)


def gate_buttons(question: Question, turn: int) -> tuple[Button, ...]:
    """Return the buttons of an open question, which are valid for this question only."""
    # A click names its question: a page that isn't up to date must not decide a later one.
    payload = {"turn": turn, "key": Pending(question, "other").key}
    return tuple(_button(name, payload) for name in (APPROVE, EDIT, REPLAN, CANCEL))


def interrupted_buttons(turn: int) -> tuple[Button, ...]:
    """Return the buttons of a turn whose process was killed."""
    payload = {"turn": turn}
    return _button(GO_ON, payload), _button(CANCEL, payload)


def retry_buttons(turn: int) -> tuple[Button, ...]:
    """Return the buttons of a turn that failed."""
    again = _button(GO_ON, {"turn": turn})
    tooltip = "Recorded calls aren't repeated"
    return (replace(again, label="Try again", icon="rotate-cw", tooltip=tooltip),)


_LOOKS = {  # of a button: its label, icon, and tooltip
    APPROVE: ("Approve", "check", "Carry it out"),
    EDIT: ("Edit", "pencil", "Change it yourself"),
    REPLAN: ("Ask for changes", "message-square", "Describe the changes in a message"),
    CANCEL: ("Cancel", "x", "End without answer"),
    GO_ON: ("Go on", "play", "Resume this turn"),
}


def _button(name: str, payload: Mapping[str, Any]) -> Button:
    label, icon, tooltip = _LOOKS[name]
    return Button(name=name, label=label, payload=payload, icon=icon, tooltip=tooltip)


@dataclass(frozen=True, slots=True)
class Editor:
    """A text to edit; `save` is the label of the button that submits it as the decision."""

    title: str
    text: str
    save: str
    code: bool = False


def editor_of(pending: Pending) -> Editor:
    """Return the editor's text: a program as is, a plan as YAML, otherwise the answer.

    Outputs of a node without an answer are shown as JSON.
    """
    if pending.asks == "code":
        return Editor("Edit the program", pending.code, "Save and run", code=True)
    if pending.plan is not None:
        return Editor("Edit the plan", dump(pending.plan.model_dump()), "Save and carry out")
    text = _pending_text(pending)
    if text is not None:
        return Editor("Edit the answer", text, "Save and continue")
    outputs = json.dumps(dict(pending.question.kept.outputs), ensure_ascii=False, indent=2)
    return Editor("Edit the outputs (JSON)", outputs, "Save and continue", code=True)


def decision_for(pending: Pending, text: str) -> Any:
    """Return the decision for an edited text: an approval if nothing changed.

    Raise StepError if YAML or JSON is expected and the text is invalid.
    """
    if text.strip() == editor_of(pending).text.strip():
        return "approve"
    if pending.plan is not None and pending.asks == "plan":
        try:
            plan = load(text, source="the plan").value
            return {"decision": "edit", "text": json.dumps(plan, ensure_ascii=False)}
        except (YamlError, TypeError, ValueError) as error:
            raise StepError(str(error)) from error
    if pending.asks == "code" or _pending_text(pending) is not None:
        return {"decision": "edit", "text": text}
    try:
        return {"decision": "edit", "outputs": json.loads(text)}
    except (ValueError, RecursionError) as error:
        raise StepError(f"the text isn't valid JSON: {error}") from error


def _pending_text(pending: Pending) -> str | None:
    """Return the pending text, or None if only outputs are pending."""
    question = pending.question
    response = last_response(question.kept.messages)
    if response is not None:
        return str(response.text)
    if question.capture_key is None or question.capture_key not in question.kept.outputs:
        return None
    value = question.kept.outputs[question.capture_key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
