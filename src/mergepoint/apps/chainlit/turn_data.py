"""The data of one turn, from the session, the journal, and the events of a running turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from mergepoint.apps.chainlit.shown_step import escape_directives, fenced, shown_id, truncated
from mergepoint.apps.cli.output import clock, count, printable
from mergepoint.core.paths import SEPARATOR, join
from mergepoint.core.text import money
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.transcript import Usage, usage_of
from mergepoint.report.run_state import busy_seconds
from mergepoint.session.entries import StepType, WorkingStep
from mergepoint.session.session_memory import SessionMemory
from mergepoint.session.turn_runner import STEP, Artifacts
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Gate, Node, children, root_path, walk
from mergepoint.tree.prompts import as_text

if TYPE_CHECKING:
    from mergepoint.apps.cli.turn_queue import InQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A model call of a run, for the cost table of an answer.

    A call that failed has a `problem`, and the text that the model answered, if any.
    """

    path: str
    model: str
    usage: Usage
    seconds: float
    problem: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExecution:
    """How a program ended: its wall time, and the limit that stopped it, if any."""

    seconds: float
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """A person's decision at a gate, and when it was made."""

    path: str
    at: float
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRun:
    """A run's gates, model calls, and programs, by path.

    `human_gates` are the gates that asked a person, and `subjects` the texts that they asked about,
    by path. `seconds` is the time in which calls were in progress, without waiting for decisions.
    """

    human_gates: frozenset[str] = frozenset()
    subjects: Mapping[str, Sequence[str]] = field(default_factory=dict)
    decisions: Sequence[GateDecision] = ()
    calls: Sequence[CallRow] = ()
    executions: Mapping[str, ProgramExecution] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    @classmethod
    def of(cls, records: Iterable[CallRecord]) -> TurnRun:
        """Return the run that records describe."""
        found = [one for one in records if not one.begun]
        asked = frozenset(one.path for one in found if one.asks)
        return cls(
            human_gates=asked,
            subjects={
                one.path: subject_text(one.messages, one.outputs) for one in found if one.asks
            },
            decisions=tuple(
                GateDecision(path=one.path, at=one.ended, decision=Decision.of(one.value))
                for one in found
                if one.kind == "gate" and one.answered and one.path in asked
            ),
            calls=tuple(_model_calls(found)),
            executions={
                one.path: ProgramExecution(
                    seconds=max(0.0, one.ended - one.started), stopped=_stopped(one.value)
                )
                for one in found
                if one.kind == "call" and one.answered
            },
            usage=usage_of(found),
            seconds=busy_seconds(one for one in found if one.source == "live"),
        )

    @property
    def line(self) -> str:
        """Return the costs of the run, on one line."""
        known = self.usage.known_cost
        least = "at least " if self.usage.unknown_cost_calls else ""
        cost = "cost unknown" if known is None else f"{least}{_dollars(known)}"
        parts = [count(self.usage.calls, "call"), count(self.usage.total_tokens, "token"), cost]
        return " · ".join([*parts, clock(self.seconds)])

    @property
    def table(self) -> str:
        """Return the run's model calls as a Markdown table, and failed answers in full below."""
        lines = ["| step | model | tokens in | tokens out | cost | time |"]
        lines.append("| :-- | :-- | --: | --: | --: | --: |")
        failures: list[str] = []
        for one in self.calls:
            path = f"{one.path} (failed)" if one.problem else one.path
            cells = [escape_directives(path), escape_directives(one.model)]
            cells += [f"{one.usage.input_tokens:,}", f"{one.usage.output_tokens:,}"]
            cost = one.usage.known_cost
            cells += ["unknown" if cost is None else _dollars(cost), clock(one.seconds)]
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
            if one.problem:
                failures.append(
                    escape_directives(f"**{one.path}** failed: {printable(one.problem)}")
                )
                failures += [fenced(truncated(printable(one.text)), "text")] if one.text else []
        return "\n\n".join(["\n".join(lines), *failures])


