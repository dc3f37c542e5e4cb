"""The steps that a browser shows for a session, derived from the session and its runs.

Running turns, threads that are loaded later, and second tabs use the same functions. So nothing
that the session contains is stored twice, and steps are nested as they ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from mergepoint.apps.chainlit.artifact_places import ArtifactPlaces
from mergepoint.apps.chainlit.buttons import interrupted_buttons, retry_buttons
from mergepoint.apps.chainlit.gate_steps import gates
from mergepoint.apps.chainlit.shown_step import ASSISTANT, ShownStep, shown_id, without_paths
from mergepoint.apps.chainlit.texts import shortened, worded
from mergepoint.apps.chainlit.thread_status import Known, ThreadStatus
from mergepoint.apps.chainlit.turn_parts import MOMENT, Reading, TurnParts
from mergepoint.apps.chainlit.work_steps import work
from mergepoint.apps.cli.output import printable
from mergepoint.session.session_memory import SessionMemory
from mergepoint.tree.nodes import Node

# Chainlit's own name for the step around a turn.
RUN = "on_message"


class ThreadView:
    """Shows the turns of one tree."""

    def __init__(self, tree: Node, reading: Reading) -> None:
        self.tree = tree
        self.places = ArtifactPlaces(tree)
        self._reading = reading

    def all(self, memory: SessionMemory, standing: ThreadStatus, known: Known) -> list[ShownStep]:
        """Return the steps of the whole session."""
        turns = dict.fromkeys(message.turn for message in memory.get_messages())
        return [one for turn in turns for one in self.turn(memory, turn, standing, known)]

    def turn(
        self, memory: SessionMemory, turn: int, standing: ThreadStatus, known: Known
    ) -> list[ShownStep]:
        """Return the steps of one turn in order of time; only the last turn has a status."""
        facts = TurnParts(
            self.places,
            memory,
            turn,
            standing=standing if turn == memory.turn else ThreadStatus(),
            known=known,
            reading=self._reading,
        )
        found = [
            *_said(facts),
            *_around(facts),
            *work(facts),
            *gates(facts),
            *_ending(facts),
            *_cost(facts),
        ]
        return sorted(found, key=lambda one: one.created_at)


def _said(facts: TurnParts) -> Iterator[ShownStep]:
    for message in facts.messages:
        own = message.role == "user"
        yield ShownStep(
            id=shown_id(message.id),
            type="user_message" if own else "assistant_message",
            name="user" if own else ASSISTANT,
            turn=facts.turn,
            parent=None if own else facts.run_at(message.created_at),
            text=shortened((printable if own else worded)(message.content)),
            created_at=message.created_at,
            ended_at=message.created_at,
        )


def _around(facts: TurnParts) -> Iterator[ShownStep]:
    """Yield the steps that contain everything of an answer."""
    for run in facts.runs:
        last = run is facts.runs[-1]
        yield ShownStep(
            id=run.id,
            type="run",
            name=RUN,
            turn=facts.turn,
            parent=run.behind,
            text="",
            created_at=run.since + MOMENT,
            ended_at=None if last and facts.standing.live else facts.last,
        )


def _ending(facts: TurnParts) -> Iterator[ShownStep]:
    """Yield the notice that replaces a missing answer, with its buttons."""
    last = facts.turn == facts.memory.turn
    if facts.end is not None and facts.end.error is not None and not facts.standing.live:
        error = facts.end.error
        if facts.end.cancelled:
            yield _notice(facts, "error", "Cancelled.", facts.end.created_at)
            return
        where = f" at `{error['path']}`" if error.get("path") else ""
        said = without_paths(str(error.get("message")))
        text = worded(f"**{error.get('type')}**{where}: {said}")
        shown = replace(_notice(facts, "error", text, facts.end.created_at), wrong=True)
        yield replace(shown, buttons=retry_buttons(facts.turn) if last else ())
    elif last and facts.end is None and facts.asked is not None and facts.asked.run:
        yield from _unfinished(facts)


def _unfinished(facts: TurnParts) -> Iterator[ShownStep]:
    standing = facts.standing
    if standing.live or standing.questions:
        return
    if standing.elsewhere:
        yield _notice(facts, "unfinished", "Another process is answering this.", facts.last)
        return
    text = "This was interrupted before it had an answer. Nothing that was paid is paid again."
    shown = _notice(facts, "unfinished", text, facts.last)
    yield replace(shown, buttons=interrupted_buttons(facts.turn))


def _notice(facts: TurnParts, what: str, text: str, at: datetime) -> ShownStep:
    return ShownStep(
        id=shown_id(f"{facts.stem}/{what}"),
        type="system_message",
        name=ASSISTANT,
        turn=facts.turn,
        parent=facts.run_at(at + MOMENT),
        text=text,
        created_at=at + MOMENT,
        ended_at=at + MOMENT,
    )


def _cost(facts: TurnParts) -> Iterator[ShownStep]:
    """Yield the costs of a finished turn, below its answer."""
    if facts.end is None or facts.standing.live or not facts.ran.usage.calls:
        return
    at = facts.end.created_at + 2 * MOMENT
    yield ShownStep(
        id=shown_id(f"{facts.stem}/cost"),
        type="llm",
        name=facts.ran.line,
        turn=facts.turn,
        parent=facts.run_at(at),
        text=facts.ran.table,
        created_at=at,
        ended_at=at,
        icon="receipt-text",
    )
