"""Past: what a session holds, as the fold of its journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime

from mergepoint.core.errors import SessionError
from mergepoint.core.merge import MergeMode, merge
from mergepoint.core.state import State
from mergepoint.session.entry import Cleared, Entry, SessionHeader
from mergepoint.session.fact import Fact
from mergepoint.session.message import Role, SessionMessage
from mergepoint.session.working_step import StepType, WorkingStep

Conversation = State[SessionMessage]

_MODES: dict[Role, MergeMode] = {
    "user": "all_messages",
    "assistant": "last_response",
    "system": "all_messages",
}


def kept_of(message: SessionMessage) -> Conversation:
    """Give what a session's parent gets when a message is accepted, or at the exit of a turn.

    A turn is a block that keeps its last response, and the session is its parent: what is let out
    is appended to it, as at the exits of compiled graphs. Raises MergeError for an answer that is
    none.
    """
    return merge(State(), _MODES[message.role], State((message,)))


class Past:
    """Messages, facts and steps of a session, and what they are found by.

    Lists that only grow, until the session is cleared: another entry costs the same however many
    there are. `turn` counts the user's messages, those
    that were cleared too, so that no run's id is used twice.
    """

    def __init__(self, header: SessionHeader) -> None:
        self.header = header
        self.messages: list[SessionMessage] = []
        self.facts: list[Fact] = []
        self.steps: list[WorkingStep] = []
        self.by_id: dict[str, Entry] = {}
        self.turn = 0
        self.updated_at: datetime = header.created_at
        self._asked: dict[int, SessionMessage] = {}
        self._ended: dict[int, WorkingStep] = {}
        self._steps: dict[int, list[WorkingStep]] = defaultdict(list)

    @property
    def state(self) -> Conversation:
        """Give the conversation as a state."""
        return State(tuple(self.messages))

    def commit(self, entry: Entry) -> None:
        """Take in an entry that was written just now; a message by the merge."""
        self._index(entry)
        if isinstance(entry, SessionMessage):
            self.messages += kept_of(entry).messages

    def take(self, entries: Iterable[Entry]) -> None:
        """Take in entries that were merged by those who wrote them, in the journal's order.

        Raises SessionError for an id that stands there twice.
        """
        for entry in entries:
            self._index(entry)
            if isinstance(entry, SessionMessage):
                self.messages.append(entry)

    def asked(self, turn: int) -> SessionMessage | None:
        """Give the user's message of a turn."""
        return self._asked.get(turn)

    def ended(self, turn: int) -> WorkingStep | None:
        """Give what a turn came to, or None while it is open."""
        return self._ended.get(turn)

    def steps_of(self, turn: int) -> tuple[WorkingStep, ...]:
        """Give the steps of a turn."""
        return tuple(self._steps.get(turn, ()))

    @property
    def unfinished(self) -> SessionMessage | None:
        """Give the user's message that a run was to answer and that nothing was said to."""
        asked = self._asked.get(self.turn)
        return asked if asked is not None and asked.run and self.turn not in self._ended else None

    def since_turn(self, last: int | None) -> tuple[SessionMessage, ...]:
        """Give the messages of the last turns, a turn beginning with what the user says."""
        found = self.messages if last is None else reversed([*self._backwards(last)])
        return tuple(found)

    def _backwards(self, turns: int) -> Iterator[SessionMessage]:
        for message in reversed(self.messages):
            if turns == 0:
                return
            yield message
            turns -= message.role == "user"

    def _index(self, entry: Entry) -> None:
        if entry.id in self.by_id:
            raise SessionError(
                f"session {self.header.session_id!r} holds two entries with the id {entry.id!r}; "
                "mergepoint.session.repair.repair_session leaves out the second"
            )
        self.by_id[entry.id] = entry
        self.updated_at = max(self.updated_at, entry.created_at)
        if isinstance(entry, WorkingStep):
            self._log(entry)
        elif isinstance(entry, Fact):
            self.facts.append(entry)
        elif isinstance(entry, Cleared):
            self._clear()
        elif entry.role == "user":
            self.turn = max(self.turn, entry.turn)
            self._asked[entry.turn] = entry
        elif entry.role == "assistant":
            self._log(response_of(entry))

    def _log(self, step: WorkingStep) -> None:
        self.steps.append(step)
        self._steps[step.turn].append(step)
        if step.type is StepType.RESPONSE:
            self._ended[step.turn] = step

    def _clear(self) -> None:
        self.messages = []
        self.facts = []
        self.steps = []
        self._asked.clear()
        self._ended.clear()
        self._steps.clear()


def response_of(message: SessionMessage) -> WorkingStep:
    """Give the record of an answer, which points to its message and does not repeat it."""
    return WorkingStep(
        id=f"{message.id}/response",
        type=StepType.RESPONSE,
        turn=message.turn,
        created_at=message.created_at,
        path=message.path,
        message=message.id,
    )
