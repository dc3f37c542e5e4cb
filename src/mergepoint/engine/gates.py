"""Decisions at gates: their sources, and their records, which are written before use."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from mergepoint.core.errors import GateOpen, StepError
from mergepoint.core.merge import State
from mergepoint.engine.callbacks import Event, Recorder, recorders_of
from mergepoint.engine.run_constants import Facts
from mergepoint.journal.call_records import CallKey, CallRecord, now
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.recorded_answers import AnswerRequest, pending
from mergepoint.journal.replay import ignored_answer
from mergepoint.journal.writer import after_writes, append_record, call_and_flush
from mergepoint.models.timeouts import STOP_SIGNAL
from mergepoint.tree.decision import RESPONSE_SCHEMA, Answerer, Decision, Question
from mergepoint.tree.nodes import Gate
from mergepoint.tree.prompts import copied, copied_message

GATES = "mergepoint_gates"
"""A key in a config's `configurable`: with "raise", an open gate raises GateOpen."""


def decide(
    gate: Gate,
    question: Question,
    facts: Facts,
    config: RunnableConfig,
    *,
    interrupts: bool = False,
) -> Decision:
    """Return the decision at a gate: the recorded one, or that of the first answerer.

    The gate's function is asked first, then the run's answerer. A function that returns None
    passes the question on to the answerer; one that raises GateOpen leaves the gate open.

    With `interrupts`, an open gate stops the graph instead of raising.

    Raises:
        GateOpen: The question has no answer yet.
        StepError: An answer is invalid.
    """
    asked = GateRequest(question, facts, config)
    if (known := asked.recorded_decision()) is not None:
        return known
    asked.check()
    for answerer in asked.answerers(gate):
        try:
            given = answerer(asked.copied_question())
        except GateOpen:
            break
        if inspect.isawaitable(given):
            # Close it, or Python warns about a coroutine that was never awaited.
            if inspect.iscoroutine(given):
                given.close()
            raise StepError(
                "the answerer is async; run the tree on an event loop, or answer at once"
            )
        if given is not None or answerer is not gate.decide:
            return asked.record_answer(given)
    return asked.interrupt() if interrupts else asked.raise_open()


async def adecide(
    gate: Gate,
    question: Question,
    facts: Facts,
    config: RunnableConfig,
    *,
    interrupts: bool = False,
) -> Decision:
    """Return the decision like `decide`, on an event loop; a sync answerer runs in a thread."""
    asked = GateRequest(question, facts, config)
    if (known := await call_and_flush(asked.recorded_decision)) is not None:
        return known
    asked.check()
    for answerer in asked.answerers(gate):
        try:
            given = await _answered(answerer, asked.copied_question())
        except GateOpen:
            break
        if given is not None or answerer is not gate.decide:
            return await call_and_flush(asked.record_answer, given)
    return await call_and_flush(asked.interrupt if interrupts else asked.raise_open)


async def _answered(answerer: Answerer, question: Question) -> Any:
    if inspect.iscoroutinefunction(answerer):
        return await answerer(question)
    given = await asyncio.to_thread(answerer, question)
    return await given if inspect.isawaitable(given) else given


