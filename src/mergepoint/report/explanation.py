"""Explanations: what a run would do, as data, JSON and totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from mergepoint.journal.transcript import Transcript
from mergepoint.report.views import MergePoint, Origin, Read
from mergepoint.tree.nodes import Node

Range = tuple[int, int | None]
"""Least and most; the same twice if exact, None if there is no limit."""
CostRange = tuple[float, float | None]
"""Least and most in USD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMessage:
    """A message that a call will see.

    `origin`, `path` and `through` are those of `SeenMessage`. `text` is what is known of it: for an
    answer a placeholder. `tokens` is an estimate.
    """

    role: str
    text: str
    origin: Origin
    path: str | None
    through: tuple[MergePoint, ...]
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """Return JSON data, with the text of messages that only this call has."""
        made: dict[str, Any] = {"role": self.role, "origin": self.origin, "path": self.path}
        made["through"] = [{"path": one.path, "mode": one.mode} for one in self.through]
        made["tokens"] = self.tokens
        if self.origin not in ("given", "call"):
            made["text"] = self.text
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step, or a Call, before it runs.

    Attributes:
        path: Its path; in a loop that of the first iteration, or of each if their number is known.
        kind: "step", "call", or "stage" for a stage of a recipe.
        model: The name of its model, or of the Call's target.
        sees: The messages that it will see, in order.
        tokens: Estimated tokens of its prompt with everything that it sees; None if it can't be
            known before the run.
        grows: Tokens more than in the step before it; None for the first and if unknown.
        input_tokens: Least and most tokens of its prompt, over iterations and branches.
        output_tokens: Least and most tokens of its answer.
        calls: Least and most model calls in the whole run.
        cost: Cost of one such call in USD, None if it isn't known.
        reads: The keys that it reads, and where they come from.
        capture_key: The key under which its answer is captured, or None.
        window: The context window of its model in tokens, or None.
        problem: Why its prompt isn't known, or "".
    """

    path: str
    kind: Literal["step", "call", "stage"]
    model: str
    sees: tuple[PlannedMessage, ...] = ()
    tokens: int | None
    grows: int | None = None
    input_tokens: Range
    output_tokens: Range
    calls: Range
    cost: float | None = None
    reads: tuple[Read, ...] = ()
    capture_key: str | None = None
    window: int | None = None
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "path": self.path,
            "kind": self.kind,
            "model": self.model,
            "sees": [one.to_json() for one in self.sees],
            "tokens": self.tokens,
            "grows": self.grows,
            "input_tokens": list(self.input_tokens),
            "output_tokens": list(self.output_tokens),
            "calls": list(self.calls),
            "cost": self.cost,
            "reads": [
                {"key": one.key, "source": one.source, "path": one.path} for one in self.reads
            ],
            "captures": self.capture_key,
            "window": self.window,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCapture:
    """A capture: the node that writes it, and the nodes that read it."""

    key: str
    path: str
    read_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """A risk or unknown of a run; `path` is "" if it is about the whole run."""

    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation:
    """Prediction of a workflow's run: what each step sees, calls, tokens and cost.

    Attributes:
        workflow: The name of the tree or recipe.
        kind: "tree" or "recipe".
        steps: Its steps and Calls in order, or the stages of a recipe.
        calls: Least and most model calls, without retries.
        expected_calls: Model calls if everything goes as assumed.
        input_tokens: Least and most tokens of all prompts.
        output_tokens: Least and most tokens of all answers.
        cost: Least and most cost in USD; None if the price of a model isn't known.
        basis: What the lengths of answers are based on.
        captures: What is captured, and by whom it is read.
        warnings: What may go wrong, or isn't known.
        tree: The tree, None for a recipe.
        transcript: The dry run of a tree with placeholders for answers, as the transcript of a run.
    """

    workflow: str
    kind: Literal["tree", "recipe"]
    steps: tuple[PlannedStep, ...]
    calls: Range
    expected_calls: int
    input_tokens: Range
    output_tokens: Range
    cost: CostRange | None
    basis: str
    captures: tuple[PlannedCapture, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    tree: Node | None = None
    transcript: Transcript | None = None

    @property
    def unread(self) -> tuple[PlannedCapture, ...]:
        """Return the captures that nothing in the workflow reads; they are results of the run."""
        return tuple(one for one in self.captures if not one.read_by)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "workflow": self.workflow,
            "kind": self.kind,
            "calls": list(self.calls),
            "expected_calls": self.expected_calls,
            "input_tokens": list(self.input_tokens),
            "output_tokens": list(self.output_tokens),
            "cost": None if self.cost is None else list(self.cost),
            "basis": self.basis,
            "steps": [one.to_json() for one in self.steps],
            "captures": [
                {"key": one.key, "path": one.path, "read_by": list(one.read_by)}
                for one in self.captures
            ],
            "unread": [one.key for one in self.unread],
            "warnings": [{"path": one.path, "message": one.message} for one in self.warnings],
        }

    def __repr__(self) -> str:
        return (
            f"Explanation({self.workflow!r}, steps={len(self.steps)}, calls={self.calls}, "
            f"cost={self.cost})"
        )


@runtime_checkable
class Explained(Protocol):
    """A workflow that isn't a tree and explains itself, such as a recipe."""

    def explained(self, **options: Any) -> Explanation:
        """Return what a run would do."""
        ...


def grown(steps: Sequence[PlannedStep]) -> Iterator[int | None]:
    """Yield how many tokens each step's prompt has more than that of the step before it."""
    before: int | None = None
    for step in steps:
        yield None if before is None or step.tokens is None else step.tokens - before
        before = step.tokens if step.kind != "call" else before
