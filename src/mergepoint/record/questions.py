"""Questions: what the open gates of a run ask, and their answers written into its journal.

For whoever answers while the run stands still, a server for one: what is written stands on record
before the run goes on, so that no crash asks for it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mergepoint.core.errors import StepError
from mergepoint.core.path import nearest
from mergepoint.core.state import State
from mergepoint.record.header import RunHeader
from mergepoint.record.record import CallKey, CallRecord, now
from mergepoint.record.replay import replay
from mergepoint.record.request import Digests
from mergepoint.record.store import Store
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.node import Node, Order, find


def open_questions(
    header: RunHeader, records: Iterable[CallRecord], tree: Node, *, host: str = ""
) -> list[Question]:
    """Give what the gates ask that a run waits for, in the order of the tree.

    They follow from the journal alone; nothing is run. `host` holds the names of a host's nodes
    around the run's graph, as its records do.

    Raises LookupError for a tree in which there is no such node as the run began with.
    """
    own = [record for record in records if record.key.host == host]
    at = str(header.tree["path"])
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
    """Write answers at open gates, by path, into the journal of a run that stands still.

    An answer is what `Decision.of` takes. When this returns it outlives a crash, and whoever goes
    on with the run finds it: `run_generation(resume=...)`, or a compiled graph by `invoke(None)`.

    Raises StepError for a path where no question is open and for an answer that does not fit;
    then none of them is written. Raises JournalError for a run that is being written.
    """
    with store.open(run_id) as journal:
        found = open_questions(journal.header, journal.records, tree, host=host)
        asked = {question.path: question for question in found}
        decided = {path: _decided(asked, path, given) for path, given in answers.items()}
        for path, decision in decided.items():
            journal.append(_record(asked[path], decision, host))


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
