"""Replay: the state, and the view of every call, computed from the records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mergepoint.core.errors import ReplayMiss
from mergepoint.core.paths import iteration_name, join
from mergepoint.journal.recorded_answers import effective_records, path_of
from mergepoint.journal.records import CallRecord, skipped_error
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.evaluate import Branch, Messages, drive, evaluate
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Gate, Loop, Node, root_path
from mergepoint.tree.prompts import PromptContext
from mergepoint.tree.transform import outlined_condition


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay: `views` by path, and the `state` at the end, or None.

    A view is the part of the state that a call saw, without its own prompt, system message and
    examples. `held` maps each gate's path to its question, with the output that waited there.
    `missing` lists reached paths without an answer, in the order of the tree. If there are none and
    the run has no end, `error` is the failure between the calls.
    """

    views: Mapping[str, Messages]
    state: Messages | None
    origins: Mapping[str, str]
    held: Mapping[str, Question] = field(default_factory=dict)
    missing: Sequence[str] = ()
    error: Exception | None = None


def replay(
    records: Iterable[CallRecord],
    tree: Node,
    *,
    base: Messages,
    at: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Replay:
    """Run the merges of a tree over recorded answers, without calling any model or function.

    If a call has several records, the effective one counts (see `effective_records`). A skipped
    call is skipped again. A loop whose `until` is a function calls it again; if that raises, the
    run had ended. An outline has no such function; then a loop continues as long as there are
    records of another iteration.

    Args:
        records: The records of the run.
        tree: The tree, or one made from its outline.
        base: The state that the tree saw.
        at: The path of the tree; by default that of a root.
        inputs: The run's inputs, for `until` functions.
        seed: The run's seed, for `until` functions.

    Returns:
        The result, with `origins`: for each message id, the path at which it was created.
    """
    records = tuple(records)
    began = {record.path for record in records}
    stands = effective_records((one for one in records if one.kind != "inner"), path_of)
    engine = _Lookup(stands, began, dict(inputs or {}), seed)
    path = at or root_path(tree)
    state: Messages | None = None
    failed: Exception | None = None
    try:
        state = drive(evaluate(tree, path, base, onto=base, engine=engine))
    except ReplayMiss:
        pass
    except Exception as error:  # noqa: BLE001  (what a user's `until` raises too)
        failed = error
    return Replay(engine.views, state, engine.origins, engine.held, engine.missing, failed)


@dataclass
class _Lookup:
    """An engine that looks up answers."""

    records: Mapping[str, CallRecord]
    began: Collection[str]
    inputs: Mapping[str, Any]
    seed: int
    views: dict[str, Messages] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    held: dict[str, Question] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    async def ask(self, step: Step, path: str, view: Messages) -> Messages:
        return self._made(path, view, None)

    async def call(self, call: Call, path: str, view: Messages) -> Messages:
        return self._made(path, view, call.capture_key)

    def _made(self, path: str, view: Messages, capture_key: str | None) -> Messages:
        self.views[path] = view
        made = self._found(path).made(capture_key)
        self.origins.update({str(message.id): path for message in made.messages})
        return made

    async def decide(self, gate: Gate, question: Question) -> Decision:
        self.held[question.path] = question
        return Decision.of(self._found(question.path).value)

    async def holds(self, loop: Loop, path: str, view: Messages, number: int) -> bool:
        if loop.until is outlined_condition:
            following = join(path, iteration_name(number + 1)) + "/"
            return not any(known.startswith(following) for known in self.began)
        context = PromptContext.over(
            path,
            run_id=next((record.key.run for record in self.records.values()), ""),
            seed=self.seed,
            messages=view.messages,
            inputs=self.inputs,
            outputs=view.outputs,
            reads=None,
        )
        return loop.holds(context)

    def _found(self, path: str) -> CallRecord:
        record = self.records.get(path)
        if record is None:
            self.missing.append(path)
            raise ReplayMiss(f"no answer at {path} on record")
        if record.kind == "left_out":
            raise skipped_error(record)
        return record

    async def fork(self, branches: Sequence[Branch]) -> Sequence[Messages]:
        kept: list[Messages] = []
        failed: Exception | None = None
        for branch in branches:
            try:
                kept.append(await branch())
            except Exception as error:  # noqa: BLE001  (raised below, after all branches)
                failed = error if failed is None or _outweighs(error, failed) else failed
        if failed is not None:
            raise failed
        return kept


def _outweighs(error: Exception, other: Exception) -> bool:
    """Return whether a miss takes precedence: a run that can continue has not failed yet."""
    return isinstance(error, ReplayMiss) and not isinstance(other, ReplayMiss)
