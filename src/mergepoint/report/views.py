"""Views of calls: what a call saw, and the outcome of its answer."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from mergepoint.core.errors import MergeError
from mergepoint.core.merge import MergeMode, State, keep, last_response
from mergepoint.core.paths import ancestors, join
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.replay import Replay
from mergepoint.report.drawing import Shape, unrolled
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Gate
from mergepoint.tree.semantics import Messages

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
class AnswerOutcome:
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
    still accepted. `cost` is in USD, or None if unknown. `started` is in seconds since the epoch.

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
    seen: tuple[SeenMessage, ...] = ()
    reads: tuple[Read, ...] = ()
    answer: str | None = None
    error: Mapping[str, Any] | None = None
    unusable: str | None = None
    earlier_errors: tuple[Mapping[str, Any], ...] = ()
    fate: AnswerOutcome | None = None
    usage: Mapping[str, Any] | None = None
    cost: float | None = None
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
    # Numbered over all rounds, unknown tools included, as in the paths of executions.
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
        # `said` must not name the calls, which are listed with their results.
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


# Outcomes of answers: the merges that they passed, and where they were dropped.


@dataclass(frozen=True)
class NodeResults:
    """The messages of every node of a run: before and after its merge.

    The tree's outline lists each iteration of a loop separately. A node that the run didn't finish
    has neither `made` nor `kept`. Nodes in `went_on` ended without some of their children because
    of a budget. `origins` maps message ids to the paths at which they were produced.
    """

    shapes: Mapping[str, Shape]
    went_on: frozenset[str] = frozenset()
    made: dict[str, Messages] = field(default_factory=dict)
    kept: dict[str, Messages] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    failed: Collection[str] = ()

    @classmethod
    def of(
        cls,
        tree: Shape,
        records: Iterable[CallRecord],
        let_on: Mapping[str, Messages] | None = None,
        *,
        failed_at: str = "",
    ) -> NodeResults:
        """Return the results of a tree from its outline and records, one at each path.

        `let_on` contains the messages that each decided gate passed on, by path. `failed_at` is the
        path at which the run failed: that node and its ancestors didn't finish.
        """
        found = {record.path: record for record in records}
        # Each iteration of a loop is a node of its own, with its own results.
        tree = unrolled(tree, found)
        left_out = [record.error or {} for record in found.values() if record.kind == "left_out"]
        work = cls(
            dict(walk_outline(tree)),
            frozenset(str(error["path"]) for error in left_out),
            failed={failed_at, *ancestors(failed_at)},
        )
        work._leave(tree, found, let_on or {})
        return work

    def way_up(self, path: str) -> list[str]:
        """Return a path and its ancestors, up to the root of the tree that ran."""
        return [at for at in (path, *ancestors(path)) if at in self.shapes]

    def exit(self, path: str) -> MergePoint:
        """Return the merge point of a node."""
        return MergePoint(path, self.shapes[path]["merge"])

    def writer(self, key: str, reader: str) -> str | None:
        """Return the node that last captured a key before a reader, or None.

        A node captures at its exit, so ancestors of the reader don't count.
        """
        before = set(ancestors(reader))
        writers = self._writers.get(key, ())
        # The outline is in tree order, so later nodes can't have written before the reader.
        end = bisect_left(writers, self._position[reader], key=self._position.__getitem__)
        return next((path for path in reversed(writers[:end]) if path not in before), None)

    @cached_property
    def _position(self) -> Mapping[str, int]:
        return {path: number for number, path in enumerate(self.shapes)}

    @cached_property
    def _writers(self) -> Mapping[str, Sequence[str]]:
        """Return the nodes that captured each key, in tree order."""
        found: dict[str, list[str]] = {}
        for path, shape in self.shapes.items():
            if path in self.made and (key := shape.get("capture_key")) is not None:
                found.setdefault(key, []).append(path)
        return found

    def response(self, path: str) -> BaseMessage | None:
        """Return the last response of a node, or None if the run didn't finish it."""
        made = self.made.get(path)
        return None if made is None else last_response(made.messages)

    def answerer(self, path: str) -> str | None:
        """Return the path of the step or call that produced a node's last response."""
        response = self.response(path)
        return None if response is None else self.origins[str(response.id)]

    def kept_by(self, path: str, message_id: str) -> bool | None:
        """Return whether a node's merge kept a message, or None if the run didn't get there."""
        if path not in self.kept:
            return None
        if path not in self._kept_ids:
            self._kept_ids[path] = {str(found.id) for found in self.kept[path].messages}
        return message_id in self._kept_ids[path]

    @cached_property
    def _kept_ids(self) -> dict[str, set[str]]:
        return {}

    def _leave(
        self, shape: Shape, records: Mapping[str, CallRecord], let_on: Mapping[str, Messages]
    ) -> Messages | None:
        """Return the messages that a node's merge kept, or None if the run didn't finish it."""
        path = shape["path"]
        made = self._made(shape, records, let_on)
        if made is None or path in self.failed:
            return None
        # The run failed at this capture: there was no response.
        if (
            "capture_key" in shape and shape["kind"] not in (Call.kind, Gate.kind)
        ) and last_response(made.messages) is None:
            return None
        # A rejecting gate produces nothing, which its own merge mode could treat as an error.
        refused = shape["kind"] == Gate.kind and not made.messages
        try:
            kept = keep("none" if refused else shape["merge"], made)
        # The run failed at this merge, so nothing was kept.
        except MergeError:
            return None
        self.made[path] = made
        self.kept[path] = kept
        return kept

    def _made(
        self, shape: Shape, records: Mapping[str, CallRecord], let_on: Mapping[str, Messages]
    ) -> Messages | None:
        path = shape["path"]
        if shape["kind"] in (Step.kind, Call.kind):
            if path not in records or not records[path].answered:
                return None
            made = records[path].made()
            self.origins.update({str(message.id): path for message in made.messages})
            return made
        # Children first: their results are needed even if a gate replaces them.
        parts = [self._leave(child, records, let_on) for child in shape["nodes"]]
        if shape["kind"] == Gate.kind:
            return let_on.get(path)
        # Only a budget lets a block end without some of its children.
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts) and path not in self.went_on:
            return None
        return State(tuple(message for part in whole for message in part.messages))


