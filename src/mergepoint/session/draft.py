"""Drafts: what is to be written, before it is known what stands before it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mergepoint.core.errors import SessionError, StepError
from mergepoint.core.path import nearest
from mergepoint.record.redact import Redact
from mergepoint.session.entry import Cleared
from mergepoint.session.fact import Fact, fact_id
from mergepoint.session.message import Role, SessionMessage
from mergepoint.session.past import Past
from mergepoint.session.said import Said, said
from mergepoint.session.working_step import StepType, WorkingStep

_TEXTS = ("intent", "action", "decision", "feedback")
_NUMBERS = ("attempt", "exit_code")
_LONGEST = 1000
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ABOUT = (*_NUMBERS, *_TEXTS, "error")


@dataclass(frozen=True, kw_only=True)
class MessageDraft:
    """A message that is to be added."""

    id: str | None
    text: Said
    role: Role
    turn: int | None = None
    path: str = ""
    run: str = ""
    opens: bool = False

    def entry(self, past: Past) -> SessionMessage:
        """Give the message. Raises SessionError where its turn takes no answer."""
        turn = past.turn + 1 if self.role == "user" else _turn(past, self.turn)
        if self.run:
            check_open(past, turn)
        stem = stem_of(past, turn)
        return SessionMessage(
            id=self.id or (f"{stem}/user" if self.opens else f"{stem}/{_new()}"),
            role=self.role,
            content=self.text.text,
            turn=turn,
            created_at=_now(),
            run=stem if self.opens else self.run,
            path=said(self.path, what="a path").text,
            changed=self.text.changed,
        )

    def fits(self, entry: object) -> bool:
        """Say whether an entry is what was to be added."""
        if not isinstance(entry, SessionMessage):
            return False
        return (entry.role, entry.content) == (self.role, self.text.text)


@dataclass(frozen=True, kw_only=True)
class StepDraft:
    """A working step that is to be added; `about` are its other fields, checked."""

    id: str | None
    text: Said
    type: StepType
    turn: int | None = None
    path: str = ""
    made_at: datetime | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, past: Past) -> WorkingStep:
        """Give the step. Raises SessionError where its turn takes no response."""
        turn = _turn(past, self.turn)
        if self.type is StepType.RESPONSE:
            check_open(past, turn)
        return WorkingStep(
            id=self.id or f"{stem_of(past, turn)}/{_new()}",
            type=self.type,
            turn=turn,
            created_at=self.made_at or _now(),
            content=self.text.text,
            path=said(self.path, what="a path").text,
            changed=self.text.changed,
            **self.about,
        )

    def fits(self, entry: object) -> bool:
        """Say whether an entry is what was to be added."""
        if not isinstance(entry, WorkingStep):
            return False
        return (entry.type, entry.content) == (self.type, self.text.text)


@dataclass(frozen=True, kw_only=True)
class FactDraft:
    """A fact that is to be added."""

    text: Said
    turn: int | None = None
    source: str = ""

    def entry(self, past: Past) -> Fact:
        """Give the fact. Raises SessionError for a turn that there is not."""
        return Fact(
            id=fact_id(past.header.session_id, self.text.text),
            content=self.text.text,
            turn=_turn(past, self.turn),
            created_at=_now(),
            source=said(self.source, what="a source").text,
            changed=self.text.changed,
        )


def checked_id(given: str | None) -> str | None:
    """Give an id that a client chose. Raises SessionError for one that could not be told apart."""
    if given is None or (given and len(given) <= _LONGEST and not _CONTROL.search(given)):
        return given
    raise SessionError(
        f"no id for a message or step: {given[:100]!a}. Give 1 to {_LONGEST} characters "
        "without control characters, or none for an id of its own"
    )


def about_of(given: Mapping[str, Any], redact: Redact | None) -> dict[str, Any]:
    """Give the other fields of a working step as they are kept.

    Raises StepError for a field that there is not, and for a value that does not fit.
    """
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _ABOUT:
            raise StepError(f"a step has no {name!r}{nearest(name, _ABOUT)}; {', '.join(_ABOUT)}")
        if name in _TEXTS:
            kept[name] = said(value, what=name, redact=redact).text
        elif name == "error" and isinstance(value, Mapping):
            kept[name] = {
                str(key): said(str(text), what="an error", redact=redact).text
                for key, text in value.items()
            }
        elif name in _NUMBERS and type(value) is int:
            kept[name] = value
        elif value is not None:
            raise StepError(
                f"{name}={value!r} does not fit; give a whole number, or for error a "
                "mapping of texts"
            )
    return kept


def cleared(past: Past) -> Cleared:
    """Give a new beginning. Raises SessionError while a turn is unfinished."""
    if past.unfinished is not None:
        raise SessionError(
            f"turn {past.turn} of session {past.header.session_id!r} is unfinished; resume or "
            "cancel it before the session is cleared"
        )
    stem = stem_of(past, past.turn)
    return Cleared(id=f"{stem}/clear/{_new()}", turn=past.turn, created_at=_now())


def check_open(past: Past, turn: int) -> None:
    """Raise SessionError unless a turn can still come to an answer."""
    ended = past.ended(turn)
    if past.asked(turn) is None:
        problem = "is not there, or was cleared"
    elif ended is not None and ended.message:
        problem = f"has its answer already, {ended.message}"
    elif ended is not None and ended.cancelled:
        problem = "was cancelled"
    else:
        return
    raise SessionError(
        f"turn {turn} of session {past.header.session_id!r} {problem}; nothing is added to it. "
        "Begin a new turn"
    )


def stem_of(past: Past, turn: int) -> str:
    """Give the id of a turn's run, with which the ids of what belongs to it begin."""
    return f"{past.header.session_id}.{turn}"


def _turn(past: Past, turn: int | None) -> int:
    if turn is None:
        return past.turn
    if type(turn) is not int or not 0 <= turn <= past.turn:
        raise SessionError(
            f"session {past.header.session_id!r} has no turn {turn!r}; the last one is {past.turn}"
        )
    return turn


def _new() -> str:
    return secrets.token_hex(6)


def _now() -> datetime:
    return datetime.now(UTC)
