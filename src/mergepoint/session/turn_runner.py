"""Turns of a conversation: start, run, answer once, resume after a crash."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from typing_extensions import TypedDict, Unpack

from mergepoint.core.errors import (
    Fault,
    GateOpen,
    MergepointError,
    SessionError,
    StepError,
    TreeError,
)
from mergepoint.core.paths import ITERATION, SEPARATOR, nearest
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import Result, arun_generation, run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.call_records import CallRecord, call_messages
from mergepoint.journal.replay import open_questions
from mergepoint.journal.writer import in_threads, run_off_loop
from mergepoint.models.identity import ChatModel
from mergepoint.models.pricing import Price
from mergepoint.models.providers import NO_SETTINGS, ModelSettings, View
from mergepoint.session.entries import (
    CANCELLED,
    SessionMessage,
    StepType,
    WorkingStep,
    execution_content,
)
from mergepoint.session.history import check_open, stem_of, view_of
from mergepoint.session.session_memory import SessionMemory, records_of
from mergepoint.tree.decision import Answerer, Question
from mergepoint.tree.nodes import Loop, Node, Order, root_path, walk
from mergepoint.tree.policy import Budget
from mergepoint.tree.prompts import as_text
from mergepoint.tree.transform import with_overrides
from mergepoint.tree.validate import as_tree, checked

STEP = "step_type"
"""The key of a node's `meta` that makes its records working steps: plan, codegen or execute."""
_TYPES = tuple(map(str, (StepType.PLAN, StepType.CODEGEN, StepType.EXECUTE)))


@dataclass(frozen=True, slots=True)
class Artifact:
    """A record as a working step, in the form that `add_working_step` takes."""

    id: str
    type: StepType
    content: str
    path: str
    made_at: datetime
    about: Mapping[str, Any] = field(default_factory=dict)


class Artifacts:
    """The artifacts that the nodes of a tree add to a session's steps.

    These are nodes whose `meta` says so: `Step(..., meta={"step_type": "plan"})`. A failed attempt
    is not an artifact. Raises TreeError for a type other than plan, codegen and execute.
    """

    def __init__(self, tree: Node) -> None:
        root = root_path(tree)
        self._nodes = dict(walk(tree, root))
        self._order = Order(tree, root)
        faults = [
            Fault(path, f"meta {STEP}={word!r} is none of {', '.join(map(repr, _TYPES))}")
            for path, node in self._nodes.items()
            if (word := node.meta.get(STEP, _TYPES[0])) not in _TYPES
        ]
        if faults:
            raise TreeError(faults)

    def of(self, run: str, records: Iterable[CallRecord]) -> Iterator[Artifact]:
        """Yield the artifacts of a run, in the order in which they were made."""
        made: Counter[str] = Counter()
        for record in records:
            type_ = self._type(record)
            if record.key.run != run or type_ is None or _nothing(record):
                continue
            # Counted by path: a resumed turn gives a step the id that it had, so it is added once.
            made[record.path] += 1
            content, about = _content(record)
            if record.kind == "gate":
                type_, about = StepType.DECISION, {**about, "decides": str(type_)}
            yield Artifact(
                id=f"{run}/{record.path}/step-{made[record.path]}",
                type=type_,
                content=content,
                path=record.path,
                made_at=datetime.fromtimestamp(record.ended, UTC),
                about={"attempt": self.attempt_at(record.path, record.attempt), **about},
            )

    def _type(self, record: CallRecord) -> StepType | None:
        if not record.answered or record.kind == "inner":
            return None
        return self.type_at(record.path)

    def type_at(self, path: str) -> StepType | None:
        """Return the type of the artifact that is made or decided at a path, or None."""
        node = self.node_at(path)
        word = None if node is None else node.meta.get(STEP)
        return None if word is None else StepType(word)

    def place(self, path: str) -> str:
        """Return the path in the tree for a path in a run: the same path in the first iteration."""
        return self._order.static(path)

    def node_at(self, path: str) -> Node | None:
        """Return the node at a path of a run, in any iteration."""
        return self._nodes.get(self._order.static(path))

    def attempt_at(self, path: str, tries: int = 1) -> int:
        """Return the number of the innermost iteration, or of the call's own attempts."""
        names = path.split(SEPARATOR)
        for end in range(len(names) - 1, 0, -1):
            above = self._nodes.get(self._order.static(SEPARATOR.join(names[:end])))
            if isinstance(above, Loop):
                return int(names[end].removeprefix(ITERATION))
        return tries


