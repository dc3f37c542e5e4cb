"""Replay: the state, the views and the open questions that follow from a run's records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mergepoint.core.errors import ReplayMiss, StepError
from mergepoint.core.merge import State
from mergepoint.core.paths import iteration_name, join, nearest
from mergepoint.journal.call_records import CallKey, CallRecord, now, skipped_error
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.recorded_answers import effective_records, path_of
from mergepoint.journal.stores import RunHeader, Store
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Gate, Loop, Node, Order, find, root_path
from mergepoint.tree.prompts import PromptContext
from mergepoint.tree.semantics import Branch, Messages, drive, evaluate
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


class ViewStore(Protocol):
    """The form in which a replay stores messages, so that views can share what they have in common.

    The base state of the replay must have this form too.
    """

    def made(self, made: Messages) -> Messages:
        """Return the result of a call in this form."""
        ...

    def view(self, path: str, view: Messages) -> Messages:
        """Return the part to store of what the call at a path saw."""
        ...


def replay(
    records: Iterable[CallRecord],
    tree: Node,
    *,
    base: Messages,
    at: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    stored: ViewStore | None = None,
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
        stored: The form of messages. Default: tuples, so that each view has a copy of its own.

    Returns:
        The result, with `origins`: for each message id, the path at which it was created.
    """
    records = tuple(records)
    began = set(map(path_of, records))
    # Models inside a Call have its path, and their answers are part of its result.
    stands = effective_records([one for one in records if one.kind != "inner"], path_of)
    engine = _Lookup(stands, began, dict(inputs or {}), seed, stored)
    path = at or root_path(tree)
    state: Messages | None = None
    failed: Exception | None = None
    try:
        state = drive(evaluate(tree, path, base, onto=base, engine=engine))
    except ReplayMiss:
        pass
    # Raised between the calls, so no record has it.
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
    stored: ViewStore | None = None
    views: dict[str, Messages] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    held: dict[str, Question] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    async def ask(self, step: Step, path: str, view: Messages) -> Messages:
        return self._made(path, view, None)

    async def call(self, call: Call, path: str, view: Messages) -> Messages:
        return self._made(path, view, call.capture_key)

    def _made(self, path: str, view: Messages, capture_key: str | None) -> Messages:
        self.views[path] = view if self.stored is None else self.stored.view(path, view)
        made = self._found(path).made(capture_key)
        self.origins.update({str(message.id): path for message in made.messages})
        return made if self.stored is None else self.stored.made(made)

    async def decide(self, gate: Gate, question: Question) -> Decision:
        self.held[question.path] = question
        return Decision.of(self._found(question.path).value)

    async def holds(self, loop: Loop, path: str, view: Messages, number: int) -> bool:
        # An outline has no condition to ask. That another iteration has records is its answer.
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
        # Every branch is replayed, also after a failure: `missing` lists the paths of all of them,
        # and a miss in one means that the run can be resumed, whatever failed in another.
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


def open_questions(
    header: RunHeader, records: Iterable[CallRecord], tree: Node, *, host: str = ""
) -> list[Question]:
    """Return the questions that a run waits for, in the order of the tree.

    They follow from the journal; nothing is run.

    Args:
        header: The header of the run.
        records: The records of the run.
        tree: The tree of the run.
        host: The names of a host's nodes around the run's graph, as in its records.

    Raises:
        LookupError: The tree does not have the node that the run began with.
        JournalError: The journal does not name a tree.
    """
    own = [record for record in records if record.key.host == host]
    at = str(header.shape["path"])
    part = find(tree, at)
    seen = replay(
        own,
        part,
        base=State(header.messages),
        at=at,
        inputs=header.inputs,
        seed=header.seed,
    )
    answered = {record.path for record in own if record.answered}
    digests, order = Digests(), Order(part, at)
    asked = [
        replace(
            question,
            key=digests.state(question.kept.messages, question.kept.outputs),
            run=header.run_id,
        )
        for path, question in seen.held.items()
        if path not in answered
    ]
    return sorted(asked, key=lambda question: order(question.path))


def answer_questions(
    store: Store, run_id: str, tree: Node, answers: Mapping[str, Any], *, host: str = ""
) -> None:
    """Write answers at open gates, by path, into the journal of a paused run.

    After this returns, the answers survive a crash, and the run finds them when it is resumed by
    `run_generation(resume=...)`, or `invoke(None)` of a compiled graph.

    Args:
        store: The store of the run.
        run_id: The id of the run.
        tree: The tree of the run.
        answers: Answers by path, in any form that `Decision.of` takes.
        host: The names of a host's nodes around the run's graph.

    Raises:
        StepError: A path has no open question, or an answer is invalid; then none is written.
        JournalError: The run is being written.
    """
    with store.open(run_id) as journal:
        found = open_questions(journal.header, journal.records, tree, host=host)
        asked = {question.path: question for question in found}
        # All are checked before the first is written: a wrong answer leaves the run as it was.
        decided = {path: _decided(asked, path, given) for path, given in answers.items()}
        for path, decision in decided.items():
            journal.append(_record(asked[path], decision, host))


def check_answers(records: Iterable[CallRecord], answers: Mapping[str, Any]) -> None:
    """Raise StepError for answers to gates that have a different recorded decision.

    A recorded decision counts, so such an answer would be ignored. The error names every such
    answer and the recorded one.
    """
    decided = effective_records((one for one in records if one.kind == "gate"), path_of)
    problems = []
    for path, given in answers.items():
        record = decided.get(path)
        if record is None or record.value is None:
            continue
        if problem := ignored_answer(path, Decision.of(given), Decision.of(record.value)):
            problems.append(problem)
    if problems:
        raise StepError("\n  ".join(problems))


def ignored_answer(
    path: str, given: Decision, on_record: Decision, *, taken_over: bool = False
) -> str | None:
    """Return why an answer would be ignored because of a recorded decision, or None.

    `taken_over` means that the decision is from an earlier run, whose answers a new run reuses.
    """
    if given == on_record:
        return None
    words = f" ({on_record.feedback})" if on_record.feedback else ""
    where = "in the run whose answers are taken over" if taken_over else "there"
    new = "begin a new run without reuse or replay" if taken_over else "begin a new run"
    return (
        f"the answer at {path} would be ignored: {on_record.decision!r}{words} is on record "
        f"{where}, and a decision counts once it is made; leave the answer out, or {new}"
    )


def _decided(asked: Mapping[str, Question], path: str, given: Any) -> Decision:
    question = asked.get(path)
    if question is None:
        there = ", ".join(asked) or "none"
        raise StepError(f"no question is open at {path}{nearest(path, asked)}; open are: {there}")
    try:
        decision = Decision.of(given)
        question.settled(decision)
    except StepError as error:
        raise StepError(f"{path}: {error}") from error
    return decision


def _record(question: Question, decision: Decision, host: str) -> CallRecord:
    moment = now()
    return CallRecord(
        key=CallKey(question.run, host, question.path),
        prompt=question.text,
        started=moment,
        ended=moment,
        request=question.key,
        kind="gate",
        value=decision.to_plain(),
    )
