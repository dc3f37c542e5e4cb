"""Turns of an agent that wait for a person, and can be answered from any process.

Terminal and web use an agent through this module. A turn runs until it has its answer, or until a
gate asks. Then it is paused with its question recorded, and nothing of it is in memory. Any process
with access to the session can find the question and answer it:

    turns = TurnRunner(agent(), model="offline")
    memory = open_session("mine", sessions="sessions")

    came = await say(turns, memory, "Sum the sales by region.")
    while isinstance(came, Pending):        # a plan, or a program
        came = await answer(turns, memory, "approve", to=came.key)
    print(came.text)                        # a Reply

After a restart `pending(turns, memory)` returns the open question, and `go_on` resumes a turn that
was killed elsewhere. `cancel(memory)` ends a waiting turn; to end a running one, cancel its task,
which stops the sandbox too. Either way the session keeps the message and an error step, and the
next message begins a new turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from mergepoint.agent.tree import OUTPUT, Plan, code_problem, plan_of
from mergepoint.core.errors import GateOpen, SessionError, StepError
from mergepoint.engine.callbacks import Event, Recorder, StreamingRecorder
from mergepoint.journal.replay import answer_questions
from mergepoint.journal.writer import run_off_loop
from mergepoint.session.entries import WorkingStep
from mergepoint.session.session_memory import SessionMemory, records_of
from mergepoint.session.turn_runner import Reply, TurnRunner, cancel_turn
from mergepoint.tree.decision import Decision, Question

Asks = Literal["plan", "code", "other"]


@dataclass(frozen=True, slots=True)
class Pending:
    """The decision that a turn waits for.

    `asks` is its subject: a plan, a program, or something else in a custom tree. `key` identifies
    this question, so that an outdated button answers nothing.
    """

    question: Question
    asks: Asks
    plan: Plan | None = None
    code: str = ""

    @property
    def key(self) -> str:
        """Return the identity of the question: its run, its path, and the output to approve."""
        return f"{self.question.run}/{self.question.path}#{self.question.key}"

    @property
    def path(self) -> str:
        """Return the path of the gate."""
        return self.question.path

    @property
    def text(self) -> str:
        """Return the text that a person edits: the program, or the plan as JSON."""
        if self.asks == "code":
            return self.code
        return "" if self.plan is None else self.plan.model_dump_json(indent=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Callbacks for events of a turn while it runs.

    `event` receives each Event of a call (tokens too) that was not recorded before. `output`
    receives the path of the Call that runs a program, and pieces of its output, on the event loop.
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
    """Begin a turn with a user's message; return its answer, or the decision that it waits for.

    With a `message_id` from a user interface, the same message is never answered twice. Raises the
    errors of `TurnRunner.arun`, such as SessionError while another turn is unfinished.
    """
    await run_off_loop(memory.refresh)
    # A message that is sent again resumes its turn: its recorded calls must not be reported twice.
    before = message_id is not None and message_id in memory.past.by_id
    known = await run_off_loop(_on_record, memory) if before else frozenset()
    with _heard(listeners, known) as recorder:
        try:
            return await turns.arun(memory, text, message_id=message_id, recorder=recorder)
        except GateOpen:
            return await run_off_loop(_waiting, turns, memory)


async def go_on(
    turns: TurnRunner, memory: SessionMemory, *, listeners: Listeners = _NOBODY
) -> Reply | Pending:
    """Resume the last turn, which was killed or failed; a waiting one is returned as it is.

    Nothing that is recorded is repeated. Raises SessionError if there is nothing to resume, and the
    errors of `TurnRunner.aresume`.
    """
    await run_off_loop(memory.refresh)
    # Before the turn runs, or listeners would miss the calls that it answers.
    known = await run_off_loop(_on_record, memory)
    with _heard(listeners, known) as recorder:
        try:
            return await turns.aresume(memory, recorder=recorder)
        except GateOpen:
            return await run_off_loop(_waiting, turns, memory)


async def answer(
    turns: TurnRunner,
    memory: SessionMemory,
    decision: Any,
    *,
    to: str,
    listeners: Listeners = _NOBODY,
) -> Reply | Pending:
    """Answer the open question with the key `to`, and resume its turn.

    A decision is any value that `Decision.of` takes: "approve"; reject with feedback, after which
    the plan or the program is made again; edit with a `text`. It is recorded before the turn
    continues.

    Raises SessionError for a question that is no longer open. Raises StepError for an edit that is
    not a plan or does not compile; the question then stays open. Raises the errors of
    `TurnRunner.aresume`.
    """
    await run_off_loop(decide, turns, memory, decision, to=to)
    return await go_on(turns, memory, listeners=listeners)


def decide(turns: TurnRunner, memory: SessionMemory, decision: Any, *, to: str) -> None:
    """Record an answer without resuming; `go_on` does the rest. Raises errors as `answer` does."""
    with memory.holding_turn():  # if two answer concurrently, the second is refused
        found = pending(turns, memory)
        if found is None or found.key != to:
            raise SessionError(
                f"session {memory.session_id!r}: this question is not open any more, because it "
                "was answered or its turn has ended"
            )
        given = Decision.of(decision)
        # An edit that could not be executed is refused here, and the question stays open.
        if given.text is not None and found.asks == "plan":
            plan_of(given.text)
        is_code = given.text is not None and found.asks == "code"
        if is_code and (problem := code_problem(given.text or "")):
            raise StepError(problem)
        answer_questions(memory.runs(), found.question.run, turns.tree, {found.path: given})


def pending(turns: TurnRunner, memory: SessionMemory) -> Pending | None:
    """Return the decision that the unfinished turn waits for, from its journal, or None."""
    questions = turns.questions(memory)
    return _pending(questions[0]) if questions else None


def cancel(memory: SessionMemory, reason: str = "") -> WorkingStep:
    """End a waiting turn without an answer. Raises SessionError if no turn waits."""
    return cancel_turn(memory, reason)


def _waiting(turns: TurnRunner, memory: SessionMemory) -> Pending:
    """Return the decision of a turn that has just begun to wait."""
    found = pending(turns, memory)
    if found is None:
        raise SessionError(
            f"session {memory.session_id!r}: another process answered the question. Resume the turn"
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


@contextmanager
def _heard(listeners: Listeners, known: frozenset[str]) -> Iterator[Recorder]:
    """Yield a recorder that reports new events, and none that are recorded already."""
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
    """Return the paths of the last turn that have their answer."""
    found = records_of(memory, memory.turn)
    records = () if found is None else found[1]
    return frozenset(record.path for record in records if record.answered)