class GateRequest:
    """One gate's question in one run."""

    def __init__(self, question: Question, facts: Facts, config: RunnableConfig) -> None:
        self._recorders: Sequence[Recorder] = recorders_of(config)
        self._raises = config.get("configurable", {}).get(GATES) == "raise"
        digests = self._recorders[0].digests if self._recorders else Digests()
        # A decision is about exactly this result: with another fingerprint, the gate asks again.
        key = digests.state(question.kept.messages, question.kept.outputs)
        self._key = CallKey(facts.run, facts.host, question.path)
        self.question = replace(question, key=key, run=facts.run)
        self._started = now()
        self._open = False

    def recorded_decision(self) -> Decision | None:
        """Return the recorded decision, and write it to the journals that lack it."""
        question = self.question
        path, key, text = self._key.full_path, question.key, question.text
        asked = AnswerRequest(path, key, text, model="", params={}, context=0, kind="gate")
        for recorder in self._recorders:
            if recorder.answers is None:
                continue
            found = recorder.answers.find(asked)
            if found is None:
                continue
            decision = Decision.of(found.value)
            self._check_given(decision, taken_over=not recorder.answers.owns(found))
            record = replace(found, key=self._key, source="replayed")
            for other in self._recorders:
                if other is not recorder or not recorder.answers.owns(found):
                    append_record(other.journal, record)
            self._report_end(decision)
            return decision
        return None

    def _check_given(self, recorded_decision: Decision, *, taken_over: bool) -> None:
        """Raise StepError if an answer passed for this gate differs from the recorded one."""
        for recorder in self._recorders:
            answerer: object = recorder.answerer
            if not isinstance(answerer, PresetAnswers):
                continue
            given = answerer.given_for(self.question.path)
            if given is None:
                continue
            decision = Decision.of(self.question.reply(given))
            path = self.question.path
            if problem := ignored_answer(path, decision, recorded_decision, taken_over=taken_over):
                raise StepError(problem)

    def check(self) -> None:
        """Raise KeyboardInterrupt in a run that must stop, before anyone is asked."""
        if (halt := STOP_SIGNAL.get()) is not None:
            halt.check()

    def report_start(self) -> None:
        """Report once that the gate asks a question."""
        if not self._open:
            self._open = True
            self._tell("start")

    def _report_end(self, decision: Decision) -> None:
        self.report_start()
        # Listeners are notified when the record is written, which on an event loop is later.
        after_writes(partial(self._tell, "end", decision.decision))

    def _tell(self, kind: Literal["start", "end"], text: str = "") -> None:
        for recorder in self._recorders:
            recorder.tell(Event(kind, self._key.path, self._key.host, text=text, of="gate"))

    def answerers(self, gate: Gate) -> Iterator[Answerer]:
        """Yield the answerers: the gate's own function, then the run's answerer."""
        run = next((one.answerer for one in self._recorders if one.answerer is not None), None)
        for answerer in (gate.decide, run):
            if answerer is not None:
                self.report_start()
                yield answerer

    def copied_question(self) -> Question:
        """Return the question with copies, so that an answerer cannot change the waiting result."""
        kept = self.question.kept
        copies = [copied_message(message) for message in kept.messages]
        return replace(self.question, kept=State.of(copies, copied(dict(kept.outputs))))

    def raise_open(self) -> Decision:
        """Record the question and raise GateOpen."""
        self._record_question()
        raise GateOpen([self.question])

    def _record_question(self) -> None:
        """Write the question to the journals in which it is not open already."""
        question = self.question
        record = CallRecord(
            key=self._key,
            prompt=question.text,
            started=self._started,
            ended=now(),
            request=question.key,
            kind="gate",
            messages=question.kept.messages,
            outputs=question.kept.outputs,
        )
        for recorder in self._recorders:
            known = pending(recorder.journal.records)
            if (record.key, record.request) not in [(one.key, one.request) for one in known]:
                append_record(recorder.journal, record)

    def record_answer(self, given: Any) -> Decision:
        """Return the decision in an answer, after recording it.

        Raises StepError for an answer that is invalid for the question.
        """
        # The decision is recorded before it is used: a crash after that does not ask again.
        decision = fitting(self.question, given)
        record = CallRecord(
            key=self._key,
            prompt=self.question.text,
            started=self._started,
            ended=now(),
            request=self.question.key,
            kind="gate",
            value=decision.to_plain(),
        )
        for recorder in self._recorders:
            append_record(recorder.journal, record)
        self._report_end(decision)
        return decision

    def interrupt(self) -> Decision:
        """Stop the graph until a person answers with `Command(resume=...)`.

        After an invalid answer, it stops again, with the reason.
        """
        if self._raises:
            return self.raise_open()
        self._record_question()
        plain = self.question.to_interrupt()
        while True:
            # LangGraph runs the node again from its start, and returns earlier answers to
            # `interrupt` by their order. So this loop reads refused answers again, up to the new
            # one.
            given = interrupt(plain, response_schema=dict(RESPONSE_SCHEMA))
            try:
                return self.record_answer(given)
            except StepError as error:
                plain = {**plain, "problem": str(error)}


def fitting(question: Question, given: Any) -> Decision:
    """Return the decision in an answer. Raises StepError if it is invalid for the question."""
    decision = Decision.of(question.reply(given))
    question.settled(decision)
    return decision


@runtime_checkable
class PresetAnswers(Protocol):
    """An answerer with decisions that were passed before the run."""

    def given_for(self, path: str) -> Any:
        """Return the answer passed for exactly the gate at a path, or None."""
        ...


@dataclass(frozen=True, slots=True)
class AnswersByPath:
    """An answerer with decisions by path, which raises GateOpen at any other gate."""

    answers: Mapping[str, Any]

    def __call__(self, question: Question) -> Any:
        """Return the answer to a question."""
        if question.path not in self.answers:
            raise GateOpen([question])
        return self.answers[question.path]

    def given_for(self, path: str) -> Any:
        """Return the answer passed for a gate, or None."""
        return self.answers.get(path)


def by_path(answers: Mapping[str, Any]) -> AnswersByPath:
    """Return an answerer with decisions by path."""
    return AnswersByPath(answers)
