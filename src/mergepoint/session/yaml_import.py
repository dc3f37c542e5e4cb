"""Import of a session from YAML: an export, an older file, or one written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mergepoint.core.errors import SessionError, StepError
from mergepoint.core.paths import nearest
from mergepoint.core.strict_yaml import DocumentLimits, Location, YamlDocument, YamlError, load_file
from mergepoint.journal.redact import Redact
from mergepoint.session.entries import (
    CleanedText,
    Entry,
    Fact,
    FactRow,
    MessageRow,
    SessionFile,
    SessionHeader,
    SessionMessage,
    StepRow,
    StepType,
    WorkingStep,
    checked_session_id,
    fact_id,
    keys_of,
    new_session_id,
    normalize_text,
)
from mergepoint.session.history import metadata_of
from mergepoint.session.session_memory import SessionMemory, Sessions
from mergepoint.session.session_store import sessions_at

_LIMITS = DocumentLimits(bytes=1 << 28, nodes=1 << 24)

E = TypeVar("E", SessionMessage, Fact, WorkingStep)


def import_session(
    path: Path | str,
    *,
    session_id: str | None = None,
    sessions: Path | str | Sessions = "sessions",
) -> SessionMemory:
    """Create a session from a YAML file; its schema: docs/reference/session-format.md.

    The id is `session_id`, or that in the file, or a new one. A message needs `role` and `content`;
    everything else is optional. If anything is invalid, nothing is stored.

    Raises SessionError that lists all problems with file and line, and for an id that is taken.
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
    reading = _SessionImporter(
        document, checked_session_id(wanted or new_session_id()), kept.redact
    )
    entries = reading.entries(file)
    # All problems at once, and before anything is written.
    if reading.faults:
        raise _refused(path, reading.faults)
    now = datetime.now(UTC)
    began = file.created_at or min((entry.created_at for entry in entries), default=now)
    return kept.begin(SessionHeader(session_id=reading.session_id, created_at=began), entries)


class _SessionImporter:
    """The conversion of a file to entries, with its problems."""

    def __init__(self, document: YamlDocument, session_id: str, redact: Redact | None) -> None:
        self.session_id = session_id
        self.faults: list[str] = []
        self._document = document
        self._redact = redact
        self._seen: dict[str, int] = {}
        self._now = datetime.now(UTC)

    def entries(self, file: SessionFile) -> list[Entry]:
        """Return the entries, in an order that preserves the order of each list in the file."""
        if file.omitted:
            left = ", ".join(f"{count} {name}" for name, count in file.omitted.items())
            self._refuse(("omitted",), f"this snapshot leaves out {left}; export the session")
        messages = list(self._messages(file))
        steps = list(self._steps(file, messages))
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
                run="" if begins else row.run,  # no run of this session will answer it
                path=row.path,
                changed=_changed(row, text),
            )

    def _facts(self, file: SessionFile) -> Iterator[Fact]:
        for at, row in enumerate(file.facts):
            text = self._text(("facts", at), row.content, "a fact")
            yield Fact(
                # From the words, whatever the file says: `add_facts` finds a known fact by this id.
                id=self._id(("facts", at), fact_id(self.session_id, text.text), ""),
                content=text.text,
                turn=row.turn,
                created_at=self._time(row),
                source=row.source,
                changed=_changed(row, text),
            )

    def _steps(self, file: SessionFile, messages: list[SessionMessage]) -> Iterator[WorkingStep]:
        answers = [one for one in messages if one.role == "assistant"]
        for at, row in enumerate(file.steps):
            text = self._text(("steps", at, "content"), row.content, "a step's content")
            turn = _turn_of(row, file, messages)
            about = row.model_dump(include=_ABOUT, exclude_none=True)
            if row.metadata is not None:
                about["metadata"] = self._metadata(("steps", at, "metadata"), row.metadata)
            if row.type is StepType.RESPONSE and not (row.message or row.error):
                answer = next((one for one in answers if one.content == text.text), None)
                if answer is None:
                    problem = "a response names its `message`, has an `error`, or the content of an"
                    self._refuse(("steps", at), f"{problem} answer among the messages")
                else:
                    answers.remove(answer)
                    about["message"], turn, text = answer.id, answer.turn, CleanedText("")
            number = f"{self.session_id}.{turn}/import-step-{at + 1}"
            yield WorkingStep(
                id=self._id(("steps", at), row.id, number),
                type=row.type,
                content=text.text,
                turn=turn,
                created_at=self._time(row),
                changed=_changed(row, text),
                **about,
            )

    def _metadata(self, at: Location, given: dict[str, Any]) -> dict[str, Any]:
        try:
            return metadata_of(given, self._redact)
        except (SessionError, StepError) as error:
            self._refuse(at, str(error))
            return {}

    def _text(self, at: Location, text: str, what: str) -> CleanedText:
        try:
            return normalize_text(text, what=what, redact=self._redact)
        except SessionError as error:
            self._refuse(at, str(error))
            return CleanedText("-")

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
    "decides",
    "feedback",
    "message",
    "error",
}


def _turn_of(row: StepRow, file: SessionFile, messages: list[SessionMessage]) -> int:
    """Return the turn of a step: that in the file, or by its time, or the last one."""
    if row.turn is not None:
        return row.turn
    last = max((message.turn for message in messages), default=0)
    if row.created_at is None:
        return last
    begun = [
        message.turn
        for message, given in zip(messages, file.messages, strict=True)
        if given.created_at is not None and given.role == "user"
        if given.created_at <= row.created_at
    ]
    timed = any(given.created_at for given in file.messages)
    return max(begun, default=0) if timed else last


def _in_order(messages: list[SessionMessage], steps: list[WorkingStep]) -> Iterator[Entry]:
    """Yield messages and steps so that each list keeps its order, records of answers included.

    The record of an answer follows from its message. So if the file has one, its place is the place
    of the message among the steps; otherwise an answer comes after the steps of its turn.
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


def _changed(row: MessageRow | FactRow | StepRow, text: CleanedText) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*row.changed, *text.changed)))


def _refused(path: Path, faults: list[str]) -> SessionError:
    count = "a fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "".join(f"\n  {fault}" for fault in faults)
    return SessionError(f"{path} has {count}, and nothing of it was imported:{lines}")


def _told(document: YamlDocument, fault: Any) -> str:
    location = tuple(fault["loc"])
    where = document.where(location)
    label = ".".join(map(str, location)) or "the file"
    if fault["type"] == "extra_forbidden":
        known = _KEYS.get(str(location[0]) if len(location) > 1 else "", _TOP)
        key = str(location[-1])
        return f"{where}: no key {key!r} here{nearest(key, known)}; there are: {', '.join(known)}"
    said = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {label}: {said[0].lower()}{said[1:]}"


_TOP = keys_of(SessionFile)
_KEYS = {
    "messages": keys_of(MessageRow),
    "facts": keys_of(FactRow),
    "steps": keys_of(StepRow),
    "working_steps": keys_of(StepRow),
}
