"""Replay: the state and every call's view, worked out again from the records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mergepoint.core.errors import ReplayMiss
from mergepoint.core.path import iteration_name, join
from mergepoint.record.left_out import exceeded
from mergepoint.record.record import CallRecord
from mergepoint.record.standing import path_of, standing
from mergepoint.tree.call import Call
from mergepoint.tree.context import PromptContext
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.fold import Branch, Messages, drive, fold
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, root_path
from mergepoint.tree.outline import untold
from mergepoint.tree.step import Step


@dataclass(frozen=True, slots=True)
class Replay:
    """What the records say: `views` by path, the `state` at the end (None where it has none).

    A view is what a call saw of the state, without its own prompt, system message and examples.
    `held` is by path what each gate held back, in the question that it asked. `missing` are the
    paths that were come to and have no answer, in the order of the tree; where there are none and
    the run has no end all the same, `error` is what it failed with between the calls.
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
    """Run the merges of a tree over recorded answers; no model and no function is called.

    Of several records of a call that one counts which stands (see `standing`); one that was left
    out is left out again. `origins` says for each message id that the run made at which path it
    was made. A loop whose `until` is a function asks it again; where that raises, the run had
    ended. In an outline there is none: then a loop went on as long as there are records of another
    iteration.
    """
    records = tuple(records)
    began = {record.path for record in records}
    stands = standing((one for one in records if one.kind != "inner"), path_of)
    engine = _Lookup(stands, began, dict(inputs or {}), seed)
    path = at or root_path(tree)
    state: Messages | None = None
    failed: Exception | None = None
    try:
        state = drive(fold(tree, path, base, onto=base, engine=engine))
    except ReplayMiss:
        pass
    except Exception as error:  # noqa: BLE001  (what a user's `until` raises too)
        failed = error
    return Replay(engine.views, state, engine.origins, engine.held, engine.missing, failed)


@dataclass
class _Lookup:
    """An engine that looks answers up."""

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
        if loop.until is untold:
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
            raise exceeded(record)
        return record

    async def fork(self, branches: Sequence[Branch]) -> Sequence[Messages]:
        kept: list[Messages] = []
        failed: Exception | None = None
        for branch in branches:
            try:
                kept.append(await branch())
            except Exception as error:  # noqa: BLE001  (raised below: all branches are looked at)
                failed = error if failed is None or _outweighs(error, failed) else failed
        if failed is not None:
            raise failed
        return kept


def _outweighs(error: Exception, other: Exception) -> bool:
    """Say whether a miss stands against another error: a run that goes on has not failed yet."""
    return isinstance(error, ReplayMiss) and not isinstance(other, ReplayMiss)
