"""Dry runs: the meaning of a tree, evaluated with placeholders instead of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint.core.errors import BudgetExceeded, StepError, describe_error
from mergepoint.core.merge import State
from mergepoint.core.paths import ancestors, of_first_iterations
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.models.requests import example_messages, lead_messages, prompt_content
from mergepoint.report.answer_lengths import AnswerLengths
from mergepoint.report.token_estimate import json_tokens, message_tokens
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Call, Content, Step, tool_name
from mergepoint.tree.nodes import Block, Gate, Loop, Node, root_path, walk
from mergepoint.tree.prompts import PromptContext, Reads, ValueCopies
from mergepoint.tree.semantics import Branch, Messages, drive, evaluate

RUN: Final = "planned"
"""The run id of a dry run, with which the ids of its messages begin."""

Course = Literal["expected", "least", "lean", "most"]
"""How a dry run decides: as expected, with the fewest calls, the shortest prompts, or the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Input of a dry run, and the assumptions about the run.

    `iterations` and `decisions` are by path; a path in the first iteration counts for all of them.
    `models` are the names of the steps' models, by path in the tree.
    """

    tree: Node
    messages: tuple[BaseMessage, ...]
    inputs: Mapping[str, Any]
    seed: int
    lengths: AnswerLengths
    models: Mapping[str, str]
    iterations: Mapping[str, int] = field(default_factory=dict)
    decisions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTokens:
    """Estimated tokens of a step: of its first prompt, and of all its `calls` together.

    A step with tools may make several. `known` is False if the prompt can't be made before the run.
    """

    prompt: int
    input: int
    output: int
    calls: int = 1
    known: bool = True


@dataclass
class DryRun:
    """An engine that answers with placeholders, and notes what each call would see."""

    given: Given
    course: Course = "expected"
    approves: bool = False
    records: list[CallRecord] = field(default_factory=list)
    tokens: dict[str, PlannedTokens] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    read: dict[str, set[str]] = field(default_factory=dict)
    error: Exception | None = None
    _sizes: dict[str, int] = field(default_factory=dict)
    _keeping: frozenset[str] = frozenset()

    @classmethod
    def of(cls, given: Given, course: Course = "expected") -> DryRun:
        """Evaluate a tree; if a rejection would fail the run, every gate approves."""
        made = cls(given, course)
        made._evaluate()
        if made.error is not None and course in ("least", "lean"):
            made = cls(given, course, approves=True)
            made._evaluate()
        return made

    def _evaluate(self) -> None:
        tree, base = self.given.tree, State(self.given.messages)
        if self.course == "least":
            self._keeping = frozenset(
                path
                for path, node in walk(tree)
                if isinstance(node, Block | Loop)
                and getattr(node.budget, "on_exhausted", "") == "keep"
            )
        try:
            drive(evaluate(tree, root_path(tree), base, onto=base, engine=self))
        # Placeholders may fail where answers wouldn't; what was reached until then is shown.
        except Exception as error:  # noqa: BLE001
            self.error = error

    async def ask(self, step: Step, path: str, view: Messages) -> Messages:
        """Return the prompt of a step and a placeholder for its answer."""
        self._spend(path)
        lead, prompt, problem = self._request(step, path, view)
        if problem:
            self.problems[path] = problem
        expected = self.given.lengths.answer(path, step)
        record = self._record(path, prompt=prompt, lead=lead, response=expected.text)
        if step.tools:
            said = self.given.lengths.messages(path)[1:] or (AIMessage(expected.text),)
            record = replace(record, kind="call", messages=(HumanMessage(prompt), *said))
        made = record.made()
        self._keep(replace(record, context=len(view.messages)), made)
        size = sum(map(message_tokens, (*lead, made.messages[0]))) + _definitions(step)
        self._count(step, path, size + self._size(view), expected.tokens, known=not problem)
        return made

    async def call(self, call: Call, path: str, view: Messages) -> Messages:
        """Return a placeholder for the result of a function."""
        self._spend(path)
        lengths = self.given.lengths
        text, value = lengths.result(path)
        messages = lengths.messages(path)
        if call.merge != "none" and not messages:
            messages = (AIMessage(text),)
        record = self._record(path, prompt="", response=text)
        record = replace(
            record,
            kind="call",
            value=value,
            model=call.label,
            messages=messages if call.merge != "none" else (),
        )
        made = record.made(call.capture_key)
        self._keep(record, made)
        return made

    async def decide(self, gate: Gate, question: Question) -> Decision:
        """Return the assumed decision."""
        decision = self._decision(gate, question.path)
        record = self._record(question.path, prompt=question.text)
        self.records.append(replace(record, kind="gate", value=decision.to_plain()))
        return decision

    def _decision(self, gate: Gate, path: str) -> Decision:
        given = _at(self.given.decisions, path)
        if given is not None:
            return Decision.of(given)
        if self.course == "expected":
            recorded = self.given.lengths.decision(path)
            return Decision("approve") if recorded is None else Decision.of(recorded)
        stops = gate.on_reject == "stop"
        rejects = self.course == "least" or (self.course == "lean" and not stops)
        return Decision("reject" if rejects and not self.approves else "approve")

    async def holds(self, loop: Loop, path: str, view: Messages, number: int) -> bool:
        """Return whether the assumed number of iterations is reached."""
        return number >= self._iterations(loop, path)

    def _iterations(self, loop: Loop, path: str) -> int:
        given: int | None = _at(self.given.iterations, path)
        if given is None and self.course == "expected":
            given = self.given.lengths.iterations(path, may_skip=loop.may_skip)
        if given is not None:
            return given
        if self.course == "most":
            return loop.max_iterations
        return 0 if loop.may_skip and self.course != "expected" else 1

    async def fork(self, branches: Sequence[Branch]) -> Sequence[Messages]:
        """Evaluate parallel children one after another."""
        return [await branch() for branch in branches]

    def _spend(self, path: str) -> None:
        """Raise BudgetExceeded below a node whose budget may end it early."""
        for at in ancestors(path):
            if of_first_iterations(at) in self._keeping:
                raise BudgetExceeded(
                    at, kind="calls", spent=0, limit=0, problem="may be used up", keep=True
                )

    def _request(
        self, step: Step, path: str, view: Messages
    ) -> tuple[tuple[BaseMessage, ...], Content, str]:
        """Return the messages of a call alone, its prompt, and why one of them is unknown."""
        context = partial(self._context, path, view)
        lead, problem = tuple(example_messages(step)), ""
        try:
            lead = lead_messages(step, lead, context)
        except Exception as error:  # noqa: BLE001  (a placeholder may not fit a template)
            problem = _reason(error)
        try:
            prompt = prompt_content(step, context)
        # A prompt function may expect anything of the answers that it reads.
        except Exception as error:  # noqa: BLE001
            return lead, f"[unknown before the run: {_reason(error)}]", _reason(error)
        if isinstance(prompt, list) and any(_is_media(block) for block in prompt):
            problem = problem or "content other than text isn't counted"
        return lead, prompt, problem

    def _context(self, path: str, view: Messages, reads: Reads | None) -> PromptContext:
        made = PromptContext.over(
            path,
            run_id=RUN,
            seed=self.given.seed,
            messages=view.messages,
            inputs=self.given.inputs,
            outputs=view.outputs,
            reads=reads,
        )
        noted = self.read.setdefault(path, set())
        return replace(made, outputs=_NotedCopies(view.outputs, noted))

    def _record(self, path: str, **fields: Any) -> CallRecord:
        model = self.given.models.get(of_first_iterations(path), "")
        return CallRecord(key=CallKey(RUN, "", path), model=model, **fields)

    def _keep(self, record: CallRecord, made: Messages) -> None:
        self.records.append(record)
        self._sizes.update({str(one.id): message_tokens(one) for one in made.messages})

    def _size(self, view: Messages) -> int:
        known = self._sizes
        return sum(
            known[str(one.id)] if str(one.id) in known else message_tokens(one)
            for one in view.messages
        )

    def _count(self, step: Step, path: str, size: int, answer: int, *, known: bool) -> None:
        """Note the tokens of a step; each round of tools sends everything before it again."""
        calls = self._rounds(step, path) + 1
        factor = self.given.lengths.scale.of(self.given.models[of_first_iterations(path)])
        # A round adds the model's request and the result, both about as long as an answer.
        again = answer * 2 * (calls * (calls - 1) // 2)
        prompt = round(size * factor)
        self.tokens[path] = PlannedTokens(
            prompt=prompt,
            input=prompt * calls + again,
            output=answer * calls,
            calls=calls,
            known=known,
        )

    def _rounds(self, step: Step, path: str) -> int:
        if not step.tools or self.course in ("least", "lean"):
            return 0
        if self.course == "most":
            return step.max_tool_rounds
        return max(0, self.given.lengths.inner_calls(path) - 1)


class _NotedCopies(ValueCopies):
    """The outputs of a context, which note the keys that are read."""

    __slots__ = ("_noted",)

    def __init__(self, values: Mapping[str, Any], noted: set[str]) -> None:
        super().__init__(values, "output")
        self._noted = noted

    def __getitem__(self, key: str) -> Any:
        found = super().__getitem__(key)
        self._noted.add(key)
        return found


def _at(known: Mapping[str, Any], path: str) -> Any:
    """Return the value for a path, or that for the same path in first iterations, or None."""
    return known.get(path, known.get(of_first_iterations(path)))


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    return str(error) if isinstance(error, StepError) else f"{kind}: {describe_error(error)}"


def _is_media(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") != "text"


def _definitions(step: Step) -> int:
    """Return the tokens of a step's schema or tools, which a request has beside its messages."""
    if step.schema is not None and step.method != "prompt":
        return json_tokens(step.schema.model_json_schema())
    return sum(
        json_tokens([tool_name(one), getattr(one, "description", None) or one.__doc__, _args(one)])
        for one in step.tools
    )


def _args(tool: Any) -> Any:
    schema = getattr(tool, "tool_call_schema", None)
    if schema is None:
        return dict(getattr(tool, "__annotations__", {}))
    return schema if isinstance(schema, dict) else schema.model_json_schema()
