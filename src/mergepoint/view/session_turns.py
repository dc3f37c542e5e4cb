"""The turns of a session: how each ended, and its events in the order in which they happened."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mergepoint.core.errors import MergepointError
from mergepoint.journal.call_records import CallRecord
from mergepoint.report.run_state import RunState, Status, ending, read_state
from mergepoint.session.entries import SessionMessage, StepType, WorkingStep
from mergepoint.session.session_memory import SessionMemory
from mergepoint.tree.prompts import as_text

_ABOUT: Mapping[str, str] = {"plan": "Plan", "codegen": "Program", "execute": "Output"}
_DECIDED: Mapping[str, str] = {"approve": "approved", "edit": "edited", "reject": "rejected"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEntry:
    """One event of a turn, with the fields of `SessionEntry` in page.d.ts.

    `who` made or decided it. `at` is its time in seconds since the epoch. `ok` says whether it
    worked or was approved, None if neither applies. `path` is its call in the turn's run.
    """

    kind: str
    title: str
    text: str
    who: str
    at: float | None = None
    ok: bool | None = None
    path: str = ""


@dataclass(frozen=True)
class SessionTurn:
    """A turn of a session.

    `said` are its messages. `run` is the state of its run, None without a journal; `problem` says
    why a journal can't be read.
    """

    number: int
    said: Sequence[SessionMessage]
    steps: Sequence[WorkingStep]
    run: RunState | None = None
    problem: str = ""

    @property
    def asked(self) -> SessionMessage | None:
        """Return the user's message that began the turn."""
        return next((one for one in self.said if one.role == "user"), None)

    @property
    def answer(self) -> SessionMessage | None:
        """Return the answer, the last one of several."""
        return next((one for one in reversed(self.said) if one.role == "assistant"), None)

    @property
    def end(self) -> WorkingStep | None:
        """Return the result of the turn, an answer or an error; None while it is open."""
        found = (one for one in reversed(self.steps) if one.type is StepType.RESPONSE)
        return next(found, None)

    @property
    def status(self) -> Status:
        """Return how the turn ended, or what it waits for; a cancelled one was interrupted."""
        if self.end is not None and self.end.error is not None:
            return "interrupted" if self.end.cancelled else "failed"
        # A program added a message without a run, and nothing is to answer it.
        if self.end is not None or self.asked is None or not self.asked.run:
            return "done"
        if self.run is not None and self.run.status in ("running", "waiting"):
            return self.run.status
        return "unfinished"

    @property
    def result(self) -> str:
        """Return the answer, or the error that ended the turn; blank while it is open."""
        if self.answer is not None:
            return self.answer.content
        error = None if self.end is None else self.end.error
        return "" if error is None else f"{error.get('type', '')}: {error.get('message', '')}"

    def entries(self) -> list[TurnEntry]:
        """Return the events of the turn, in the order in which they happened."""
        found = [entry for one in self.steps for entry in self._of_step(one)]
        others = list(self._others())
        # The order of the log is that of the events; times may come from several clocks.
        if not others:
            return found
        return sorted([*found, *others], key=lambda one: one.at or 0.0)

    def _others(self) -> Iterator[TurnEntry]:
        """Yield events that aren't among the steps: more messages, and records of an open turn."""
        first = self.asked
        yield from (
            TurnEntry(
                kind="other",
                title=f"Message of the {one.role}",
                text=one.content,
                who=one.role,
                at=one.created_at.timestamp(),
            )
            for one in self.said
            if one is not first and one.role != "assistant"
        )
        # Steps are added to a session when a turn ends or pauses; until then only the journal of
        # its run has them.
        if self.end is None and self.run is not None:
            told = max((one.created_at.timestamp() for one in self.steps), default=0.0)
            yield from map(self._of_record, _untold(self.run.records, told))

    def _of_step(self, step: WorkingStep) -> Iterator[TurnEntry]:
        at = step.created_at.timestamp()
        again = f", attempt {step.attempt}" if (step.attempt or 1) > 1 else ""
        if step.type is StepType.RESPONSE:
            yield from self._of_end(step, at)
        elif step.type is StepType.DECISION:
            yield self._of_decision(step, at, again)
        elif step.type is StepType.EXECUTE:
            yield self._of_output(step, at, again)
        else:
            kind = "plan" if step.type is StepType.PLAN else "program"
            text = plan_text(step.content) if kind == "plan" else step.content
            title = f"{_ABOUT[step.type]}{again}"
            yield TurnEntry(kind=kind, title=title, text=text, who="model", at=at, path=step.path)

    def _of_end(self, step: WorkingStep, at: float) -> Iterator[TurnEntry]:
        if step.error is not None:
            type_ = step.error.get("type", "")
            title = "Canceled" if step.cancelled else f"Failed: {type_}"
            who = "user" if step.cancelled else ""
            text = step.error.get("message", "")
            path = step.error.get("path", "") or step.path
            yield TurnEntry(
                kind="error", title=title, text=text, who=who, at=at, ok=False, path=path
            )
            return
        said = next((one for one in self.said if one.id == step.message), None)
        if said is not None:
            yield TurnEntry(
                kind="answer",
                title="Answer",
                text=said.content,
                who="model" if said.run else "",
                at=at,
                path=step.path,
            )

    def _of_decision(self, step: WorkingStep, at: float, again: str) -> TurnEntry:
        about = _ABOUT.get(step.decides, "Decision")
        said = _DECIDED.get(step.decision, step.decision)
        parts = [step.feedback, plan_text(step.content) if step.content else ""]
        return TurnEntry(
            kind="decision",
            title=f"{about} {said}{again}".strip(),
            text="\n\n".join(filter(None, parts)),
            who=self._decider(step.path),
            at=at,
            ok=step.decision != "reject",
            path=step.path,
        )

    def _decider(self, path: str) -> str:
        """Return who decided at a gate: a question that was recorded waited for a person."""
        if self.run is None:
            return ""
        return "user" if path in self._questions else "policy"

    @cached_property
    def _questions(self) -> frozenset[str]:
        records = () if self.run is None else self.run.records
        return frozenset(one.path for one in records if one.asks)

    @cached_property
    def _results(self) -> Mapping[str, Any]:
        """Return the results of the turn's functions, by path."""
        records = () if self.run is None else self.run.records
        return {one.path: one.value for one in records if one.kind == "call" and one.answered}

    def _of_output(self, step: WorkingStep, at: float, again: str) -> TurnEntry:
        stdout, stderr = step.printed
        text = f"{stdout.rstrip()}\n\nstderr:\n{stderr}".lstrip() if stderr else stdout
        return output_entry(
            text, self._results.get(step.path), step.exit_code, again, at=at, path=step.path
        )

    def _of_record(self, record: CallRecord) -> TurnEntry:
        """Return the event of a record that the session hasn't been told of."""
        at, path, value = record.ended, record.path, record.value
        name = path.rpartition("/")[2]
        if record.asks:
            title = f"Waiting for a decision: {record.prompt}".rstrip(": ")
            return TurnEntry(kind="decision", title=title, text="", who="", at=at, path=path)
        if record.kind == "gate":
            title = f"{name} {_DECIDED.get(value['decision'], '')}".strip()
            return TurnEntry(
                kind="decision",
                title=title,
                text=str(value.get("feedback") or ""),
                who=self._decider(path),
                at=at,
                ok=value["decision"] != "reject",
                path=path,
            )
        if record.error is not None:
            text = ending({**record.error, "path": ""})
            return TurnEntry(
                kind="error", title=f"{name} failed", text=text, who="", at=at, ok=False, path=path
            )
        if isinstance(value, Mapping) and "exit_code" in value:
            return output_entry(
                str(value.get("output") or ""), value, value["exit_code"], "", at=at, path=path
            )
        text = record.response or ("" if value is None else as_text(value))
        who = "model" if record.kind == "step" else ""
        return TurnEntry(kind="other", title=name, text=text, who=who, at=at, path=path)


