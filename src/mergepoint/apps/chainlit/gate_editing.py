"""Editing at gates: the text to edit, and the decision for the edited text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mergepoint.agent.turns import Pending
from mergepoint.core.errors import StepError
from mergepoint.core.state import last_response
from mergepoint.core.strict_yaml import YamlError, dump, load


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
    said = _said(pending)
    if said is not None:
        return Editor("Edit the answer", said, "Save and go on")
    outputs = json.dumps(dict(pending.question.kept.outputs), ensure_ascii=False, indent=2)
    return Editor("Edit the outputs (JSON)", outputs, "Save and go on", code=True)


def edited(pending: Pending, text: str) -> Any:
    """Return the decision for an edited text: an approval if nothing changed.

    Raise StepError if YAML or JSON is expected and the text is invalid.
    """
    if text.strip() == editor_of(pending).text.strip():
        return "approve"
    if pending.plan is not None and pending.asks == "plan":
        return {"decision": "edit", "text": _as_json(text)}
    if pending.asks == "code" or _said(pending) is not None:
        return {"decision": "edit", "text": text}
    try:
        return {"decision": "edit", "outputs": json.loads(text)}
    except (ValueError, RecursionError) as error:
        raise StepError(f"the text isn't valid JSON: {error}") from error


def _said(pending: Pending) -> str | None:
    """Return the pending text, or None if only outputs are pending."""
    question = pending.question
    response = last_response(question.kept.messages)
    if response is not None:
        return str(response.text)
    if question.capture_key is None or question.capture_key not in question.kept.outputs:
        return None
    value = question.kept.outputs[question.capture_key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _as_json(text: str) -> str:
    try:
        return json.dumps(load(text, source="the plan").value, ensure_ascii=False)
    except (YamlError, TypeError, ValueError) as error:
        raise StepError(str(error)) from error