def subject_text(messages: Iterable[BaseMessage], outputs: Mapping[str, Any]) -> list[str]:
    """Return the subject of a gate as Markdown: messages, and outputs that add something.

    If there are answers, prompts are omitted: the decision is about the answers.
    """
    subject = [*messages]
    answers = [message for message in subject if message.type != "human"]
    shown = [str(message.text) for message in answers or subject]
    texts = {key: as_text(value) for key, value in outputs.items()}
    shown += [f"**{key}:** {value}" for key, value in texts.items() if value not in shown]
    return [truncated(escape_directives(text)) for text in shown]


def _stopped(value: Any) -> str:
    stopped = value.get("stopped") if isinstance(value, Mapping) else None
    return stopped if isinstance(stopped, str) else ""


def _dollars(usd: float) -> str:
    return money(usd) if usd else "$0"


def _model_calls(records: Iterable[CallRecord]) -> Iterator[CallRow]:
    for one in records:
        used = Usage.of(one)
        if used.calls:
            seconds = max(0.0, one.ended - one.started)
            yield CallRow(
                path=one.path,
                model=one.model,
                usage=used,
                seconds=seconds,
                problem=_problem_of(one),
                text=one.response if one.failed else "",
            )


def _problem_of(record: CallRecord) -> str:
    """Return what failed and where in the answer, or "" for a call that succeeded."""
    error = record.error
    if not record.failed or error is None:
        return ""
    where = ", ".join(f"{name} {place}" for name, place in error.get("position", {}).items())
    problem = ": ".join(filter(None, (error["type"], error.get("message"))))
    return f"{problem} ({where})" if where else problem


@dataclass(frozen=True, slots=True)
class Partial:
    """A call in progress without a record; `number` counts the calls at its path."""

    path: str
    number: int
    started: datetime
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStatus:
    """State of the last turn: its records, open questions, and calls in progress.

    `live` means that this process runs it or follows it, `elsewhere` that another process runs it.
    `worker` says where it is if it was handed to a queue.
    """

    records: Sequence[CallRecord] = ()
    questions: Sequence[Question] = ()
    partial: Sequence[Partial] = ()
    live: bool = False
    elsewhere: bool = False
    worker: InQueue = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainlitIds:
    """Ids that Chainlit assigned: steps around turns by message, and feedback by entry."""

    turn_steps: Mapping[str, str] = field(default_factory=dict)
    replies: Mapping[str, str] = field(default_factory=dict)


class ArtifactPlaces:
    """A tree's artifacts, gates, drafts, and answering steps, by path."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.artifacts = Artifacts(tree)
        self._answers = set(_answering(tree, root_path(tree)))
        self._drafts = dict(_drafts(tree, root_path(tree)))

    def drafted(self, path: str) -> str | None:
        """Return the path in a run of the artifact that a step drafts, or None."""
        found = self._drafts.get(self.artifacts.place(path))
        return None if found is None else join(path.rpartition(SEPARATOR)[0], found)

    def answers(self, path: str) -> bool:
        """Return whether a path's output can be the tree's answer."""
        return self.artifacts.place(path) in self._answers

    def is_gate(self, path: str) -> bool:
        """Return whether the node at a path is a gate."""
        return isinstance(self.artifacts.node_at(path), Gate)


def _answering(node: Node, path: str) -> Iterator[str]:
    """Yield the paths of the steps whose text can be the tree's answer."""
    if isinstance(node, Step):
        yield path
    for at, child in reversed([*children(node, path)]):
        if child.merge != "none":
            yield from _answering(child, at)
            return


# A draft is shown in the place of its artifact while it is written.
def _drafts(node: Node, path: str) -> Iterator[tuple[str, str]]:
    """Yield the steps that draft an artifact of a later sibling, with that artifact's path.

    The path is relative to their common parent.
    """
    below = [*children(node, path)]
    for number, (at, child) in enumerate(below):
        if isinstance(child, Step) and STEP not in child.meta and child.merge == "none":
            home = f"{at.rpartition(SEPARATOR)[0]}{SEPARATOR}"
            artifacts = [
                place.removeprefix(home)
                for later, sibling in below[number + 1 :]
                for place, one in walk(sibling, later)
                if STEP in one.meta and not isinstance(one, Gate)
            ]
            yield from ((at, one) for one in artifacts[:1])
        yield from _drafts(child, at)


# Chainlit sorts by time: steps that belong together would otherwise have the same.
MOMENT = timedelta(microseconds=1)
"""The distance in time between a step and its consequences, for sorting."""