def walk_outline(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield path and shape of each node of an outline, parents first."""
    yield shape["path"], shape
    for child in shape.get("nodes", ()):
        yield from walk_outline(child)


@dataclass(frozen=True)
class AnswerOutcomes:
    """The outcomes of a run's answers. `paths` are the calls that were made."""

    work: NodeResults
    replay: Replay
    paths: Sequence[str]
    seen_by: Mapping[str, Sequence[str]]
    # The decisions, by the path of each gate.
    verdicts: Mapping[str, str]

    def of(self, record: CallRecord) -> AnswerOutcome:
        """Return the outcome of a call's answer."""
        response = last_response(record.made().messages)
        if response is None:
            # The result isn't a message: only its key keeps it.
            key = self.work.shapes[record.path].get("capture_key")
            captured = [] if key is None else [self._capture(key, record.path)]
            return AnswerOutcome(passed=(), end="value", captured=tuple(captured))
        answer = str(response.id)
        passed: list[MergePoint] = []
        end: End = "kept"
        stop: MergePoint | None = None
        for at in self.work.way_up(record.path):
            kept = self.work.kept_by(at, answer)
            # The first merge that doesn't keep the answer decides; the ones above never see it.
            if not kept:
                stop = self.work.exit(at)
                end = self._end(stop, reached=kept is not None)
                break
            passed.append(self.work.exit(at))
        return AnswerOutcome(
            passed=tuple(passed),
            end=end,
            at=stop,
            by=self.work.answerer(stop.path) if stop and end == "superseded" else None,
            captured=() if end == "rejected" else tuple(self._captured(record.path, answer)),
            seen_by=tuple(self.seen_by.get(answer, ())),
            edited=tuple(at.path for at in passed if self.verdicts.get(at.path) == "edit"),
        )

    def _capture(self, key: str, path: str) -> Captured:
        return Captured(key=key, path=path, read_by=tuple(self._readers.get((key, path), ())))

    @cached_property
    def _readers(self) -> Mapping[tuple[str, str | None], Sequence[str]]:
        """Return the calls that read what a node captured under a key."""
        found: dict[tuple[str, str | None], list[str]] = {}
        for reader in self.paths:
            for key in self.work.shapes[reader].get("reads", ()):
                if key in self.replay.views[reader].outputs:
                    found.setdefault((key, self.work.writer(key, reader)), []).append(reader)
        return found

    def _captured(self, path: str, answer: str) -> Iterator[Captured]:
        for at in self.work.way_up(path):
            key = self.work.shapes[at].get("capture_key")
            response = self.work.response(at)
            # A gate captures its decision, not an answer.
            if key is None or response is None or self.work.shapes[at]["kind"] == Gate.kind:
                continue
            if response.id == answer:
                yield self._capture(key, at)

    def _end(self, stop: MergePoint, *, reached: bool) -> End:
        if not reached:
            around = self.work.went_on.intersection(ancestors(stop.path))
            return "left_out" if around else "unfinished"
        if self.verdicts.get(stop.path) == "reject":
            return "rejected"
        return "dropped" if stop.mode == "none" else "superseded"


def calls_by_seen_message(
    replay: Replay, paths: Sequence[str], *, given: int
) -> Mapping[str, Sequence[str]]:
    """Return the calls that saw each message that the run produced, by message id.

    The first `given` messages of each view came from outside and aren't included.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        for message in replay.views[path].messages[given:]:
            found.setdefault(str(message.id), []).append(path)
    return found
