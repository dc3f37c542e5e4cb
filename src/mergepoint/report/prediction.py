"""Predictions: dry runs of a tree's courses, and the ranges and warnings that follow from them."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from types import CodeType
from typing import Any, Final, get_args

from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from mergepoint.core.paths import ancestors, of_first_iterations
from mergepoint.journal.stores import RunHeader
from mergepoint.journal.transcript import Transcript, transcript_of
from mergepoint.models.pricing import PICO, Prices, context_window
from mergepoint.report.answer_lengths import shortened
from mergepoint.report.dry_run import RUN, Course, DryRun, Given, PlannedTokens
from mergepoint.report.explanation import (
    CostRange,
    Explained,
    Explanation,
    PlannedCapture,
    PlannedMessage,
    PlannedStep,
    PlanWarning,
    Range,
    grown,
)
from mergepoint.report.token_estimate import TOKENS_PER_MESSAGE, estimate_tokens
from mergepoint.report.transcript_index import TranscriptIndex
from mergepoint.report.views import SeenMessage
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Input, Loop, Node, children, root_path, walk
from mergepoint.tree.transform import outline

MOST_CALLS: Final = 20_000
"""Above this number of calls, the longest course of a run isn't evaluated call by call."""


@dataclass(frozen=True)
class Prediction:
    """A tree's dry runs: as expected, and by the shortest and longest course, if they differ."""

    given: Given
    prices: Prices
    missing: Sequence[Input]
    expected: DryRun
    courses: Mapping[Course, DryRun]

    @classmethod
    def of(cls, given: Given, prices: Prices, missing: Sequence[Input]) -> Prediction:
        """Evaluate every course."""
        expected = DryRun.of(given)
        courses: dict[Course, DryRun] = dict.fromkeys(get_args(Course), expected)
        if any(_branches(node) for _, node in walk(given.tree)):
            courses |= {"least": DryRun.of(given, "least"), "lean": DryRun.of(given, "lean")}
            if _most_calls(given.tree) > MOST_CALLS:
                del courses["most"]
            else:
                courses["most"] = DryRun.of(given, "most")
        return cls(given, prices, missing, expected, courses)

    @cached_property
    def transcript(self) -> Transcript:
        """Return the expected course as the transcript of a run."""
        header = RunHeader(
            run_id=RUN,
            created_at=datetime.now(UTC),
            seed=self.given.seed,
            inputs=self.given.inputs,
            messages=self.given.messages,
            tree=_without_conditions(outline(self.given.tree)),
        )
        return transcript_of(header, self.expected.records)

    @cached_property
    def _index(self) -> TranscriptIndex:
        return TranscriptIndex(self.transcript)

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return dict(walk(self.given.tree))

    @cached_property
    def _paths(self) -> dict[str, list[str]]:
        """Return the paths of the expected course, by path in the tree."""
        found: dict[str, list[str]] = {}
        for path in self._index.paths:
            found.setdefault(self._static(path), []).append(path)
        return found

    def _static(self, path: str) -> str:
        return path if path in self._nodes else of_first_iterations(path)

    def explanation(self) -> Explanation:
        """Return the prediction as an explanation."""
        leaves = [path for path in self._index.paths if not self._is_gate(path)]
        steps = [self._step(path) for path in leaves]
        # Steps that the expected course doesn't reach, in a loop without iterations, come last.
        steps = [replace(one, grows=more) for one, more in zip(steps, grown(steps), strict=True)]
        return Explanation(
            workflow=root_path(self.given.tree),
            kind="tree",
            steps=tuple(steps),
            calls=self._calls(),
            expected_calls=self._number(self.expected),
            input_tokens=self._total("input"),
            output_tokens=self._total("output"),
            cost=self._cost(),
            basis=self.given.lengths.basis,
            captures=tuple(self._captures(steps)),
            warnings=tuple(self._warnings(steps)),
            tree=self.given.tree,
            transcript=self.transcript,
        )

    def _is_gate(self, path: str) -> bool:
        return isinstance(self._nodes[self._static(path)], Gate)

    def _step(self, path: str) -> PlannedStep:
        node = self._nodes[self._static(path)]
        assert isinstance(node, Step | Call)  # noqa: S101  (the index lists only leaves and gates)
        model = self._model(path) if isinstance(node, Step) else node.label
        view = self._index.call(path)
        tokens = self.expected.tokens.get(path)
        each = list(self._each(path))
        known = tokens is not None and tokens.known
        return PlannedStep(
            path=path,
            kind="step" if isinstance(node, Step) else "call",
            model=model,
            sees=tuple(self._message(one, model) for one in view.seen),
            tokens=tokens.prompt if tokens is not None and known else None,
            input_tokens=_range(one.prompt for one in each),
            output_tokens=_range(one.output // one.calls for one in each),
            calls=self._times(path, node),
            cost=None if tokens is None else self._price(path, tokens),
            reads=view.reads,
            capture_key=node.capture_key,
            window=context_window(model) if isinstance(node, Step) else None,
            problem=self.expected.problems.get(path, ""),
        )

    def _message(self, seen: SeenMessage, model: str) -> PlannedMessage:
        tokens = estimate_tokens(seen.text) + TOKENS_PER_MESSAGE
        return PlannedMessage(
            role=seen.role,
            text=shortened(seen.text),
            origin=seen.origin,
            path=seen.path,
            through=seen.through,
            tokens=round(tokens * self.given.lengths.scale.of(model)),
        )

    def _model(self, path: str) -> str:
        return self.given.models[self._static(path)]

    def _same(self, path: str) -> Iterator[tuple[DryRun, list[PlannedTokens]]]:
        """Yield each dry run with the calls of a step, in all iterations unless they are listed."""
        listed = len(self._paths.get(self._static(path), ())) > 1
        for run in {id(one): one for one in (self.expected, *self.courses.values())}.values():
            yield (
                run,
                [
                    tokens
                    for at, tokens in run.tokens.items()
                    if at == path or (not listed and self._static(at) == self._static(path))
                ],
            )

    def _each(self, path: str) -> Iterator[PlannedTokens]:
        for _, found in self._same(path):
            yield from found

    def _times(self, path: str, node: Step | Call) -> Range:
        """Return the least and most model calls of a step, or in a Call."""
        if isinstance(node, Call):
            return calls_inside(node)
        numbers = {
            id(run): sum(tokens.calls for tokens in found) for run, found in self._same(path)
        }
        least = numbers[id(self.courses["least"])]
        if "most" in self.courses:
            return least, numbers[id(self.courses["most"])]
        loops = [self._nodes.get(at) for at in ancestors(self._static(path))]
        most = node.max_tool_rounds + 1 if node.tools else 1
        for loop in loops:
            most *= loop.max_iterations if isinstance(loop, Loop) else 1
        return least, most

    def _number(self, run: DryRun) -> int:
        inside = self.given.lengths.inner_calls
        functions = (path for path in self._index.paths if path not in run.tokens)
        return sum(one.calls for one in run.tokens.values()) + sum(map(inside, functions))

    def _calls(self) -> Range:
        least = sum(one.calls for one in self.courses["least"].tokens.values())
        if "most" not in self.courses:
            return least, None if self._functions else _most_calls(self.given.tree)
        most = sum(one.calls for one in self.courses["most"].tokens.values())
        for record in self.courses["most"].records:
            inside = self._functions.get(self._static(record.path), (0, 0))[1]
            if inside is None:
                return least, None
            most += inside
        return least, most

    @cached_property
    def _functions(self) -> dict[str, Range]:
        """Return the model calls inside of Calls that may make some, by path in the tree."""
        calls = {path: node for path, node in self._nodes.items() if isinstance(node, Call)}
        inside = {path: calls_inside(node) for path, node in calls.items()}
        return {path: one for path, one in inside.items() if one != (0, 0)}

    def _total(self, kind: str) -> Range:
        least, most = self.courses["least"], self.courses.get("most")
        low = sum(getattr(one, kind) for one in least.tokens.values())
        # How long the prompts inside a function are isn't known, even if their number is.
        if most is None or self._functions:
            return low, None
        each = most.tokens.values()
        known = kind == "output" or all(one.known for one in each)
        return low, sum(getattr(one, kind) for one in each) if known else None

    def _cost(self) -> CostRange | None:
        least = self._cost_of(self.courses["least"])
        if least is None:
            return None
        most = self.courses.get("most")
        bounded = most is not None and self._total("input")[1] is not None
        return least, self._cost_of(most) if most is not None and bounded else None

    def _cost_of(self, run: DryRun) -> float | None:
        costs = [self._picodollars(path, tokens) for path, tokens in run.tokens.items()]
        known = [cost for cost in costs if cost is not None]
        return sum(known) / PICO if len(known) == len(costs) else None

    def _picodollars(self, path: str, tokens: PlannedTokens) -> int | None:
        price = self.prices.of(self._model(path))
        if price is None:
            return None
        # Each call on its own: prices may depend on the length of a prompt.
        usage = {
            "input_tokens": tokens.input // tokens.calls,
            "output_tokens": tokens.output // tokens.calls,
        }
        return price.cost(usage) * tokens.calls

    def _price(self, path: str, tokens: PlannedTokens) -> float | None:
        cost = self._picodollars(path, tokens)
        return None if cost is None or not tokens.known else cost / PICO / tokens.calls

    def _captures(self, steps: Sequence[PlannedStep]) -> Iterator[PlannedCapture]:
        readers: dict[str, dict[str, None]] = {}
        for step in steps:
            for read in step.reads:
                if read.source == "capture":
                    readers.setdefault(read.key, {})[step.path] = None
            for key in sorted(self.expected.read.get(step.path, ())):
                readers.setdefault(key, {})[step.path] = None
        for path, node in self._nodes.items():
            if isinstance(node, Loop) and isinstance(node.until, str):
                readers.setdefault(node.until, {})[path] = None
        for path, node in self._nodes.items():
            if node.capture_key is not None:
                read_by = tuple(readers.get(node.capture_key, ()))
                yield PlannedCapture(key=node.capture_key, path=path, read_by=read_by)

    def _warnings(self, steps: Sequence[PlannedStep]) -> Iterator[PlanWarning]:
        for declared in self.missing:
            yield _warn("", f"the input {declared.name!r} isn't given; a placeholder stands for it")
        yield from self._course_warnings(steps)
        yield from self._model_warnings(steps)
        for step in steps:
            yield from _step_warnings(step)
            node = self._nodes[self._static(step.path)]
            if isinstance(node, Call) and calls_inside(node)[1] is None:
                yield _warn(step.path, "may call models itself; those calls aren't counted")

    def _course_warnings(self, steps: Sequence[PlannedStep]) -> Iterator[PlanWarning]:
        like = self.given.lengths.like
        if like is not None:
            new = [one.path for one in steps if like.at(one.path) is None]
            if len(new) == len(steps):
                yield _warn("", f"run {like.run_id} has none of these steps; it is of another tree")
            elif new:
                yield _warn(
                    "",
                    f"{len(new):,} of {len(steps):,} steps aren't in run {like.run_id}: {new[0]}",
                )
        if (error := self.expected.error) is not None:
            at = str(getattr(error, "pipeline_path", ""))
            yield _warn(at, f"the prediction ends here: {type(error).__name__}: {error}")
        if "most" not in self.courses:
            yield _warn("", f"more than {MOST_CALLS:,} calls are possible; tokens have no limit")

    def _model_warnings(self, steps: Sequence[PlannedStep]) -> Iterator[PlanWarning]:
        for name in dict.fromkeys(one.model for one in steps if one.kind == "step"):
            if not name:
                yield _warn("", "no model is given; pass one to know windows and prices")
                continue
            unknown = ["price"] if self.prices.of(name) is None else []
            windows = [one.window for one in steps if one.model == name]
            unknown += ["context window"] if windows[0] is None and ":offline" not in name else []
            if unknown:
                yield _warn("", f"no {' and no '.join(unknown)} is known for model {name!r}")


def _without_conditions(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outline whose loops end with their last record: placeholders meet no condition."""
    made = dict(shape)
    if made["kind"] == Loop.kind:
        made |= {"until": None, "on_exhausted": "keep"}
    if "nodes" in made:
        made["nodes"] = [_without_conditions(node) for node in made["nodes"]]
    return made


def calls_inside(call: Call) -> Range:
    """Return the least and most model calls in a Call; the most is None if nothing limits it."""
    target: Any = call.target
    if isinstance(target, BaseTool):
        return 0, 0
    if isinstance(target, Explained):
        return 0, target.explained().calls[1]
    if isinstance(target, Runnable) or not callable(target):
        return 0, None
    try:
        function = inspect.unwrap(target if inspect.isroutine(target) else type(target).__call__)
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return 0, None
    context = "ctx" if call.args is not None else names[0] if names else ""
    if context not in names:
        return 0, 0
    code = getattr(function, "__code__", None)
    return (0, 0) if isinstance(code, CodeType) and not _may_ask(code, context) else (0, None)


def _may_ask(code: CodeType, context: str) -> bool:
    """Return whether a function may use the `model` of its context, or pass the context on."""
    if context in code.co_cellvars:
        return True
    instructions = list(dis.get_instructions(code))
    for instruction, following in pairwise(instructions):
        value = instruction.argval
        loaded = value if isinstance(value, tuple) else (value,)
        if "LOAD_FAST" not in instruction.opname or context not in loaded:
            continue
        # Python 3.13 loads two variables at once; only the second one can have its attribute read.
        reads = following.opname in ("LOAD_ATTR", "LOAD_METHOD") and loaded[-1] == context
        if not reads or following.argval == "model" or context in loaded[:-1]:
            return True
    return False


def _step_warnings(step: PlannedStep) -> Iterator[PlanWarning]:
    if step.problem:
        yield _warn(step.path, f"its prompt isn't known before the run: {step.problem}")
    most = step.input_tokens[1] or 0
    answer = step.output_tokens[1] or 0
    if step.window is not None and most + answer > step.window:
        yield _warn(
            step.path,
            f"needs {most + answer:,} tokens with its answer, and the context window of "
            f"{step.model} has {step.window:,}",
        )


def _warn(path: str, message: str) -> PlanWarning:
    return PlanWarning(path=path, message=message)


def _range(numbers: Iterable[int]) -> Range:
    found = list(numbers)
    return (min(found), max(found)) if found else (0, 0)


def _branches(node: Node) -> bool:
    """Return whether runs of a node can differ in their calls or in what is seen."""
    if isinstance(node, Block):
        return getattr(node.budget, "on_exhausted", "") == "keep"
    return isinstance(node, Gate | Loop) or (isinstance(node, Step) and bool(node.tools))


def _most_calls(tree: Node) -> int:
    """Return the most model calls of a tree's steps."""
    if isinstance(tree, Step):
        return tree.max_tool_rounds + 1 if tree.tools else 1
    most = sum(_most_calls(child) for _, child in children(tree, ""))
    return most * tree.max_iterations if isinstance(tree, Loop) else most
