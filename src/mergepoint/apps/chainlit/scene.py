"""Scene: what a browser shows of a session, worked out from the session and its runs alone.

A turn that runs, a thread that is loaded later, and a second tab are shown by the same functions.
So nothing is stored for the browser that the session holds, and steps are nested as they ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from mergepoint.apps.chainlit.asking import gates
from mergepoint.apps.chainlit.buttons import interrupted_buttons, retry_buttons
from mergepoint.apps.chainlit.places import Places
from mergepoint.apps.chainlit.shown import ASSISTANT, Shown, shown_id
from mergepoint.apps.chainlit.standing import Known, Standing
from mergepoint.apps.chainlit.texts import shortened
from mergepoint.apps.chainlit.turn_facts import MOMENT, Asked, TurnFacts
from mergepoint.apps.chainlit.work import work
from mergepoint.apps.cli.output import printable
from mergepoint.session.memory import SessionMemory
from mergepoint.tree.node import Node

RUN = "on_message"  # the name by which Chainlit knows the step around a turn


class Scenes:
    """Shows turns of one tree."""

    def __init__(self, tree: Node, asked: Asked) -> None:
        self.tree = tree
        self._places = Places(tree)
        self._asked = asked

    def all(self, memory: SessionMemory, standing: Standing, known: Known) -> list[Shown]:
        """Give the whole session."""
        turns = dict.fromkeys(message.turn for message in memory.get_messages())
        return [one for turn in turns for one in self.turn(memory, turn, standing, known)]

    def turn(
        self, memory: SessionMemory, turn: int, standing: Standing, known: Known
    ) -> list[Shown]:
        """Give one turn in the order of its times; only the last one stands in some way."""
        facts = TurnFacts(
            self._places,
            memory,
            turn,
            standing=standing if turn == memory.turn else Standing(),
            known=known,
            asked=self._asked,
        )
        found = [*_said(facts), *_around(facts), *work(facts), *gates(facts), *_ending(facts)]
        return sorted(found, key=lambda one: one.created_at)


def _said(facts: TurnFacts) -> Iterator[Shown]:
    for message in facts.messages:
        own = message.role == "user"
        yield Shown(
            id=shown_id(message.id),
            type="user_message" if own else "assistant_message",
            name="user" if own else ASSISTANT,
            turn=facts.turn,
            parent=None if own else facts.run_at(message.created_at),
            text=shortened(printable(message.content)),
            created_at=message.created_at,
            ended_at=message.created_at,
        )


def _around(facts: TurnFacts) -> Iterator[Shown]:
    """Give the step around everything that answers."""
    for run in facts.runs:
        last = run is facts.runs[-1]
        yield Shown(
            id=run.id,
            type="run",
            name=RUN,
            turn=facts.turn,
            parent=run.behind,
            text="",
            created_at=run.since + MOMENT,
            ended_at=None if last and facts.standing.live else facts.last,
        )


def _ending(facts: TurnFacts) -> Iterator[Shown]:
    """Give what came in place of an answer, and what can be done about it."""
    last = facts.turn == facts.memory.turn
    if facts.end is not None and facts.end.error is not None and not facts.standing.live:
        error = facts.end.error
        if facts.end.cancelled:
            yield _notice(facts, "error", "Cancelled.", facts.end.created_at)
            return
        where = f" at `{error['path']}`" if error.get("path") else ""
        text = printable(f"**{error.get('type')}**{where}: {error.get('message')}")
        shown = replace(_notice(facts, "error", text, facts.end.created_at), wrong=True)
        yield replace(shown, buttons=retry_buttons(facts.turn) if last else ())
    elif last and facts.end is None and facts.asked is not None and facts.asked.run:
        yield from _unfinished(facts)


def _unfinished(facts: TurnFacts) -> Iterator[Shown]:
    standing = facts.standing
    if standing.live or standing.questions:
        return
    if standing.elsewhere:
        yield _notice(facts, "unfinished", "Another process is answering this.", facts.last)
        return
    text = "This was interrupted before it had an answer. Nothing that was paid is paid again."
    shown = _notice(facts, "unfinished", text, facts.last)
    yield replace(shown, buttons=interrupted_buttons(facts.turn))


def _notice(facts: TurnFacts, what: str, text: str, at: datetime) -> Shown:
    return Shown(
        id=shown_id(f"{facts.stem}/{what}"),
        type="assistant_message",
        name=ASSISTANT,
        turn=facts.turn,
        parent=facts.run_at(at + MOMENT),
        text=text,
        created_at=at + MOMENT,
        ended_at=at + MOMENT,
    )
