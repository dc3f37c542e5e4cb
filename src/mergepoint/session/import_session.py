"""Import: a session from a plain YAML file, exported, of an older time or written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mergepoint.core.errors import SessionError
from mergepoint.core.path import nearest
from mergepoint.record.redact import Redact
from mergepoint.session.entry import Entry, SessionHeader
from mergepoint.session.fact import Fact, fact_id
from mergepoint.session.memory import SessionMemory
from mergepoint.session.message import SessionMessage
from mergepoint.session.said import Said, said
from mergepoint.session.session_file import FactRow, MessageRow, SessionFile, StepRow
from mergepoint.session.session_id import checked_session_id, new_session_id
from mergepoint.session.sessions import Sessions
from mergepoint.session.sessions_at import sessions_at
from mergepoint.session.working_step import StepType, WorkingStep
from mergepoint.tree.strict_yaml import Document, Limits, Location, YamlError, load_file

_LIMITS = Limits(bytes=1 << 28, nodes=1 << 24)

E = TypeVar("E", SessionMessage, Fact, WorkingStep)


def import_session(
    path: Path | str,
    *,
    session_id: str | None = None,
    sessions: Path | str | Sessions = "sessions",
) -> SessionMemory:
    """Begin a session with what a YAML file holds; its schema: docs/sessions.md.

    Its id is the one given here, else that in the file, else a new one. A message needs `role`
    and `content`, all else may be left out. Nothing is kept where anything is wrong.

    Raises SessionError that lists every fault with file and line, and for an id that was used
    before.
    """
    path, kept = Path(path), sessions_at(sessions)
    try:
        document = load_file(path, limits=_LIMITS)
    except (YamlError, OSError) as error:
        raise SessionError(f"cannot import {path}: {error}") from error
    try:
        file = SessionFile.model_validate(document.value)
    except ValidationError as error:
        raise _refused(path, [_told(document, fault) for fault in error.errors()]) from error
    wanted = session_id or file.session_id
    reading = _Reading(document, checked_session_id(wanted or new_session_id()), kept.redact)
    entries = reading.entries(file)
    if reading.faults:
        raise _refused(path, reading.faults)
    now = datetime.now(UTC)
    began = file.created_at or min((entry.created_at for entry in entries), default=now)
    return kept.begin(SessionHeader(session_id=reading.session_id, created_at=began), entries)


class _Reading:
    """A file as it becomes entries, and what is wrong with it."""

    def __init__(self, document: Document, session_id: str, redact: Redact | None) -> None:
        self.session_id = session_id
        self.faults: list[str] = []
        self._document = document
        self._redact = redact
        self._seen: dict[str, int] = {}
        self._now = datetime.now(UTC)

    def entries(self, file: SessionFile) -> list[Entry]:
        """Give the entries, in an order that the lists of the file come back from."""
        if file.omitted:
            left = ", ".join(f"{count} {name}" for name, count in file.omitted.items())
            self._refuse(("omitted",), f"this snapshot leaves out {left}; export the session")
        messages = list(self._messages(file))
        last = max((message.turn for message in messages), default=0)
        steps = list(self._steps(file, last))
        answered = {message.id for message in messages if message.role == "assistant"}
        for at, step in enumerate(steps):
            if step.message and step.message not in answered:
                self._refuse(("steps", at, "message"), f"no answer has the id {step.message!r}")
        return [*_in_order(messages, steps), *self._facts(file)]

    def _messages(self, file: SessionFile) -> Iterator[SessionMessage]:
        turn = 0
        asked: set[int] = set()
        for at, row in enumerate(file.messages):
            begins = row.role == "user"
            turn = row.turn if row.turn is not None else turn + begins
            if begins and turn in asked:
                self._refuse(("messages", at, "turn"), f"turn {turn} has a user's message already")
            asked |= {turn} if begins else set()
            text = self._text(("messages", at, "content"), row.content, "a message")
            yield SessionMessage(
                id=self._id(("messages", at), row.id, f"{self.session_id}.{turn}/import-{at + 1}"),
                role=row.role,
                content=text.text,
                turn=turn,
                created_at=self._time(row),
                run="" if begins else row.run,  # no run of this session is to answer it
                path=row.path,
                changed=_changed(row, text),
            )

    def _facts(self, file: SessionFile) -> Iterator[Fact]:
        for at, row in enumerate(file.facts):
            text = self._text(("facts", at), row.content, "a fact")
            yield Fact(
                id=self._id(("facts", at), fact_id(self.session_id, text.text), ""),
                content=text.text,
                turn=row.turn,
                created_at=self._time(row),
                source=row.source,
                changed=_changed(row, text),
            )

    def _steps(self, file: SessionFile, last: int) -> Iterator[WorkingStep]:
        for at, row in enumerate(file.steps):
            text = self._text(("steps", at, "content"), row.content, "a step's content")
            if row.type is StepType.RESPONSE and not (row.message or row.error):
                self._refuse(("steps", at), "a response names its `message`, or has an `error`")
            turn = last if row.turn is None else row.turn
            number = f"{self.session_id}.{turn}/import-step-{at + 1}"
            about = row.model_dump(include=_ABOUT, exclude_none=True)
            yield WorkingStep(
                id=self._id(("steps", at), row.id, number),
                type=row.type,
                content=text.text,
                turn=turn,
                created_at=self._time(row),
                changed=_changed(row, text),
                **about,
            )

    def _text(self, at: Location, text: str, what: str) -> Said:
        try:
            return said(text, what=what, redact=self._redact)
        except SessionError as error:
            self._refuse(at, str(error))
            return Said("-")

    def _id(self, at: Location, given: str, otherwise: str) -> str:
        name = given or otherwise
        line = self._document.line_of(at)
        if name in self._seen:
            self._refuse(at, f"its id or content is that of line {self._seen[name]}; leave one out")
        self._seen.setdefault(name, line)
        return name

    def _time(self, row: MessageRow | FactRow | StepRow) -> datetime:
        return row.created_at or self._now

    def _refuse(self, at: Location, problem: str) -> None:
        self.faults.append(f"{self._document.where(at)}: {problem}")


_ABOUT = {
    "path",
    "attempt",
    "exit_code",
    "intent",
    "action",
    "decision",
    "feedback",
    "message",
    "error",
}


def _in_order(messages: list[SessionMessage], steps: list[WorkingStep]) -> Iterator[Entry]:
    """Give messages and steps so that each list keeps its order, records of answers included.

    The record of an answer follows from its message, so where the file has one its place says
    where the message stands among the steps; else an answer stands behind the steps of its turn.
    """
    records = {step.message: at for at, step in enumerate(steps) if step.message}
    given = 0
    for message in messages:
        if message.role == "assistant":
            end = records.get(message.id)
            if end is None:
                end = given
                while end < len(steps) and steps[end].turn <= message.turn:
                    end += 1
            yield from (step for step in steps[given:end] if not step.message)
            given = max(given, end)
        yield message
    yield from (step for step in steps[given:] if not step.message)


def _changed(row: MessageRow | FactRow | StepRow, text: Said) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*row.changed, *text.changed)))


def _refused(path: Path, faults: list[str]) -> SessionError:
    count = "a fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "".join(f"\n  {fault}" for fault in faults)
    return SessionError(f"{path} has {count}, and nothing of it was imported:{lines}")


def _told(document: Document, fault: Any) -> str:
    location = tuple(fault["loc"])
    where = document.where(location)
    label = ".".join(map(str, location)) or "the file"
    if fault["type"] == "extra_forbidden":
        known = _KEYS.get(str(location[0]) if len(location) > 1 else "", _TOP)
        key = str(location[-1])
        return f"{where}: no key {key!r} here{nearest(key, known)}; there are: {', '.join(known)}"
    said = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {label}: {said[0].lower()}{said[1:]}"


_TOP = tuple(SessionFile.model_fields)
_KEYS = {
    "messages": tuple(MessageRow.model_fields),
    "facts": tuple(FactRow.model_fields),
    "steps": tuple(StepRow.model_fields),
}
