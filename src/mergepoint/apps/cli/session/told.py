"""Told: sessions, messages and steps as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mergepoint.apps.cli.output import brief
from mergepoint.session.message import SessionMessage
from mergepoint.session.sessions import SessionBrief
from mergepoint.session.working_step import StepType, WorkingStep

_TITLE = 60


def told_briefs(briefs: Sequence[SessionBrief], here: str = "") -> list[str]:
    """Give a line for each session, written last first; `here` marks one."""
    if not briefs:
        return ["there are no sessions yet"]
    width = max(len(one.session_id) for one in briefs)
    return [
        f"{one.session_id:<{width}}  {_when(one)}  {_title(one)}"
        f"{'  (this one)' if one.session_id == here else ''}".rstrip()
        for one in briefs
    ]


def told_messages(messages: Iterable[SessionMessage]) -> list[str]:
    """Give a conversation, each message under who said it in which turn."""
    lines: list[str] = []
    for message in messages:
        lines.append(f"{message.turn} {message.role}:")
        lines += [f"  {line}" for line in message.content.splitlines()]
    return lines


def told_steps(steps: Iterable[WorkingStep]) -> list[str]:
    """Give steps with all that they hold."""
    lines: list[str] = []
    for step in steps:
        lines.append(_head(step))
        lines += [f"    {line}" for line in step.content.splitlines()]
        if step.error:
            lines.append(f"    {step.error.get('type', '')}: {step.error.get('message', '')}")
    return lines


def _head(step: WorkingStep) -> str:
    """Give a step's line: what it is, of which attempt, where, and what came out."""
    facts = [str(step.type)]
    if step.type is not StepType.RESPONSE and step.attempt is not None:
        facts.append(f"(attempt {step.attempt})")
    facts.append(step.path)
    if step.exit_code is not None:
        facts.append(f"exit code {step.exit_code}")
    if step.decision:
        said = f": {step.feedback}" if step.feedback else ""
        facts.append(f"{step.decision}{said}")
    if step.message:
        facts.append(f"-> message {step.message}")
    return " ".join(fact for fact in facts if fact)


def _when(one: SessionBrief) -> str:
    when = one.updated_at
    return f"{when.astimezone():%Y-%m-%d %H:%M}" if when is not None else " " * 16


def _title(one: SessionBrief) -> str:
    return f"cannot be read: {one.problem}" if one.problem else brief(one.title, _TITLE)
