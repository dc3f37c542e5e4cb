"""Deciding: where a gate's answer comes from, and that it is written down before it is used."""

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
from mergepoint.core.state import State
from mergepoint.engine.callbacks import Event, Recorder, recorders_of
from mergepoint.engine.facts import Facts
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.recorded_answers import AnswerRequest, pending
from mergepoint.journal.records import CallKey, CallRecord, now
from mergepoint.journal.replay import ignored_answer
from mergepoint.journal.writer import after_writes, append_record, call_and_flush
from mergepoint.models.cancellation import STOP_SIGNAL
from mergepoint.tree.decision import RESPONSE_SCHEMA, Answerer, Decision, Question
from mergepoint.tree.nodes import Gate
from mergepoint.tree.prompts import copied, copied_message

GATES = "mergepoint_gates"
"""In a config's `configurable`: "raise" lets an open gate raise GateOpen, and not interrupt."""


def decide(
    gate: Gate,
    question: Question,
    facts: Facts,
    config: RunnableConfig,
    *,
    interrupts: bool = False,
) -> Decision:
    """Return the decision at a gate: one on record, the gate's own function's, or the answerer's.

    The gate's function leaves it to the answerer by None, or to nobody by GateOpen. Where nobody
    answers, or the answerer raises GateOpen, it raises GateOpen, or with `interrupts` stops the
    graph it runs in.

    Raises StepError for an answer that does not fit.
    """
    asked = GateRequest(question, facts, config)
    if (known := asked.on_record()) is not None:
        return known
    asked.check()
    for answerer in asked.answerers(gate):
        try:
            given = answerer(asked.shown())
        except GateOpen:
            break
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise StepError(
                "the answerer is async; run the tree on an event loop, or answer at once"
            )
        if given is not None or answerer is not gate.decide:
            return asked.written(given)
    return asked.interrupted() if interrupts else asked.refused()


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
    if (known := await call_and_flush(asked.on_record)) is not None:
        return known
    asked.check()
    for answerer in asked.answerers(gate):
        try:
            given = await _answered(answerer, asked.shown())
        except GateOpen:
            break
        if given is not None or answerer is not gate.decide:
            return await call_and_flush(asked.written, given)
    return await call_and_flush(asked.interrupted if interrupts else asked.refused)


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
        key = digests.state(question.kept.messages, question.kept.outputs)
        self._key = CallKey(facts.run, facts.host, question.path)
        self.question = replace(question, key=key, run=facts.run)
        self._started = now()
        self._open = False

    def on_record(self) -> Decision | None:
        """Return the decision that stands on record, written to those journals that lack it."""
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
            self._settled(decision)
            return decision
        return None

    def _check_given(self, on_record: Decision, *, taken_over: bool) -> None:
        """Refuse an answer that was given for this gate and is not the one on record."""
        for recorder in self._recorders:
            answerer: object = recorder.answerer
            if not isinstance(answerer, GivenAnswers):
                continue
            given = answerer.given_for(self.question.path)
            if given is None:
                continue
            decision = Decision.of(self.question.reply(given))
            path = self.question.path
            if problem := ignored_answer(path, decision, on_record, taken_over=taken_over):
                raise StepError(problem)

    def check(self) -> None:
        """Raise KeyboardInterrupt in a run that was told to stop: nobody is asked any more."""
        if (halt := STOP_SIGNAL.get()) is not None:
            halt.check()

    def opened(self) -> None:
        """Report that the gate asks somebody."""
        if not self._open:
            self._open = True
            self._tell("start")

    def _settled(self, decision: Decision) -> None:
        self.opened()
        after_writes(partial(self._tell, "end", decision.decision))

    def _tell(self, kind: Literal["start", "end"], text: str = "") -> None:
        for recorder in self._recorders:
            recorder.tell(Event(kind, self._key.path, self._key.host, text=text, of="gate"))

    def answerers(self, gate: Gate) -> Iterator[Answerer]:
        """Yield the answerers: the gate's own function, then the run's answerer."""
        run = next((one.answerer for one in self._recorders if one.answerer is not None), None)
        for answerer in (gate.decide, run):
            if answerer is not None:
                self.opened()
                yield answerer

    def shown(self) -> Question:
        """Return the question on copies, so that who answers cannot change what is held back."""
        kept = self.question.kept
        copies = [copied_message(message) for message in kept.messages]
        return replace(self.question, kept=State.of(copies, copied(dict(kept.outputs))))

    def refused(self) -> Decision:
        """Raise GateOpen: nobody is there who could answer."""
        self._ask_on_record()
        raise GateOpen([self.question])

    def _ask_on_record(self) -> None:
        """Write the question into those journals in which it does not stand open already."""
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

    def written(self, given: Any) -> Decision:
        """Return the decision in an answer, once it is on record.

        Raises StepError for an answer that does not fit the question.
        """
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
        self._settled(decision)
        return decision

    def interrupted(self) -> Decision:
        """Stop the graph until a person answers by `Command(resume=...)`.

        An answer that does not fit is asked for again, with the reason.
        """
        if self._raises:
            return self.refused()
        self._ask_on_record()
        plain = self.question.to_interrupt()
        while True:
            given = interrupt(plain, response_schema=dict(RESPONSE_SCHEMA))
            try:
                return self.written(given)
            except StepError as error:
                plain = {**plain, "problem": str(error)}


def fitting(question: Question, given: Any) -> Decision:
    """Return the decision in an answer. Raises StepError for one that does not fit the question."""
    decision = Decision.of(question.reply(given))
    question.settled(decision)
    return decision


@runtime_checkable
class GivenAnswers(Protocol):
    """An answerer with decisions that were made before the run."""

    def given_for(self, path: str) -> Any:
        """Return the answer that was given for the gate at a path and no other, or None."""
        ...


@dataclass(frozen=True, slots=True)
class AnswersByPath:
    """Return an answerer with decisions by path, which raises GateOpen at any other gate."""

    answers: Mapping[str, Any]

    def __call__(self, question: Question) -> Any:
        """Return the answer to a question."""
        if question.path not in self.answers:
            raise GateOpen([question])
        return self.answers[question.path]

    def given_for(self, path: str) -> Any:
        """Return the answer that was given for a gate, or None."""
        return self.answers.get(path)


def by_path(answers: Mapping[str, Any]) -> AnswersByPath:
    """Return the answerer that knows its answers by path."""
    return AnswersByPath(answers)