Reading = Callable[[SessionMemory, str], TurnRun]
"""Function that reads the run of a finished turn."""


@dataclass(frozen=True, slots=True)
class TurnStep:
    """A step around everything that followed a message."""

    started: datetime
    parent: str
    id: str


class TurnData:
    """One turn, split where a person gave feedback.

    `turn_steps` are the steps around its parts, `human_gates` the gates that asked a person.
    """

    def __init__(
        self,
        places: ArtifactPlaces,
        memory: SessionMemory,
        turn: int,
        *,
        status: ThreadStatus,
        ids: ChainlitIds,
        reading: Reading,
    ) -> None:
        self.places = places
        self.memory = memory
        self.turn = turn
        self.status = status
        self.ids = ids
        self.messages = [one for one in memory.past.messages if one.turn == turn]
        self.asked = memory.past.asked(turn)
        self.end = memory.past.ended(turn)
        self.run_data = self._read(reading)
        self.human_gates = self.run_data.human_gates
        # The order matters: decisions are derived from the steps, and turn steps from both.
        steps = [*self._working()]
        self.steps = sorted([*steps, *self._decisions(steps)], key=lambda one: one.created_at)
        self.turn_steps = list(self._turn_steps_of())
        moments = [one.created_at for one in self.messages]
        moments += [one.created_at for one in self.steps]
        self.last = max(moments, default=datetime.now(UTC))

    @property
    def broken(self) -> bool:
        """Return whether the turn failed or was cancelled."""
        return self.end is not None and self.end.error is not None

    @property
    def run_id(self) -> str:
        """Return the id of the turn's run."""
        return f"{self.memory.session_id}.{self.turn}"

    def run_at(self, moment: datetime) -> str | None:
        """Return the step around a moment."""
        found = [run.id for run in self.turn_steps if run.started < moment]
        return found[-1] if found else None

    def feedback_id(self, step: WorkingStep) -> str:
        """Return the id of the message with a step's feedback."""
        return self.ids.replies.get(step.id) or shown_id(f"{step.id}/feedback")

    def subject(self, path: str) -> list[WorkingStep]:
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

    def _working(self) -> Iterator[WorkingStep]:
        """Yield the working steps, including those of a running turn."""
        stored = set()
        for step in self.memory.past.steps_of(self.turn):
            stored.add(step.id)
            # The answer is shown as the session's message instead.
            if step.type is not StepType.RESPONSE:
                yield step
        run = self.asked.run if self.asked else ""
        # The session stores working steps when the turn ends: until then, the run has them.
        for artifact in self.places.artifacts.of(run, self.status.records) if run else ():
            if artifact.id not in stored:
                yield WorkingStep(
                    id=artifact.id,
                    type=artifact.type,
                    turn=self.turn,
                    created_at=artifact.made_at,
                    content=artifact.content,
                    path=artifact.path,
                    **artifact.about,
                )

    def _decisions(self, steps: Sequence[WorkingStep]) -> Iterator[WorkingStep]:
        """Yield decisions at gates without an artifact: the session has no steps for them."""
        stored = {one.path for one in steps}
        for one in self.run_data.decisions:
            if one.path not in stored:
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

    def _turn_steps_of(self) -> Iterator[TurnStep]:
        """Yield the steps around the answer: one after the message, one after each feedback.

        Chainlit shows nested steps at their parent's position, so what follows a feedback needs a
        parent of its own.
        """
        if self.asked is None or not (self.asked.run or self.steps):
            return
        yield self._turn_step(self.asked.created_at, shown_id(self.asked.id), self.asked.id)
        for step in self.steps:
            if step.feedback and step.path in self.human_gates:
                yield self._turn_step(
                    step.created_at, self.feedback_id(step), f"{step.id}/feedback"
                )

    def _turn_step(self, started: datetime, parent: str, entry: str) -> TurnStep:
        return TurnStep(
            started, parent, self.ids.turn_steps.get(parent) or shown_id(f"{entry}/run")
        )

    def _read(self, reading: Reading) -> TurnRun:
        if self.status.records:
            return TurnRun.of(self.status.records)
        run = self.asked.run if self.asked else ""
        return reading(self.memory, run) if run and self.end is not None else TurnRun()
