"""TurnRunner: turns of sessions, run with one tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel
from typing_extensions import Unpack

from mergepoint.core.errors import GateOpen, SessionError, StepError
from mergepoint.models.prices import Price
from mergepoint.models.view import View
from mergepoint.record.questions import open_questions
from mergepoint.run.generation import arun_generation, run_generation
from mergepoint.run.graph import Form
from mergepoint.run.runner import ChatRunner
from mergepoint.session.artifacts import Artifacts
from mergepoint.session.memory import SessionMemory
from mergepoint.session.turn import (
    Asked,
    Given,
    Reply,
    Turning,
    accepted,
    check_given,
    ended,
    resumable,
    turn_of,
)
from mergepoint.session.view import view_of
from mergepoint.session.working_step import CANCELLED, WorkingStep
from mergepoint.tree.budget import Budget
from mergepoint.tree.decision import Question
from mergepoint.tree.node import Node


class TurnRunner:
    """Runs turns of sessions with one tree, which is compiled once.

    A turn is a block that keeps its last response, and the session is its parent: the tree's own
    merge at the root becomes `last_response`. The tree sees the last turns (`last`, None for all)
    and the newest `facts`, as a view at the time of the call; the user's message is the last of
    what it sees. Model, form, view, budget and prices are those of a ChatRunner.

    Raises TreeError for a tree that cannot run, or whose root keeps nothing; StepError for `last`
    below 1.
    """

    def __init__(
        self,
        tree: Node,
        *,
        model: str | BaseChatModel | None = None,
        last: int | None = 20,
        facts: int | None = 50,
        form: Form = "subgraphs",
        view: View | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.tree = turn_of(tree)
        self._runner = ChatRunner(model, form=form, view=view, budget=budget, prices=prices)
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
        **given: Unpack[Given],
    ) -> Reply:
        """Accept what the user says, answer it, and give the answer.

        The run of turn n has the id `<session>.<n>` and a journal of its own. A `message_id`
        makes the turn one that can be asked for again: one that is answered is not run again, one
        that was broken off is resumed and pays nothing twice.

        Raises SessionError while another turn is running or unfinished; what a step raises, with
        the message and an error step left in the session; GateOpen where nobody answers at a
        gate: then the turn stays unfinished, for `resume` with the answers.
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
        **given: Unpack[Given],
    ) -> Reply:
        """Do what `run` does, on an event loop."""
        begin = partial(accepted, text=text, message_id=message_id)
        with self._turn(memory, begin, given) as turn:
            if turn.open:
                turn.generation = await arun_generation(self.tree, **turn.options(given))
        return turn.reply

    def resume(self, memory: SessionMemory, **given: Unpack[Given]) -> Reply:
        """Go on with the last turn: one that was killed, waits at a gate, or failed.

        No call that is on record is made again. `inputs` are for a turn that was killed before
        its run began; later they are on record. Raises SessionError where nothing is to be
        resumed, and what `run` raises.
        """
        with self._turn(memory, resumable, given) as turn:
            turn.generation = run_generation(self.tree, **turn.options(given))
        return turn.reply

    async def aresume(self, memory: SessionMemory, **given: Unpack[Given]) -> Reply:
        """Do what `resume` does, on an event loop."""
        with self._turn(memory, resumable, given) as turn:
            turn.generation = await arun_generation(self.tree, **turn.options(given))
        return turn.reply

    def questions(self, memory: SessionMemory) -> list[Question]:
        """Give what the gates of the unfinished turn ask, from its journal alone.

        Nothing is run; after a restart this is what is to be shown again. Where no turn is
        unfinished, or it has not come to a gate, there are none.
        """
        memory.refresh()
        asked, runs = memory.unfinished, memory.runs()
        if asked is None or not runs.has(asked.run):
            return []
        return open_questions(*runs.read(asked.run), self.tree)

    @contextmanager
    def _turn(
        self, memory: SessionMemory, begin: Callable[[SessionMemory], Asked], given: Given
    ) -> Iterator[Turning]:
        """Hold the session, and write down how the turn ends."""
        check_given(given)
        with memory.holding_turn():
            asked = begin(memory)
            turn = Turning(memory, asked, self._runner, self._artifacts)
            turn.seen = view_of(memory.past, last=self._last, facts=self._facts)
            try:
                yield turn
                turn.settle()
            except GateOpen:
                turn.log()
                raise
            except BaseException as error:
                turn.fail(error)
                raise


def run_turn(
    memory: SessionMemory,
    tree: Node,
    text: str,
    *,
    model: str | BaseChatModel | None = None,
    last: int | None = 20,
    facts: int | None = 50,
    message_id: str | None = None,
    **given: Unpack[Given],
) -> Reply:
    """Run one turn of a session; see TurnRunner, which compiles a tree once for many turns."""
    turns = TurnRunner(tree, model=model, last=last, facts=facts)
    return turns.run(memory, text, message_id=message_id, **given)


async def arun_turn(
    memory: SessionMemory,
    tree: Node,
    text: str,
    *,
    model: str | BaseChatModel | None = None,
    last: int | None = 20,
    facts: int | None = 50,
    message_id: str | None = None,
    **given: Unpack[Given],
) -> Reply:
    """Do what `run_turn` does, on an event loop."""
    turns = TurnRunner(tree, model=model, last=last, facts=facts)
    return await turns.arun(memory, text, message_id=message_id, **given)


def cancel_turn(memory: SessionMemory, reason: str = "") -> WorkingStep:
    """End an unfinished turn without an answer; its message and an error step stay.

    Raises SessionError where no turn is unfinished, and while it is running: then cancel the task
    that runs it.
    """
    with memory.holding_turn():
        memory.refresh()
        asked = memory.unfinished
        if asked is None:
            raise SessionError(f"session {memory.session_id!r} has no unfinished turn to cancel")
        return ended(memory, asked, {"type": CANCELLED, "message": reason})
