"""Gates: the Question that a gate asks, and the Decision that answers it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import StepError
from mergepoint.core.merge import State, last_response
from mergepoint.core.paths import nearest
from mergepoint.core.text import clean

Verdict = Literal["approve", "edit", "reject"]
VERDICTS: tuple[str, ...] = get_args(Verdict)
_FIELDS = ("decision", "feedback", "text", "outputs")


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about the output that waits at a gate: approve, edit or reject.

    Args:
        decision: The verdict: "approve", "edit" or "reject".
        feedback: Text for the nodes that read the gate's capture.
        text: For an edit: replaces the last response, and the wrapped node's capture of it.
        outputs: For an edit: new values for some of the outputs that wait for approval.
    """

    decision: Verdict = "approve"
    _: KW_ONLY
    feedback: str = ""
    text: str | None = None
    outputs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, given: Any) -> Decision:
        """Return a decision from a Decision, a verdict, a bool, or a mapping of its fields.

        Raises StepError for an invalid answer, which says why.
        """
        # Checked like the other forms: a Decision doesn't check its fields itself.
        if isinstance(given, Decision):
            given = given.to_plain()
        if isinstance(given, bool):
            given = {"decision": "approve" if given else "reject"}
        if isinstance(given, str):
            given = {"decision": given}
        if not isinstance(given, Mapping):
            raise StepError(f"{_WANTED}, not {given!r}")
        # Feedback enters later prompts, and no request can be sent with half a surrogate pair.
        given = clean(dict(given))
        if problem := _problem(given):
            raise StepError(problem)
        return cls(
            given["decision"],
            feedback=given.get("feedback") or "",
            text=given.get("text"),
            outputs=MappingProxyType(dict(given.get("outputs") or {})),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the decision as JSON data."""
        plain: dict[str, Any] = {"decision": self.decision, "feedback": self.feedback}
        if self.text is not None:
            plain["text"] = self.text
        if self.outputs:
            plain["outputs"] = dict(self.outputs)
        return plain


_WANTED = (
    "an answer at a gate is 'approve' or 'reject', or a mapping such as {'decision': 'edit', "
    "'text': ...} or {'decision': 'reject', 'feedback': ...}"
)


def _problem(given: Mapping[str, Any]) -> str | None:
    decision = given.get("decision")
    if decision not in VERDICTS:
        return f"{_WANTED}; decision={decision!r}{nearest(str(decision), VERDICTS)} is none of them"
    unknown = [key for key in given if key not in _FIELDS]
    if unknown:
        return f"{_WANTED}; it has no {unknown[0]!r}{nearest(str(unknown[0]), _FIELDS)}"
    feedback, text, outputs = (given.get(name) for name in ("feedback", "text", "outputs"))
    if feedback is not None and not isinstance(feedback, str):
        return f"feedback is text, not {feedback!r}"
    if text is not None and (not isinstance(text, str) or not text.strip()):
        return f"text is what the last response is to be, not {text!r}"
    if outputs is not None and not isinstance(outputs, Mapping):
        return f"outputs is a mapping of keys to new values, not {outputs!r}"
    edits = text is not None or bool(outputs)
    if edits != (decision == "edit"):
        return "an edit sets text or outputs" if not edits else f"{decision!r} takes no edits"
    return None


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a gate: exactly what would be merged, and from which node.

    Args:
        path: The path of the gate.
        text: The gate's own question.
        kept: The part of the wrapped node's result that its merge mode passes on.
        key: The digest of `kept`. A decision about other content is never taken for this one.
        run: The id of the run.
        capture_key: The wrapped node's capture key; an edited text replaces its value too.
        structured: Whether that capture is a value and not text; an edited text is then its JSON.
    """

    path: str
    text: str
    kept: State[BaseMessage]
    key: str = ""
    run: str = ""
    capture_key: str | None = None  # of the wrapped node: its value follows an edited text
    structured: bool = False

    def to_plain(self) -> dict[str, Any]:
        """Return the question as JSON data, as `interrupt` passes it on."""
        return {
            "path": self.path,
            "question": self.text,
            "messages": [
                {"role": message.type, "text": str(message.text)} for message in self.kept.messages
            ],
            "outputs": dict(self.kept.outputs),
            "key": self.key,
        }

    def to_interrupt(self) -> dict[str, Any]:
        """Return the question as JSON data for `interrupt`.

        `action_request`, `config` and `description` are those of LangGraph's HumanInterrupt, for
        user interfaces that do not know mergepoint.
        """
        editable = bool(self.edited_args)
        return {
            "action_request": {"action": self.path, "args": self.edited_args},
            "config": {
                "allow_accept": True,
                "allow_edit": editable,
                "allow_respond": True,
                "allow_ignore": True,
            },
            "description": self.text,
            **self.to_plain(),
        }

    @property
    def edited_args(self) -> dict[str, Any]:
        """Return the editable parts: the `text` of the last response, and the `outputs`."""
        response = last_response(self.kept.messages)
        text = {} if response is None else {"text": str(response.text)}
        outputs = dict(self.kept.outputs)
        return {**text, **({"outputs": outputs} if outputs else {})}

    def reply(self, given: Any) -> Any:
        """Return an answer in a form that `Decision.of` takes, from the forms of LangGraph's UIs.

        These are HumanResponse (`{"type": "accept" | "edit" | "response" | "ignore", "args": ...}`,
        by itself or in a list) and the decisions of LangChain's human-in-the-loop middleware. Any
        other value is returned unchanged.

        Raises StepError for an edit whose args are not a mapping.
        """
        if isinstance(given, Mapping) and isinstance(given.get("decisions"), list):
            given = given["decisions"]
        if isinstance(given, list) and len(given) == 1:
            given = given[0]
        if not isinstance(given, Mapping) or given.get("type") not in _REPLIES:
            return given
        kind, args = given["type"], given.get("args", given.get("edited_action"))
        if kind == "edit":
            return self._edit(args)
        feedback = args if isinstance(args, str) else given.get("message") or ""
        return {"decision": _REPLIES[kind], **({"feedback": feedback} if feedback else {})}

    def _edit(self, action: Any) -> Any:
        args = action.get("args") if isinstance(action, Mapping) else None
        if not isinstance(args, Mapping):
            raise StepError("an edit sets args: {'action': ..., 'args': {'text': ...}}")
        known = self.edited_args
        # User interfaces send back all outputs; only those that differ are an edit.
        outputs = {
            key: value
            for key, value in (args.get("outputs") or {}).items()
            if key not in self.kept.outputs or value != self.kept.outputs[key]
        }
        changed = (
            {"text": args["text"]} if args.get("text") not in (None, known.get("text")) else {}
        )
        edits = {**changed, **({"outputs": outputs} if outputs else {})}
        return {"decision": "edit", **edits} if edits else "approve"

    def settled(self, decision: Decision) -> State[BaseMessage]:
        """Return the result that the gate merges after a decision.

        Raises StepError for an edit that does not match the waiting output.
        """
        if decision.decision == "reject":
            return State()
        if decision.decision == "approve":
            return self.kept
        messages, outputs = list(self.kept.messages), dict(self.kept.outputs)
        if decision.text is not None:
            self._replace(messages, outputs, decision.text)
        for key, value in decision.outputs.items():
            if key not in self.kept.outputs:
                known = ", ".join(self.kept.outputs) or "none"
                raise StepError(
                    f"an edit cannot add the output {key!r}{nearest(key, self.kept.outputs)}; "
                    f"the outputs are: {known}"
                )
            outputs[key] = _plain(key, value)
        return State.of(messages, outputs)

    def _replace(self, messages: list[BaseMessage], outputs: dict[str, Any], text: str) -> None:
        response = last_response(messages)
        captured = self.capture_key in outputs
        if response is None and not captured:
            raise StepError("there is no response to replace; edit outputs")
        value: Any = text
        if captured and self.structured:
            try:
                value = json.loads(text)
            except ValueError as error:
                raise StepError(f"the response is structured; give JSON ({error})") from error
        if captured and self.capture_key is not None:
            outputs[self.capture_key] = value
        if response is not None:
            # Ids differ, so `index` finds this message and not an equal text before it.
            at = messages.index(response)
            # A copy, because the question still shows the message before the edit.
            messages[at] = response.model_copy(update={"content": text}, deep=True)


# LangGraph's form has no rejection: a response is feedback on one, and `ignore` drops the output.
_REPLIES: Mapping[str, Verdict] = {
    "accept": "approve",
    "approve": "approve",
    "edit": "edit",
    "response": "reject",
    "respond": "reject",
    "reject": "reject",
    "ignore": "reject",
}

RESPONSE_SCHEMA: Mapping[str, Any] = {
    "title": "Decision",
    "type": "object",
    "properties": {
        "type": {"enum": ["accept", "edit", "response", "ignore"]},
        "args": {
            "description": "For an edit {'action': ..., 'args': {...}}, for a response the "
            "feedback with which it is rejected.",
            "anyOf": [{"type": "null"}, {"type": "string"}, {"type": "object"}],
        },
    },
    "required": ["type"],
}
"""The JSON schema of the answer to an interrupt, for user interfaces; shorter forms work too."""

Answerer = Callable[[Question], Any | Awaitable[Any]]


def _plain(key: str, value: Any) -> Any:
    try:
        # Through JSON, so that this run continues with the value that a resumed one reads.
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StepError(f"the new output {key!r} is nothing that JSON holds: {error}") from error
