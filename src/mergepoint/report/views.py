"""Data classes for calls: what a call saw, and the outcome of its answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from mergepoint.core.paths import join
from mergepoint.core.state import MergeMode
from mergepoint.journal.records import CallRecord

Origin = Literal["given", "call", "system", "example", "prompt"]
Source = Literal["input", "capture", "default"]
End = Literal["kept", "dropped", "superseded", "rejected", "unfinished", "left_out", "value"]
Kind = Literal["step", "call", "tool", "gate"]


@dataclass(frozen=True, slots=True)
class MergePoint:
    """A merge point: the path of a node and the merge mode at its exit."""

    path: str
    mode: MergeMode


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMessage:
    """A message that a call saw.

    `origin` is "given" (to the run), "call" (produced by the step or call at `path` and kept by the
    merges in `through`, innermost first), "system" and "example" (of this call only), or "prompt".
    """

    role: str
    text: str
    origin: Origin
    path: str | None = None
    through: tuple[MergePoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A key that a prompt reads: an input, a capture, or neither, so that its default is used.

    For a capture, `path` is the node that captured it, and `made_by` the step whose answer it is,
    or None for a gate's decision.
    """

    key: str
    source: Source
    path: str | None = None
    made_by: str | None = None
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured key, the node that captured it, and the calls that read it."""

    key: str
    path: str
    read_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The outcome of an answer.

    It `passed` these merges, innermost first, and ended: "kept" in the conversation, "dropped" `at`
    a merge mode none, "superseded" at a last_response by the answer of the call `by`, "rejected" at
    a gate, "unfinished" if the run ended before, or "left_out" with a node that exceeded a budget.
    A Call's result that isn't a message is a "value". The gates in `edited` replaced it by another
    text. `seen_by` are the calls that saw it as a message.
    """

    passed: tuple[MergePoint, ...]
    end: End
    at: MergePoint | None = None
    by: str | None = None
    captured: tuple[Captured, ...] = ()
    seen_by: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerModelCall:
    """A model call inside a function: its last request, and its answer."""

    model: str
    prompt: str
    answer: str
    error: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallView:
    """A tool call of a model: the tool, its arguments, and its result.

    `path` is that of its execution, or None if it wasn't executed: the tool is unknown, or the run
    ended before. `result` is the text that the model read, or None if there is none yet.
    """

    name: str
    args: Any
    path: str | None
    result: str | None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRound:
    """A model's answer with tool calls: its text, and the calls."""

    said: str
    calls: tuple[ToolCallView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOutcome:
    """The content that a gate held for approval, the decision, and what the gate passed on.

    `decision` is empty while no one has decided. `kept` and `kept_outputs` differ from `held` after
    an edit, and are empty after a rejection. The gate's own capture isn't included.
    """

    question: str
    held: tuple[SeenMessage, ...]
    held_outputs: Mapping[str, Any]
    decision: str
    feedback: str
    kept: tuple[SeenMessage, ...]
    kept_outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWrites:
    """The values of a Thing (`content` or props) that a stage `wrote`, and by which calls."""

    stage: str
    thing: str
    wrote: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InRecipe:
    """The purpose of a recipe's call.

    The call worked on a `thing` at the node `around` it, which the stages `before` had changed.
    With its answer, the stage wrote the values in `made`, or None if no Thing that left the stage
    has them. The stages `after` continued with that, and `results` are the ids of the resulting
    Things. If the journal has no end of the run, only the place is `known`.
    """

    around: str
    thing: str
    known: bool
    before: tuple[StageWrites, ...] = ()
    made: StageWrites | None = None
    after: tuple[StageWrites, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """A complete view of one call of a model or function, or of one decision at a gate.

    `seen` is in conversation order: messages of this call only, the state, the prompt. With the
    view "alternate", the provider received the same with consecutive messages of one role joined. A
    failed call has an `error`, but no `answer` and no `fate`. A call that was `left_out` wasn't
    made, and its `error` names the exceeded budget. `unusable` is the whole refused answer, and the
    error's `position` is where its problem is. `earlier_errors` are earlier failed attempts, and
    `answer` belongs to those. `truncated` is the finish reason of an answer that was cut off and
    still accepted. `started` is in seconds since the epoch.

    A recipe's call has no outcome in a conversation: `in_recipe` describes its purpose.

    A step with tools has `rounds`, in which its model called them. A tool's execution (kind "tool")
    has its arguments in `params`, and the text that the model read as `answer`, or as `error` if it
    failed.

    A Call has its arguments in `params`, its result in `value`, the text of its message (if it
    produced one) in `answer`, and the models it called in `inside`. A gate has the decision in
    `decided`.
    """

    run_id: str
    path: str
    model: str
    params: Mapping[str, Any]
    view: str
    seen: tuple[SeenMessage, ...]
    reads: tuple[Read, ...]
    answer: str | None
    error: Mapping[str, Any] | None
    unusable: str | None
    earlier_errors: tuple[Mapping[str, Any], ...]
    fate: Fate | None
    usage: Mapping[str, Any] | None
    started: float
    seconds: float
    attempt: int
    source: str
    kind: Kind = "step"
    value: Any = None
    inside: tuple[InnerModelCall, ...] = ()
    rounds: tuple[ToolRound, ...] = ()
    decided: GateOutcome | None = None
    left_out: bool = False
    truncated: str = ""
    in_recipe: InRecipe | None = None


_ROLES = {"human": "user", "ai": "assistant"}


def role_of(message: BaseMessage) -> str:
    """Return a message's role: system, user, assistant, or tool."""
    return _ROLES.get(message.type, message.type)


def said(message: BaseMessage) -> str:
    """Return a message's text; other content is named, as in `[image]` or `[calls search]`."""
    content = message.content
    blocks: Sequence[Any] = [content] if isinstance(content, str) else content
    text = "".join(map(_block_text, blocks))
    if isinstance(message, AIMessage):
        text += "".join(f"[calls {call['name']}]" for call in message.tool_calls)
    return text


def in_full(message: AIMessage) -> str:
    """Return a model's whole answer: its text, and the arguments of its tool calls."""
    calls = [
        f"{call['name']}({json.dumps(call['args'], ensure_ascii=False)})"
        for call in message.tool_calls
    ]
    calls += [f"{call['name']}({call['args']})" for call in message.invalid_tool_calls]
    text = said(message.model_copy(update={"tool_calls": []}))
    return "\n".join(filter(None, [text, *calls]))


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type", "block")
    return str(block.get("text", "")) if kind == "text" else f"[{kind}]"


def tool_rounds(
    step: CallRecord, inner: Iterable[CallRecord], executed: Mapping[str, CallRecord]
) -> Iterator[ToolRound]:
    """Yield the rounds in which a step called tools, in order.

    Args:
        step: The record of the step.
        inner: The answered calls of its model.
        executed: The executions of tools, by path.
    """
    told = {
        str(message.tool_call_id): message
        for message in step.messages
        if isinstance(message, ToolMessage)
    }
    numbers = count(1)
    for message in _answers(step, inner):
        calls = [*message.tool_calls, *message.invalid_tool_calls]
        if not calls:
            continue
        found = []
        for call in calls:
            path = join(step.path, f"tool_{next(numbers):02}")
            execution = executed.get(path)
            result = told.get(str(call["id"]))
            text = None if result is None else str(result.text)
            failed = result is not None and result.status == "error"
            if execution is not None:
                text, failed = result_of(execution)
            at = None if execution is None else path
            found.append(
                ToolCallView(
                    name=str(call["name"]), args=call["args"], path=at, result=text, failed=failed
                )
            )
        plain = message.model_copy(update={"tool_calls": [], "invalid_tool_calls": []})
        yield ToolRound(said=said(plain), calls=tuple(found))


def result_of(execution: CallRecord) -> tuple[str | None, bool]:
    """Return the text that a model read from a tool's execution, and whether it failed."""
    if execution.error is not None:
        return f"{execution.error['type']}: {execution.error['message']}", True
    value = execution.value or {}
    return said(HumanMessage(value.get("content") or "")), value.get("status") == "error"


def _answers(step: CallRecord, inner: Iterable[CallRecord]) -> Iterator[AIMessage]:
    """Yield the model's answers; for an unfinished step, the recorded ones."""
    if step.messages:
        yield from (one for one in step.messages if isinstance(one, AIMessage))
        return
    for record in sorted(inner, key=lambda one: one.started):
        if record.message is not None:
            yield record.message