def output_entry(
    text: str, value: Any, exit_code: int | None, again: str, *, at: float, path: str
) -> TurnEntry:
    """Return the event of a program that ran, from its output and the result of its call."""
    result = value if isinstance(value, Mapping) else {}
    stopped = result.get("stopped")
    facts = [f"exit code {exit_code}" if exit_code is not None else ""]
    facts += [f"stopped at the limit of {stopped}" if stopped else ""]
    facts += ["output cut" if result.get("truncated") else ""]
    files = result.get("made") or ()
    written = (
        f"Files: {', '.join(map(str, files))}" if isinstance(files, Sequence) and files else ""
    )
    ok = bool(result["ok"]) if "ok" in result else None if exit_code is None else exit_code == 0
    return TurnEntry(
        kind="output",
        title=", ".join(filter(None, [f"Output{again}", *facts])),
        text="\n\n".join(filter(None, [text.rstrip("\n"), written])),
        who=f"sandbox {result['backend']}" if result.get("backend") else "sandbox",
        at=at,
        ok=ok,
        path=path,
    )


def plan_text(content: str) -> str:
    """Return a plan for people: its intent, then its other fields; other text as it is."""
    try:
        plan = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(plan, dict) or not isinstance(plan.get("intent"), str):
        return content
    lines = [plan["intent"]]
    for name, value in plan.items():
        if isinstance(value, list):
            lines += [f"{number}. {as_text(one)}" for number, one in enumerate(value, 1)]
        elif name != "intent" and value not in (None, ""):
            lines.append(f"{name}: {as_text(value)}")
    return "\n".join(lines)


def turns_of(memory: SessionMemory) -> list[SessionTurn]:
    """Return the turns of a session with their runs; a run that can't be read is a problem."""
    said: dict[int, list[SessionMessage]] = defaultdict(list)
    for message in memory.get_messages():
        said[message.turn].append(message)
    steps: dict[int, list[WorkingStep]] = defaultdict(list)
    for step in memory.get_steps():
        steps[step.turn].append(step)
    return [
        SessionTurn(number, said[number], steps[number], *_run_of(memory, number))
        for number in sorted({*said, *steps})
    ]


def _run_of(memory: SessionMemory, number: int) -> tuple[RunState | None, str]:
    """Return the state of a turn's run, and the problem if it can't be read."""
    asked, runs = memory.past.asked(number), memory.runs()
    try:
        if asked is None or not asked.run or not runs.has(asked.run):
            return None, ""
        return read_state(runs, asked.run), ""
    except (MergepointError, OSError) as error:
        return None, str(error)


def _untold(records: Sequence[CallRecord], told: float) -> list[CallRecord]:
    """Return the records after a time, without calls inside functions and answered questions."""
    decided = {one.path for one in records if one.kind == "gate" and not one.asks}
    return [
        one
        for one in records
        if one.kind not in ("inner", "left_out")
        # Steps have their times in whole microseconds.
        and one.ended > told + 2e-6
        and not (one.asks and one.path in decided)
    ]
