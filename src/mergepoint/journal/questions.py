"""Open questions of a run's gates, and answers that are written into its journal.

They are for programs that answer while the run is paused, such as a server. An answer is recorded
before the run continues, so that a crash does not lose it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mergepoint.core.errors import StepError
from mergepoint.core.paths import nearest
from mergepoint.core.state import State
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.header import RunHeader
from mergepoint.journal.recorded_answers import effective_records, path_of
from mergepoint.journal.records import CallKey, CallRecord, now
from mergepoint.journal.replay import replay
from mergepoint.journal.store import Store
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.nodes import Node, Order, find


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
