"""Turns of an agent that wait for a person: begun here, answered there, found again after a kill.

What terminal and web do with an agent, in one place. A turn goes until it has its answer, or until
a gate asks; then it stands still, with the question on record, and nothing of it is in memory.
Whoever has the session, in this process or another, finds the question and answers it:

    turns = TurnRunner(agent(), model="offline")
    memory = open_session("mine", sessions="sessions")

    came = await say(turns, memory, "Sum the sales by region.")
    while isinstance(came, Pending):        # a plan, or a program
        came = await answer(turns, memory, "approve", to=came.key)
    print(came.text)                        # a Reply

After a restart `pending(turns, memory)` gives the open question, and `go_on` goes on with a turn
that was killed elsewhere. `cancel(memory)` ends a turn that waits; one that is running is ended by
cancelling its task, which stops the sandbox too. Either way the session keeps the message and an
error step, and the next message begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from mergepoint.agent.code_in import code_problem
from mergepoint.agent.execute import OUTPUT
from mergepoint.agent.plan import Plan, plan_of
from mergepoint.core.errors import GateOpen, SessionError, StepError
from mergepoint.record.questions import answer_questions
from mergepoint.run.recorder import Event, Recorder
from mergepoint.run.streaming_recorder import StreamingRecorder
from mergepoint.session.memory import SessionMemory
from mergepoint.session.turn import Reply
from mergepoint.session.turn_runner import TurnRunner, cancel_turn
from mergepoint.session.working_step import WorkingStep
from mergepoint.tree.decision import Decision, Question

Asks = Literal["plan", "code", "other"]


@dataclass(frozen=True, slots=True)
class Pending:
    """What a turn waits for a person to decide.

    `asks` says about what: a plan, a program, or in a tree of one's own something else. `key` tells
    this question from every other, so that an old button answers nothing.
    """

    question: Question
    asks: Asks
    plan: Plan | None = None
    code: str = ""

    @property
    def key(self) -> str:
        """Give what names this question: its run, its path, and what is held back."""
        return f"{self.question.run}/{self.question.path}#{self.question.key}"

    @property
    def path(self) -> str:
        """Give the path of the gate."""
        return self.question.path

    @property
    def text(self) -> str:
        """Give what is asked about, as a person edits it: the program, or the plan as JSON."""
        if self.asks == "code":
            return self.code
        return "" if self.plan is None else self.plan.model_dump_json(indent=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Who is told of a turn while it runs.

    `event` takes each Event of a call (tokens too) that was not on record before; `output` takes
    the path of the Call that runs a program, and pieces of what it prints, on the loop.
    """

    event: Callable[[Event], None] | None = None
    output: Callable[[str, str], None] | None = None


_NOBODY = Listeners()


async def say(
    turns: TurnRunner,
    memory: SessionMemory,
    text: str,
    *,
    message_id: str | None = None,
    listeners: Listeners = _NOBODY,
) -> Reply | Pending:
    """Begin a turn with what the user says; give its answer, or what it waits for.

    With a `message_id` of a user interface the same message is never answered twice. Raises what
    `TurnRunner.arun` raises: SessionError while another turn is unfinished, for one.
    """
    memory.refresh()
    before = message_id is not None and message_id in memory.past.by_id
    with _heard(listeners, _on_record(memory) if before else frozenset()) as recorder:
        try:
            return await turns.arun(memory, text, message_id=message_id, recorder=recorder)
        except GateOpen:
            return _waiting(turns, memory)


async def go_on(
    turns: TurnRunner, memory: SessionMemory, *, listeners: Listeners = _NOBODY
) -> Reply | Pending:
    """Go on with the last turn, which was killed or failed; one that waits is given as it waits.

    Nothing that is on record is done again. Raises SessionError where there is nothing to go on
    with, and what `TurnRunner.aresume` raises.
    """
    memory.refresh()
    with _heard(listeners, _on_record(memory)) as recorder:
        try:
            return await turns.aresume(memory, recorder=recorder)
        except GateOpen:
            return _waiting(turns, memory)


async def answer(
    turns: TurnRunner,
    memory: SessionMemory,
    decision: Any,
    *,
    to: str,
    listeners: Listeners = _NOBODY,
) -> Reply | Pending:
    """Answer the open question with the key `to`, and go on with its turn.

    A decision is what `Decision.of` takes: "approve"; reject with feedback, by which the plan or
    the program is made again; edit with a `text`. It is on record before anything goes on.

    Raises SessionError for a question that is not open any more, StepError for an edit that is no
    plan or does not compile; the question then stays open. Raises what `TurnRunner.aresume` does.
    """
    decide(turns, memory, decision, to=to)
    return await go_on(turns, memory, listeners=listeners)


def decide(turns: TurnRunner, memory: SessionMemory, decision: Any, *, to: str) -> None:
    """Write an answer down without going on; `go_on` does the rest. Raises what `answer` does."""
    found = pending(turns, memory)
    if found is None or found.key != to:
        raise SessionError(
            f"session {memory.session_id!r}: this question is not open any more; it was answered, "
            "or its turn has ended"
        )
    given = Decision.of(decision)
    _check_edit(found, given)
    answer_questions(memory.runs(), found.question.run, turns.tree, {found.path: given})


def pending(turns: TurnRunner, memory: SessionMemory) -> Pending | None:
    """Give what the unfinished turn waits for, from its journal alone; None where it does not."""
    questions = turns.questions(memory)
    return _pending(questions[0]) if questions else None


def cancel(memory: SessionMemory, reason: str = "") -> WorkingStep:
    """End a turn that waits, without an answer. Raises SessionError where none does."""
    return cancel_turn(memory, reason)


def _waiting(turns: TurnRunner, memory: SessionMemory) -> Pending:
    """Give what a turn waits for that has just said that it waits."""
    found = pending(turns, memory)
    if found is None:
        raise SessionError(
            f"session {memory.session_id!r}: the question was answered elsewhere; go on with it"
        )
    return found


def _pending(question: Question) -> Pending:
    outputs: Mapping[str, Any] = question.kept.outputs
    if "code" in outputs:
        return Pending(question, "code", code=str(outputs["code"]))
    try:
        return Pending(question, "plan", plan=plan_of(outputs.get("plan")))
    except StepError:
        return Pending(question, "other")


def _check_edit(found: Pending, decision: Decision) -> None:
    """Raise StepError for an edit that could not be carried out."""
    if decision.text is None:
        return
    if found.asks == "plan":
        plan_of(decision.text)
    elif found.asks == "code" and (problem := code_problem(decision.text)):
        raise StepError(problem)


@contextmanager
def _heard(listeners: Listeners, known: frozenset[str]) -> Iterator[Recorder]:
    """Give a recorder that tells of what happens now, and not of what is on record already."""
    event = listeners.event

    def tell(one: Event) -> None:
        if event is not None and one.path not in known:
            event(one)

    token = OUTPUT.set(listeners.output)
    try:
        yield Recorder() if event is None else StreamingRecorder(on_event=tell)
    finally:
        OUTPUT.reset(token)


def _on_record(memory: SessionMemory) -> frozenset[str]:
    """Give the paths of the last turn that have their answer."""
    asked = memory.past.asked(memory.turn)
    runs = memory.runs()
    if asked is None or not asked.run or not runs.has(asked.run):
        return frozenset()
    _, records = runs.read(asked.run)
    return frozenset(record.path for record in records if record.answered)