def _nothing(record: CallRecord) -> bool:
    """Return whether a call reports that it ran nothing, by an output that is None."""
    value = record.value
    return isinstance(value, Mapping) and "output" in value and value["output"] is None


def _content(record: CallRecord) -> tuple[str, dict[str, Any]]:
    """Return the content of a record, and the other fields of its step."""
    if record.kind == "gate":
        decision = record.value
        return decision.get("text") or "", {
            "decision": decision["decision"],
            "feedback": decision["feedback"],
        }
    if record.kind == "call":
        value = record.value
        if not isinstance(value, Mapping):
            return "" if value is None else as_text(value), {}
        code, output = value.get("exit_code"), value.get("output")
        about = {"exit_code": code} if type(code) is int else {}
        apart = [value.get(name) for name in ("stdout", "stderr")]
        if all(isinstance(text, str) for text in apart):
            return execution_content(*map(str, apart)), about
        return output if isinstance(output, str) else as_text(value), about
    try:
        said = json.loads(record.response)
    except (ValueError, RecursionError):
        said = {}
    said = said if isinstance(said, Mapping) else {}
    names = [name for name in ("intent", "action") if isinstance(said.get(name), str)]
    return record.response, {name: said[name] for name in names}


class TurnInputs(TypedDict, total=False):
    """The optional arguments of a turn.

    `inputs` are those that the tree declares; the `answerer` decides at gates, as a function of a
    Question or decisions by path; `config` is passed to every call; the `recorder` receives events.
    A cancelled task ends its turn; with `on_cancel="leave"` the turn can be resumed, for example by
    another worker.
    """

    inputs: Mapping[str, Any] | None
    answerer: Answerer | Mapping[str, Any] | None
    config: RunnableConfig | None
    recorder: Recorder | None
    on_cancel: Literal["end", "leave"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a turn: the answer's message, and the run that produced it.

    `generation` is None if the turn was answered before.
    """

    message: SessionMessage
    generation: Result | None = None

    @property
    def text(self) -> str:
        """Return the answer's text."""
        return self.message.content


def turn_of(tree: Node) -> Node:
    """Return the tree as a turn: the merge mode of its root becomes last_response.

    Raises TreeError that lists all problems.
    """
    root = root_path(as_tree(tree))
    if tree.merge == "none":
        raise TreeError.of(
            "a turn's answer is what its root keeps, and merge='none' keeps nothing; let it be "
            "'last_response'",
            path=root,
        )
    return checked(with_overrides(tree, {root: {"merge": "last_response"}}))


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A user's message to answer; `before` says that it was accepted earlier."""

    message: SessionMessage
    before: bool


class TurnInProgress:
    """A turn, from its message to its result."""

    def __init__(
        self,
        memory: SessionMemory,
        asked: UserTurn,
        runner: ChatRunner,
        artifacts: Artifacts,
        *,
        meta: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.seen: list[BaseMessage] = []
        self.generation: Result | None = None
        self._memory = memory
        self._asked = asked.message
        self._before = asked.before
        self._runner = runner
        self._artifacts = artifacts
        self._ctx = RunContext(run_id=stem_of(memory.past, asked.message.turn), meta=dict(meta))
        self._answer = _answer_of(memory, asked.message.turn)

    @property
    def open(self) -> bool:
        """Return whether there is no answer yet."""
        return self._answer is None

    @property
    def reply(self) -> Reply:
        """Return the result of the turn."""
        assert self._answer is not None, "a turn that has ended has its answer"  # noqa: S101
        return Reply(self._answer, self.generation)

    def options(self, given: TurnInputs) -> dict[str, Any]:
        """Return the options of the run: a recorded run is resumed, otherwise a new one begins."""
        ctx, runs = self._ctx, self._memory.runs()
        ctx.config = given.get("config") or ctx.config
        ctx.recorder = given.get("recorder") or ctx.recorder
        same = {
            "ctx": ctx,
            "runs": runs,
            "runner": self._runner,
            "answerer": given.get("answerer"),
        }
        # A kill between the message and the header of its run leaves a turn whose run begins now.
        if self._before and runs.has(ctx.run_id):
            return {**same, "resume": ctx.run_id}
        return {**same, "messages": self.seen, "inputs": given.get("inputs")}

    def settle(self) -> None:
        """Merge the answer into the session, after the steps that led to it."""
        if self.generation is None:
            # Answered before: after a crash, only the snapshot may be missing.
            self._memory.settle()
            return
        # Steps first: with its answer the turn is over, and a resume would not add what is missing.
        self.log()
        made = self.generation.messages[-1]
        path = ""
        for record in reversed(self._ctx.recorder.journal.records):
            messages = call_messages(record.key, record.messages)
            if made.id in (record.key.message_id(1), *(message.id for message in messages)):
                path = record.path
                break
        self._answer = self._memory.add_response(
            "assistant",
            str(made.text),
            message_id=made.id,
            turn=self._asked.turn,
            run=self._ctx.run_id,
            path=path,
        )

    def log(self) -> None:
        """Add the artifacts to the session's steps, unless it has them already."""
        for artifact in self._artifacts.of(self._ctx.run_id, self._ctx.recorder.journal.records):
            if artifact.id not in self._memory.past.by_id:
                self._memory.add_working_step(
                    artifact.type,
                    artifact.content,
                    path=artifact.path,
                    turn=self._asked.turn,
                    step_id=artifact.id,
                    made_at=artifact.made_at,
                    **artifact.about,
                )

    def fail(self, error: BaseException) -> None:
        """Record the failure of the turn. The error is raised anyway, even if recording fails."""
        told = self._ctx.error or {"type": type(error).__name__, "message": str(error)}
        if not isinstance(error, Exception):
            told = {"type": CANCELLED, "message": type(error).__name__}
        try:
            self.log()
            end_turn(self._memory, self._asked, told)
        except MergepointError as other:
            error.add_note(f"and the session could not note it: {other}")


def accepted(memory: SessionMemory, *, text: str, message_id: str | None) -> UserTurn:
    """Accept the user's message, or find it if it was accepted before."""
    memory.refresh()
    unfinished = memory.unfinished
    # Known before the message is added: a repeated request resumes the turn that it began.
    known = message_id is not None and message_id in memory.past.by_id
    if unfinished is not None and unfinished.id != message_id:
        raise SessionError(
            f"turn {unfinished.turn} of session {memory.session_id!r} is unfinished: it was "
            "killed, or waits at a gate. Continue it (TurnRunner.resume), or end it (cancel_turn)"
        )
    asked = memory.add_response("user", text, message_id=message_id, opens=True)
    # A failed turn can be repeated only while it is the last: later turns have seen its end.
    if known and _answer_of(memory, asked.turn) is None:
        if asked.turn != memory.turn:
            raise SessionError(
                f"turn {asked.turn} of session {memory.session_id!r} failed, and others came after "
                "it; ask again under another message_id"
            )
        check_open(memory.past, asked.turn)
    return UserTurn(asked, known)


def resumable(memory: SessionMemory) -> UserTurn:
    """Return the last turn's message if the turn can be resumed."""
    memory.refresh()
    asked = memory.past.asked(memory.turn)
    if asked is None or not asked.run or _answer_of(memory, asked.turn) is not None:
        raise SessionError(
            f"session {memory.session_id!r} has nothing to resume: its last turn has an answer, or "
            "was not begun by a run"
        )
    check_open(memory.past, asked.turn)
    return UserTurn(asked, before=True)


def _answer_of(memory: SessionMemory, turn: int) -> SessionMessage | None:
    end = memory.past.ended(turn)
    found = memory.past.by_id.get(end.message) if end is not None else None
    return found if isinstance(found, SessionMessage) else None


def end_turn(memory: SessionMemory, asked: SessionMessage, error: Mapping[str, str]) -> WorkingStep:
    """Record the error of a turn instead of an answer."""
    return memory.add_working_step(
        StepType.RESPONSE, turn=asked.turn, path=error.get("path", ""), error=error
    )


class TurnRunner:
    """Runs turns of sessions with one tree, which is compiled once.

    A turn is a block with the session as its parent: the tree's merge mode at the root becomes
    `last_response`. The tree sees the last turns (`last`, None for all) and the newest `facts`, as
    they are at the time of the call; the user's message comes last. Model, form, view, budget and
    prices are those of a ChatRunner; `settings` are its temperature, max_tokens, timeout and
    base_url. `meta` is stored with the run of each turn.

    Raises TreeError for a tree that cannot run, or whose root merges nothing; StepError for `last`
    below 1.
    """

    def __init__(
        self,
        tree: Node,
        *,
        model: str | ChatModel | None = None,
        last: int | None = 20,
        facts: int | None = 50,
        form: Form = "subgraphs",
        view: View | None = None,
        settings: ModelSettings = NO_SETTINGS,
        budget: Budget | Mapping[str, Any] | None = None,
        prices: Mapping[str, Price] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.tree = turn_of(tree)
        self._meta = dict(meta or {})
        self._runner = ChatRunner(
            model,
            form=form,
            view=view,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            timeout=settings.timeout,
            base_url=settings.base_url,
            budget=budget,
            prices=prices,
        )
        self._artifacts = Artifacts(self.tree)
        if last is not None and last < 1:
            raise StepError(f"last={last}: a turn sees its own message at least; give 1 or more")
        self._last = last
        self._facts = facts

    def run(
        self,
        memory: SessionMemory,
        text: str,
        *,
        message_id: str | None = None,
        **given: Unpack[TurnInputs],
    ) -> Reply:
        """Accept the user's message, answer it, and return the answer.

        The run of turn n has the id `<session>.<n>` and a journal of its own. With a `message_id`
        the turn can be repeated: an answered turn is not run again, and an interrupted one is
        resumed without paying twice.

        Raises SessionError while another turn is running or unfinished. Raises errors of steps, and
        leaves the message and an error step in the session. Raises GateOpen if a gate has no
        answer: then the turn stays unfinished, for `resume` with the answers.
        """
        begin = partial(accepted, text=text, message_id=message_id)
        with self._turn(memory, begin, given) as turn:
            if turn.open:
                turn.generation = run_generation(self.tree, **turn.options(given))
        return turn.reply

    async def arun(
        self,
        memory: SessionMemory,
        text: str,
        *,
        message_id: str | None = None,
        **given: Unpack[TurnInputs],
    ) -> Reply:
        """Return the same as `run`, on an event loop; files are read and written in threads."""
        begin = partial(accepted, text=text, message_id=message_id)
        async with in_threads(self._turn(memory, begin, given)) as turn:
            if turn.open:
                options = await run_off_loop(turn.options, given)
                turn.generation = await arun_generation(self.tree, **options)
        return turn.reply

    def resume(self, memory: SessionMemory, **given: Unpack[TurnInputs]) -> Reply:
        """Resume the last turn: one that was killed, waits at a gate, or failed.

        No recorded call is repeated. `inputs` are for a turn that was killed before its run began;
        later they are recorded. Raises SessionError if there is nothing to resume, and the errors
        of `run`.
        """
        with self._turn(memory, resumable, given) as turn:
            turn.generation = run_generation(self.tree, **turn.options(given))
        return turn.reply

    async def aresume(self, memory: SessionMemory, **given: Unpack[TurnInputs]) -> Reply:
        """Return the same as `resume`, on an event loop."""
        async with in_threads(self._turn(memory, resumable, given)) as turn:
            options = await run_off_loop(turn.options, given)
            turn.generation = await arun_generation(self.tree, **options)
        return turn.reply

    def questions(self, memory: SessionMemory) -> list[Question]:
        """Return the questions of the unfinished turn's gates, from its journal.

        Nothing is run; after a restart, these are the questions to show again. The list is empty if
        no turn is unfinished, or it has not reached a gate.
        """
        memory.refresh()
        found = None if memory.unfinished is None else records_of(memory, memory.turn)
        return [] if found is None else open_questions(*found, self.tree)

    @contextmanager
    def _turn(
        self, memory: SessionMemory, begin: Callable[[SessionMemory], UserTurn], given: TurnInputs
    ) -> Iterator[TurnInProgress]:
        """Lock the session, and record how the turn ends."""
        known = TurnInputs.__annotations__
        for name in given.keys() - known:
            raise TypeError(f"a turn takes no {name!r}{nearest(name, known)}")
        # Locked until the end: an unfinished turn that is found under the lock has no process, so
        # it was killed or waits at a gate.
        with memory.holding_turn():
            asked = begin(memory)
            turn = TurnInProgress(memory, asked, self._runner, self._artifacts, meta=self._meta)
            # After `begin`: the message of this turn is the last one that the tree sees.
            turn.seen = view_of(memory.past, last=self._last, facts=self._facts)
            try:
                yield turn
                turn.settle()
            # A pause is no failure. Without an error step the turn stays unfinished and is resumed.
            except GateOpen:
                turn.log()
                raise
            # Also KeyboardInterrupt and a cancelled task, which end the turn as cancelled.
            except BaseException as error:
                leaves = given.get("on_cancel") == "leave"
                if leaves and isinstance(error, asyncio.CancelledError):
                    turn.log()
                else:
                    turn.fail(error)
                raise


def run_turn(
    memory: SessionMemory,
    tree: Node,
    text: str,
    *,
    model: str | ChatModel | None = None,
    last: int | None = 20,
    facts: int | None = 50,
    message_id: str | None = None,
    **given: Unpack[TurnInputs],
) -> Reply:
    """Run one turn of a session; see TurnRunner, which compiles a tree once for many turns."""
    turns = TurnRunner(tree, model=model, last=last, facts=facts)
    return turns.run(memory, text, message_id=message_id, **given)


async def arun_turn(
    memory: SessionMemory,
    tree: Node,
    text: str,
    *,
    model: str | ChatModel | None = None,
    last: int | None = 20,
    facts: int | None = 50,
    message_id: str | None = None,
    **given: Unpack[TurnInputs],
) -> Reply:
    """Return the same as `run_turn`, on an event loop."""
    turns = TurnRunner(tree, model=model, last=last, facts=facts)
    return await turns.arun(memory, text, message_id=message_id, **given)


def cancel_turn(memory: SessionMemory, reason: str = "") -> WorkingStep:
    """End an unfinished turn without an answer; its message and an error step stay.

    Raises SessionError if no turn is unfinished, and while it is running: then cancel the task that
    runs it.
    """
    with memory.holding_turn():
        memory.refresh()
        asked = memory.unfinished
        if asked is None:
            raise SessionError(f"session {memory.session_id!r} has no unfinished turn to cancel")
        return end_turn(memory, asked, {"type": CANCELLED, "message": reason})
