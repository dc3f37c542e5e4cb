"""The steps that a browser shows for a session: messages, work, gates, and costs.

Running turns, threads that are loaded later, and second tabs use the same functions. So nothing
that the session contains is stored twice, and steps are nested as they ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from mergepoint.apps.chainlit.buttons import gate_buttons, interrupted_buttons, retry_buttons
from mergepoint.apps.chainlit.shown_step import (
    ASSISTANT,
    ShownStep,
    StepKind,
    code_change,
    escape_directives,
    last_line,
    partial_text,
    run_text,
    shown_id,
    step_text,
    truncated,
    without_paths,
)
from mergepoint.apps.chainlit.turn_data import (
    MOMENT,
    ArtifactPlaces,
    ChainlitIds,
    ProgramExecution,
    Reading,
    ThreadStatus,
    TurnData,
)
from mergepoint.apps.cli.output import clock, printable
from mergepoint.session.entries import StepType, WorkingStep
from mergepoint.session.session_memory import SessionMemory
from mergepoint.tree.nodes import Gate, Node

# Chainlit's own name for the step around a turn.
RUN = "on_message"
XRAY = "/xray"
"""Below it, the server has the page of each session (see xray.py)."""


class ThreadView:
    """Shows the turns of one tree."""

    def __init__(self, tree: Node, reading: Reading) -> None:
        self.tree = tree
        self.places = ArtifactPlaces(tree)
        self._reading = reading

    def all(self, memory: SessionMemory, status: ThreadStatus, ids: ChainlitIds) -> list[ShownStep]:
        """Return the steps of the whole session."""
        turns = dict.fromkeys(message.turn for message in memory.get_messages())
        return [one for turn in turns for one in self.turn(memory, turn, status, ids)]

    def turn(
        self, memory: SessionMemory, turn: int, status: ThreadStatus, ids: ChainlitIds
    ) -> list[ShownStep]:
        """Return the steps of one turn in order of time; only the last turn has a status."""
        data = TurnData(
            self.places,
            memory,
            turn,
            status=status if turn == memory.turn else ThreadStatus(),
            ids=ids,
            reading=self._reading,
        )
        found = [
            *_messages(data),
            *_turn_steps(data),
            *work(data),
            *gates(data),
            *_end_notice(data),
            *_xray_link(data),
            *_cost(data),
        ]
        return sorted(found, key=lambda one: one.created_at)


QUEUED = "**Queued.** This waits for a worker (`mergepoint work`)."


def _messages(data: TurnData) -> Iterator[ShownStep]:
    for message in data.messages:
        own = message.role == "user"
        yield ShownStep(
            id=shown_id(message.id),
            type="user_message" if own else "assistant_message",
            name="user" if own else ASSISTANT,
            turn=data.turn,
            parent=None if own else data.run_at(message.created_at),
            text=truncated((printable if own else escape_directives)(message.content)),
            created_at=message.created_at,
            ended_at=message.created_at,
        )


def _turn_steps(data: TurnData) -> Iterator[ShownStep]:
    """Yield the steps that contain everything of an answer."""
    for run in data.turn_steps:
        last = run is data.turn_steps[-1]
        yield ShownStep(
            id=run.id,
            type="run",
            name=RUN,
            turn=data.turn,
            parent=run.parent,
            text="",
            created_at=run.started + MOMENT,
            ended_at=None if last and data.status.live else data.last,
        )


def _end_notice(data: TurnData) -> Iterator[ShownStep]:
    """Yield the notice that replaces a missing answer, with its buttons."""
    last = data.turn == data.memory.turn
    if last and data.status.worker == "queued":
        yield _notice(data, "queued", QUEUED, data.last)
        return
    if data.end is not None and data.end.error is not None and not data.status.live:
        error = data.end.error
        if data.end.cancelled:
            yield _notice(data, "error", "Cancelled.", data.end.created_at)
            return
        where = f" at `{error['path']}`" if error.get("path") else ""
        message = without_paths(str(error.get("message")))
        text = escape_directives(f"**{error.get('type')}**{where}: {message}")
        shown = replace(_notice(data, "error", text, data.end.created_at), is_error=True)
        yield replace(shown, buttons=retry_buttons(data.turn) if last else ())
    elif last and data.end is None and data.asked is not None and data.asked.run:
        yield from _unfinished(data)


def _unfinished(data: TurnData) -> Iterator[ShownStep]:
    status = data.status
    if status.live or status.questions:
        return
    if status.elsewhere:
        yield _notice(data, "unfinished", "Another process is answering this.", data.last)
        return
    text = "This was interrupted before it had an answer. Recorded calls aren't paid again."
    shown = _notice(data, "unfinished", text, data.last)
    yield replace(shown, buttons=interrupted_buttons(data.turn))


def _notice(data: TurnData, what: str, text: str, at: datetime) -> ShownStep:
    at += MOMENT
    return _shown(data, f"{data.run_id}/{what}", "system_message", ASSISTANT, text, at, ended_at=at)


def _shown(
    data: TurnData, entry: str, kind: StepKind, name: str, text: str, at: datetime, **more: Any
) -> ShownStep:
    """Return a step, inside the one that is around its moment."""
    return ShownStep(
        id=shown_id(entry),
        type=kind,
        name=name,
        turn=data.turn,
        parent=data.run_at(at),
        text=text,
        created_at=at,
        **more,
    )


def _xray_link(data: TurnData) -> Iterator[ShownStep]:
    """Yield the link to the page that shows how an answer was made, or why there is none."""
    end, asked = data.end, data.asked
    if end is None or asked is None or not asked.run or data.status.live or end.cancelled:
        return
    failed = end.error is not None
    made = [one for one in data.messages if one.role != "user" and one.path]
    path = str((end.error or {}).get("path") or "") if failed else made[-1].path if made else ""
    # Parentheses and spaces would end the address of a Markdown link.
    call = f"&call={quote(path)}" if path else ""
    address = f"{XRAY}/{quote(data.memory.session_id, safe='')}"
    where = f"{address}#run={quote(asked.run, safe='')}{call}"
    words = "What led to this error" if failed else "How this answer was made"
    at = end.created_at + 2 * MOMENT
    entry = f"{data.run_id}/xray"
    link = f"[{words}]({where})"
    yield _shown(data, entry, "system_message", ASSISTANT, link, at, ended_at=at)


def _cost(data: TurnData) -> Iterator[ShownStep]:
    """Yield the costs of a finished turn, below its answer."""
    if data.end is None or data.status.live or not data.run_data.usage.calls:
        return
    at = data.end.created_at + 3 * MOMENT
    entry, line, table = f"{data.run_id}/cost", data.run_data.line, data.run_data.table
    yield _shown(data, entry, "llm", line, table, at, ended_at=at, icon="receipt-text")


BY_USER = "user"
"""The reason for a stop by a person; other reasons are those of a CodeRun."""

Status = Literal["ok", "failed", "stopped"]

_ICONS = {StepType.PLAN: "list-checks", StepType.CODEGEN: "code", StepType.EXECUTE: "terminal"}
_STOPPED_BY = {
    BY_USER: "by you",
    "cancelled": "by you",
    "wall": "by its time limit",
    "cpu": "by its limit of CPU time",
    "memory": "by its memory limit",
    "processes": "by its limit of processes",
    "output": "by its limit of output",
    "files": "by its limit of files",
}


def work(data: TurnData) -> Iterator[ShownStep]:
    """Yield finished and unfinished work; the current step is unfolded."""
    # By id: a program that is stopped and resumed has two entries, and the later one counts.
    shown_steps: dict[str, ShownStep] = {}
    for step in data.steps:
        if data.places.is_gate(step.path):
            yield from _edited_artifact(data, step)
            continue
        shown = _step(data, step.id, step.type, step.path, step.attempt or 1, step.created_at)
        if step.type is StepType.EXECUTE:
            shown = _finished_program(data, step, shown)
        else:
            shown = replace(shown, text=step_text(step), ended_at=step.created_at)
        shown_steps[shown.id] = replace(shown, open=step.id in _current_entries(data))
    yield from shown_steps.values()
    yield from _in_progress(data)


def _finished_program(data: TurnData, step: WorkingStep, shown: ShownStep) -> ShownStep:
    """Return the step of a finished program: how, why, and when it ended."""
    execution = data.run_data.executions.get(step.path) or _stop_from_session(step)
    status, what = _status(step, execution)
    seconds = "" if execution is None else clock(execution.seconds)
    by_person = execution is not None and execution.stopped == BY_USER
    why = f": {last_line(*step.printed)}" if status == "failed" else ""
    after = f" after {seconds}" if seconds else ""
    return replace(
        shown,
        name=" · ".join(filter(None, [shown.name, status, seconds])),
        text=run_text(*step.printed, f"{what}{after}{why}" if what else ""),
        ended_at=step.created_at,
        is_error=status != "ok" and not by_person,
        icon="circle-stop" if by_person else shown.icon,
    )


def _status(step: WorkingStep, execution: ProgramExecution | None) -> tuple[Status, str]:
    """Return how a program ended, as a word and as a sentence."""
    if execution is not None and execution.stopped:
        return "stopped", f"Stopped {_STOPPED_BY.get(execution.stopped, execution.stopped)}"
    code = step.exit_code
    return ("failed" if code else "ok"), "" if code is None else f"Exit code {code}"


def _stop_from_session(step: WorkingStep) -> ProgramExecution | None:
    """Return the end of a program that a person stopped: only the session has it."""
    about = step.metadata or {}
    if about.get("stopped") != BY_USER:
        return None
    return ProgramExecution(seconds=float(about.get("seconds") or 0.0), stopped=BY_USER)


def _edited_artifact(data: TurnData, step: WorkingStep) -> Iterator[ShownStep]:
    """Yield a plan or program as edited, below the decision."""
    if step.decision != "edit" or not step.content or not step.decides:
        return
    kind = StepType(step.decides)
    shown = _step(data, f"{step.id}/edited", kind, step.path, 1, step.created_at)
    name = f"{str(kind).capitalize()} as edited"
    yield replace(shown, name=name, icon="pencil", text=step_text(step), ended_at=step.created_at)


def _current_entries(data: TurnData) -> set[str]:
    """Return the ids of the current entries: a question's subject, or the latest artifact.

    There are no gaps in between: a step that was folded for a moment wouldn't unfold again.
    """
    if data.end is not None:
        return set()
    if data.status.live:
        artifacts = [
            one.id
            for one in data.steps
            if one.type is not StepType.EXECUTE and not data.places.is_gate(one.path)
        ]
        return {*artifacts[-1:]}
    return {one.id for asked in data.status.questions for one in data.subject(asked.path)}


def _in_progress(data: TurnData) -> Iterator[ShownStep]:
    for one in data.status.partial:
        path = data.places.drafted(one.path) or one.path
        kind = data.places.artifacts.type_at(path)
        # A call whose artifact exists already is shown as that, even if its end isn't known yet.
        made = sum(step.path == path for step in data.steps)
        if kind is not None and made < one.number:
            entry = f"{data.run_id}/{path}/step-{one.number}"
            shown = _step(
                data, entry, kind, path, data.places.artifacts.attempt_at(path), one.started
            )
            yield replace(shown, text=partial_text(kind, one.text), live=True, open=True)
        elif one.text and data.end is None and data.places.answers(one.path):
            entry, text = f"{data.run_id}/{one.path}/1", escape_directives(one.text)
            yield _shown(data, entry, "assistant_message", ASSISTANT, text, one.started, live=True)


def _step(
    data: TurnData, entry: str, kind: StepType, path: str, attempt: int, at: datetime
) -> ShownStep:
    name = str(kind).capitalize()
    plain = kind is StepType.PLAN and attempt == 1
    name = name if plain else f"{name} (attempt {attempt})"
    return _shown(data, entry, "tool", name, "", at, icon=_ICONS.get(kind, ""))


ASKS = "Is this what should be done?"

_DECISIONS = {
    "approve": "✓ **Approved**",
    "edit": "✓ **Approved as edited**",
    "reject": "↻ **Sent back**",
}
_CANCELLED = "✗ **Cancelled**"


def gates(data: TurnData) -> Iterator[ShownStep]:
    """Yield the questions at gates, with the decisions and feedback."""
    decided = [step for step in data.steps if data.places.is_gate(step.path)]
    for step in decided:
        if step.path in data.human_gates:
            yield _question(data, step.path, _DECISIONS.get(step.decision, ""), step.created_at)
            if step.feedback:
                yield ShownStep(
                    id=data.feedback_id(step),
                    type="user_message",
                    name="user",
                    turn=data.turn,
                    parent=None,
                    text=truncated(printable(step.feedback)),
                    created_at=step.created_at,
                    ended_at=step.created_at,
                )
    if data.broken and data.end is not None:
        for path in {*data.human_gates} - {step.path for step in decided}:
            yield _question(data, path, _CANCELLED, data.end.created_at)
        return
    for question in data.status.questions:
        shown = _question(data, question.path, "", data.last + 2 * MOMENT)
        free = not data.status.live and not data.status.elsewhere
        yield replace(shown, buttons=gate_buttons(question, data.turn) if free else ())


def _question(data: TurnData, path: str, decided: str, at: datetime) -> ShownStep:
    """Return a question as a step; its subject is an earlier step or part of its text."""
    node = data.places.artifacts.node_at(path)
    asks = (node.question if isinstance(node, Gate) else "") or ASKS
    subject = data.subject(path)
    moment = ([one.created_at for one in subject] or [at - MOMENT])[-1] + MOMENT
    asks = f"{escape_directives(asks)} {decided}" if decided else f"**{escape_directives(asks)}**"
    why = [] if decided or not subject else _why_again(data, subject[-1])
    about = why if subject else _about(data, path)
    entry, text = f"{data.run_id}/{path}/question", "\n\n".join([*about, asks])
    return _shown(data, entry, "system_message", ASSISTANT, text, moment, ended_at=moment)


def _why_again(data: TurnData, code: WorkingStep) -> list[str]:
    """Return why a program was rewritten, and how it differs from the previous one."""
    earlier = [one for one in data.steps if one.created_at < code.created_at]
    # As written by the model, or as edited by a person.
    programs = [
        one for one in earlier if StepType.CODEGEN in (one.type, one.decides) and one.content
    ]
    runs = [one for one in earlier if one.type is StepType.EXECUTE]
    if code.type is not StepType.CODEGEN or not programs or not runs or not runs[-1].exit_code:
        return []
    reason = last_line(*runs[-1].printed)
    return [
        f"The program before this one failed with exit code {runs[-1].exit_code}: {reason}",
        "What changed:",
        code_change(programs[-1].content, code.content),
    ]


def _about(data: TurnData, path: str) -> list[str]:
    """Return the subject of a question about a node without artifacts, as edited."""
    for step in data.steps:
        if step.path == path and step.content:
            return [truncated(escape_directives(step.content))]
    return [*data.run_data.subjects.get(path, ())]
