"""Decision: what a person says at a gate; and Question, what they are shown."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.core.errors import StepError
from mergepoint.core.merge import last_response
from mergepoint.core.path import nearest
from mergepoint.core.state import State

Verdict = Literal["approve", "edit", "reject"]
VERDICTS: tuple[str, ...] = get_args(Verdict)
_FIELDS = ("decision", "feedback", "text", "outputs")


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen with what a gate holds back: approve, edit or reject.

    An edit gives `text`, which replaces the last response (and what its node captured of it), or
    `outputs`, which replace some of those held back, or both. `feedback` is for those who read
    the gate's capture.
    """

    decision: Verdict = "approve"
    _: KW_ONLY
    feedback: str = ""
    text: str | None = None
    outputs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, given: Any) -> Decision:
        """Give a decision from one, from its word, from a bool, or from a mapping of its fields.

        Raises StepError that says what does not fit.
        """
        if isinstance(given, Decision):
            given = given.to_plain()
        if isinstance(given, bool):
            given = {"decision": "approve" if given else "reject"}
        if isinstance(given, str):
            given = {"decision": given}
        if not isinstance(given, Mapping):
            raise StepError(f"{_WANTED}, not {given!r}")
        if problem := _problem(given):
            raise StepError(problem)
        return cls(
            given["decision"],
            feedback=given.get("feedback") or "",
            text=given.get("text"),
            outputs=MappingProxyType(dict(given.get("outputs") or {})),
        )

    def to_plain(self) -> dict[str, Any]:
        """Give the decision as JSON data."""
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
        return "an edit gives text or outputs" if not edits else f"{decision!r} takes no edits"
    return None


@dataclass(frozen=True, slots=True)
class Question:
    """What a gate asks: exactly what would be kept, and of which node.

    `kept` is what the wrapped node lets out; `key` is the digest of it, so that a decision about
    something else is never taken for this one. `text` is the gate's own question.
    """

    path: str
    text: str
    kept: State[BaseMessage]
    key: str = ""
    run: str = ""
    capture_key: str | None = None  # of the wrapped node: its value follows an edited text
    structured: bool = False

    def to_plain(self) -> dict[str, Any]:
        """Give the question as JSON data, as `interrupt` passes it on."""
        return {
            "path": self.path,
            "question": self.text,
            "messages": [
                {"role": message.type, "text": str(message.text)} for message in self.kept.messages
            ],
            "outputs": dict(self.kept.outputs),
            "key": self.key,
        }

    def settled(self, decision: Decision) -> State[BaseMessage]:
        """Give what is kept after a decision.

        Raises StepError for an edit that does not fit what is held back.
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
                    f"an edit cannot add the output {key!r}{nearest(key, self.kept.outputs)}; held "
                    f"back are: {known}"
                )
            outputs[key] = _plain(key, value)
        return State.of(messages, outputs)

    def _replace(self, messages: list[BaseMessage], outputs: dict[str, Any], text: str) -> None:
        response = last_response(messages)
        captured = self.capture_key in outputs
        if response is None and not captured:
            raise StepError("there is no response to put another text in place of; edit outputs")
        value: Any = text
        if captured and self.structured:
            try:
                value = json.loads(text)
            except ValueError as error:
                raise StepError(f"the response is structured; give JSON ({error})") from error
        if captured and self.capture_key is not None:
            outputs[self.capture_key] = value
        if response is not None:
            at = messages.index(response)
            messages[at] = AIMessage(content=text, id=response.id)


Answerer = Callable[[Question], Any | Awaitable[Any]]


def _plain(key: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StepError(f"the new output {key!r} is nothing that JSON holds: {error}") from error
