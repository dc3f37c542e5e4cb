"""Turn: a tree that answers a user, with a session as its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from typing_extensions import TypedDict

from mergepoint.core.errors import MergepointError, SessionError, TreeError
from mergepoint.core.path import nearest
from mergepoint.record.record import call_messages, response_id
from mergepoint.run.context import RunContext
from mergepoint.run.generation import Generation
from mergepoint.run.recorder import Recorder
from mergepoint.run.runner import ChatRunner
from mergepoint.session.artifacts import Artifacts
from mergepoint.session.draft import check_open, stem_of
from mergepoint.session.memory import SessionMemory
from mergepoint.session.message import SessionMessage
from mergepoint.session.working_step import CANCELLED, StepType, WorkingStep
from mergepoint.tree.check import as_tree, checked
from mergepoint.tree.decision import Answerer
from mergepoint.tree.node import Node, root_path
from mergepoint.tree.overrides import with_overrides


class Given(TypedDict, total=False):
    """What a turn is given beside the user's message; all of it may be left out.

    `inputs` are those that the tree declares; the `answerer` decides at gates, a function of a
    Question or decisions by path; `config` goes to every call; the `recorder` tells of events.
    """

    inputs: Mapping[str, Any] | None
    answerer: Answerer | Mapping[str, Any] | None
    config: RunnableConfig | None
    recorder: Recorder | None


def check_given(given: Given) -> None:
    """Raise TypeError for what a turn does not take."""
    for name in given.keys() - Given.__annotations__:
        raise TypeError(f"a turn takes no {name!r}{nearest(name, Given.__annotations__)}")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a turn came to: the answer's message, and the run that made it.

    `generation` is None where the turn had its answer already.
    """

    message: SessionMessage
    generation: Generation | None = None

    @property
    def text(self) -> str:
        """Give the answer's text."""
        return self.message.content


def turn_of(tree: Node) -> Node:
    """Give the tree as a turn: its root keeps its last response.

    Raises TreeError that lists every fault.
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
class Asked:
    """A user's message that is to be answered; `before` says that it was accepted earlier."""

    message: SessionMessage
    before: bool


class Turning:
    """A turn from its message to what it comes to."""

    def __init__(
        self, memory: SessionMemory, asked: Asked, runner: ChatRunner, artifacts: Artifacts
    ) -> None:
        self.seen: list[BaseMessage] = []
        self.generation: Generation | None = None
        self._memory = memory
        self._asked = asked.message
        self._before = asked.before
        self._runner = runner
        self._artifacts = artifacts
        self._ctx = RunContext(run_id=run_of(memory, asked.message.turn))
        self._answer = _answer_of(memory, asked.message.turn)

    @property
    def open(self) -> bool:
        """Say whether there is no answer yet."""
        return self._answer is None

    @property
    def reply(self) -> Reply:
        """Give what the turn came to."""
        assert self._answer is not None, "a turn that has ended has its answer"  # noqa: S101
        return Reply(self._answer, self.generation)

    def options(self, given: Given) -> dict[str, Any]:
        """Give the options of the run: one that is on record goes on, else a new one begins."""
        ctx, runs = self._ctx, self._memory.runs()
        ctx.config = given.get("config") or ctx.config
        ctx.recorder = given.get("recorder") or ctx.recorder
        same = {
            "ctx": ctx,
            "runs": runs,
            "runner": self._runner,
            "answerer": given.get("answerer"),
        }
        if self._before and runs.has(ctx.run_id):
            return {**same, "resume": ctx.run_id}
        return {**same, "messages": self.seen, "inputs": given.get("inputs")}

    def settle(self) -> None:
        """Merge the answer into the session, with the steps that led to it before it."""
        if self.generation is None:
            self._memory.settle()
            return
        self.log()
        made = self.generation.messages[-1]
        self._answer = self._memory.add_response(
            str(made.text),
            message_id=made.id,
            turn=self._asked.turn,
            run=self._ctx.run_id,
            path=self._path_of(str(made.id)),
        )

    def log(self) -> None:
        """Add what was made on the way to the session's steps."""
        for artifact in self._artifacts.of(self._ctx.run_id, self._ctx.recorder.journal.records):
            artifact.added_to(self._memory, self._asked.turn)

    def fail(self, error: BaseException) -> None:
        """Note what came in place of an answer. The error goes on, also where that fails."""
        told = self._ctx.error or {"type": type(error).__name__, "message": str(error)}
        if not isinstance(error, Exception):
            told = {"type": CANCELLED, "message": type(error).__name__}
        try:
            self.log()
            ended(self._memory, self._asked, told)
        except MergepointError as other:
            error.add_note(f"and the session could not note it: {other}")

    def _path_of(self, message_id: str) -> str:
        for record in reversed(self._ctx.recorder.journal.records):
            made = call_messages(record.key, record.messages)
            if message_id in (response_id(record.key), *(message.id for message in made)):
                return record.path
        return ""


def run_of(memory: SessionMemory, turn: int) -> str:
    """Give the id of a turn's run."""
    return stem_of(memory.past, turn)


def accepted(memory: SessionMemory, *, text: str, message_id: str | None) -> Asked:
    """Accept what the user says, or find it where it was accepted before."""
    memory.refresh()
    unfinished = memory.unfinished
    known = message_id is not None and message_id in memory.past.by_id
    if unfinished is not None and unfinished.id != message_id:
        raise SessionError(
            f"turn {unfinished.turn} of session {memory.session_id!r} is unfinished: it was "
            "killed, or waits at a gate. Go on with it (TurnRunner.resume), or end it (cancel_turn)"
        )
    asked = memory.add_response(text, role="user", message_id=message_id, opens=True)
    if known and _answer_of(memory, asked.turn) is None:
        _check_last(memory, asked.turn)
    return Asked(asked, known)


def resumable(memory: SessionMemory) -> Asked:
    """Give the last turn's message where the turn can go on."""
    memory.refresh()
    asked = memory.past.asked(memory.turn)
    if asked is None or not asked.run or _answer_of(memory, asked.turn) is not None:
        raise SessionError(
            f"session {memory.session_id!r} has nothing to resume: its last turn has an answer, or "
            "was not begun by a run"
        )
    check_open(memory.past, asked.turn)
    return Asked(asked, before=True)


def _check_last(memory: SessionMemory, turn: int) -> None:
    """Raise SessionError for a turn that was left behind, or was cancelled."""
    if turn != memory.turn:
        raise SessionError(
            f"turn {turn} of session {memory.session_id!r} failed, and others came after it; ask "
            "again under another message_id"
        )
    check_open(memory.past, turn)


def _answer_of(memory: SessionMemory, turn: int) -> SessionMessage | None:
    end = memory.past.ended(turn)
    found = memory.past.by_id.get(end.message) if end is not None else None
    return found if isinstance(found, SessionMessage) else None


def ended(memory: SessionMemory, asked: SessionMessage, error: Mapping[str, str]) -> WorkingStep:
    """Write down what a turn came to in place of an answer."""
    return memory.add_working_step(
        StepType.RESPONSE, turn=asked.turn, path=error.get("path", ""), error=error
    )
