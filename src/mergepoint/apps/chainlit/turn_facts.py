"""TurnFacts: a turn as session and run tell it, and how it is cut where a person said something."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mergepoint.apps.chainlit.places import Places
from mergepoint.apps.chainlit.shown import shown_id
from mergepoint.apps.chainlit.standing import Known, Standing
from mergepoint.core.path import SEPARATOR
from mergepoint.session.memory import SessionMemory
from mergepoint.session.working_step import StepType, WorkingStep

MOMENT = timedelta(microseconds=1)
"""What follows from something comes this much behind it."""

Asked = Callable[[SessionMemory, str], Collection[str]]
"""Gives the paths of the gates at which a run asked a person, and not a rule."""


@dataclass(frozen=True, slots=True)
class Around:
    """A step around what came since a moment, behind a message."""

    since: datetime
    behind: str
    id: str


class TurnFacts:
    """One turn. `runs` are the steps around it, `persons` the gates that asked a person."""

    def __init__(
        self,
        places: Places,
        memory: SessionMemory,
        turn: int,
        *,
        standing: Standing,
        known: Known,
        asked: Asked,
    ) -> None:
        self.places = places
        self.memory = memory
        self.turn = turn
        self.standing = standing
        self.known = known
        self.messages = [one for one in memory.past.messages if one.turn == turn]
        self.asked = memory.past.asked(turn)
        self.end = memory.past.ended(turn)
        self.steps = list(self._working())
        self.persons = self._asked_at(asked)
        self.runs = list(self._segments())
        moments = [one.created_at for one in self.messages]
        moments += [one.created_at for one in self.steps]
        self.last = max(moments, default=datetime.now(UTC))

    @property
    def broken(self) -> bool:
        """Say whether the turn came to an error, or was cancelled."""
        return self.end is not None and self.end.error is not None

    @property
    def stem(self) -> str:
        """Give the id of the turn's run."""
        return f"{self.memory.session_id}.{self.turn}"

    def run_at(self, moment: datetime) -> str | None:
        """Give the step that is around what came at a moment."""
        found = [run.id for run in self.runs if run.since < moment]
        return found[-1] if found else None

    def bubble(self, step: WorkingStep) -> str:
        """Give the id of the message that is a feedback at a gate."""
        return self.known.words.get(step.id) or shown_id(f"{step.id}/feedback")

    def held(self, path: str) -> list[WorkingStep]:
        """Give the artifact that a gate asks about: below it, else the last one before it."""
        kind, place = self.places.artifacts.type_at(path), path.rpartition(SEPARATOR)[0]
        found = [
            one
            for one in self.steps
            if one.type is kind
            and one.path.startswith(f"{place}{SEPARATOR}")
            and not self.places.is_gate(one.path)
        ]
        return found[-1:]

    def made(self, path: str) -> int:
        """Give how many artifacts were made at a path."""
        return sum(one.path == path for one in self.steps)

    def _working(self) -> Iterator[WorkingStep]:
        """Give the working steps, with those of a run that has not ended yet."""
        known = set()
        for step in self.memory.past.steps_of(self.turn):
            known.add(step.id)
            if step.type is not StepType.RESPONSE:
                yield step
        run = self.asked.run if self.asked else ""
        for made in self.places.artifacts.of(run, self.standing.records) if run else ():
            if made.id not in known:
                yield WorkingStep(
                    id=made.id,
                    type=made.type,
                    turn=self.turn,
                    created_at=made.made_at,
                    content=made.content,
                    path=made.path,
                    **made.about,
                )

    def _segments(self) -> Iterator[Around]:
        """Give the steps around what answers: one behind the message, one behind each feedback.

        In Chainlit what stands in a step stands where the step does, so that what a feedback led
        to has to be in another one.
        """
        if self.asked is None or not (self.asked.run or self.steps):
            return
        yield self._segment(self.asked.created_at, shown_id(self.asked.id), self.asked.id)
        for step in self.steps:
            if step.feedback and step.path in self.persons:
                yield self._segment(step.created_at, self.bubble(step), f"{step.id}/feedback")

    def _segment(self, since: datetime, behind: str, entry: str) -> Around:
        return Around(since, behind, self.known.runs.get(behind) or shown_id(f"{entry}/run"))

    def _asked_at(self, asked: Asked) -> Collection[str]:
        """Give the gates at which a person was asked, and not a rule."""
        records = self.standing.records
        if records:
            return {record.path for record in records if record.asks}
        gates = any(self.places.is_gate(step.path) for step in self.steps)
        run = self.asked.run if self.asked else ""
        return asked(self.memory, run) if run and (gates or self.broken) else ()
