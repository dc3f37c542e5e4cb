"""The data of one turn from session and run, split where a person gave feedback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mergepoint.apps.chainlit.artifact_places import ArtifactPlaces
from mergepoint.apps.chainlit.shown_step import shown_id
from mergepoint.apps.chainlit.thread_status import Known, ThreadStatus
from mergepoint.apps.chainlit.turn_run import TurnRun
from mergepoint.core.paths import SEPARATOR
from mergepoint.session.entries import StepType, WorkingStep
from mergepoint.session.session_memory import SessionMemory

MOMENT = timedelta(microseconds=1)
"""The distance in time between a step and what follows from it, for sorting."""

Reading = Callable[[SessionMemory, str], TurnRun]
"""Function that reads the run of a finished turn."""


@dataclass(frozen=True, slots=True)
class Around:
    """A step around everything that followed a message."""

    since: datetime
    behind: str
    id: str


class TurnParts:
    """One turn. `runs` are the steps around it, `persons` the gates that asked a person."""

    def __init__(
        self,
        places: ArtifactPlaces,
        memory: SessionMemory,
        turn: int,
        *,
        standing: ThreadStatus,
        known: Known,
        reading: Reading,
    ) -> None:
        self.places = places
        self.memory = memory
        self.turn = turn
        self.standing = standing
        self.known = known
        self.messages = [one for one in memory.past.messages if one.turn == turn]
        self.asked = memory.past.asked(turn)
        self.end = memory.past.ended(turn)
        self.ran = self._read(reading)
        self.persons = self.ran.persons
        # The order matters: decisions are derived from the steps, and segments from both.
        steps = [*self._working()]
        self.steps = sorted([*steps, *self._decisions(steps)], key=lambda one: one.created_at)
        self.runs = list(self._segments())
        moments = [one.created_at for one in self.messages]
        moments += [one.created_at for one in self.steps]
        self.last = max(moments, default=datetime.now(UTC))

    @property
    def broken(self) -> bool:
        """Return whether the turn failed or was cancelled."""
        return self.end is not None and self.end.error is not None

    @property
    def stem(self) -> str:
        """Return the id of the turn's run."""
        return f"{self.memory.session_id}.{self.turn}"

    def run_at(self, moment: datetime) -> str | None:
        """Return the step around a moment."""
        found = [run.id for run in self.runs if run.since < moment]
        return found[-1] if found else None

    def bubble(self, step: WorkingStep) -> str:
        """Return the id of the message with a step's feedback."""
        return self.known.words.get(step.id) or shown_id(f"{step.id}/feedback")

    def held(self, path: str) -> list[WorkingStep]:
        """Return the artifact that a gate asks about: the last one before it at the same level."""
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
        """Return the number of artifacts produced at a path."""
        return sum(one.path == path for one in self.steps)

    def _working(self) -> Iterator[WorkingStep]:
        """Yield the working steps, including those of a running turn."""
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

    def _decisions(self, known: Sequence[WorkingStep]) -> Iterator[WorkingStep]:
        """Yield decisions at gates without an artifact: the session has no steps for them."""
        there = {one.path for one in known}
        for one in self.ran.decided:
            if one.path not in there:
                yield WorkingStep(
                    id=f"{self.asked.run if self.asked else ''}/{one.path}/step-1",
                    type=StepType.DECISION,
                    turn=self.turn,
                    created_at=datetime.fromtimestamp(one.at, UTC),
                    content=one.decision.text or "",
                    path=one.path,
                    decision=one.decision.decision,
                    feedback=one.decision.feedback,
                )

    def _segments(self) -> Iterator[Around]:
        """Yield the steps around the answer: one after the message, one after each feedback.

        Chainlit shows nested steps at their parent's position, so what follows a feedback needs a
        parent of its own.
        """
        if self.asked is None or not (self.asked.run or self.steps):
            return
        yield self._segment(self.asked.created_at, shown_id(self.asked.id), self.asked.id)
        for step in self.steps:
            if step.feedback and step.path in self.persons:
                yield self._segment(step.created_at, self.bubble(step), f"{step.id}/feedback")

    def _segment(self, since: datetime, behind: str, entry: str) -> Around:
        return Around(since, behind, self.known.runs.get(behind) or shown_id(f"{entry}/run"))

    def _read(self, reading: Reading) -> TurnRun:
        """Return the turn's run from the journal."""
        if self.standing.records:
            return TurnRun.of(self.standing.records)
        run = self.asked.run if self.asked else ""
        return reading(self.memory, run) if run and self.end is not None else TurnRun()
