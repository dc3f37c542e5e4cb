"""The conversation so far, and the drafts that a turn adds to it."""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from mergepoint.core.errors import SessionError, StepError
from mergepoint.core.merge import MergeMode, State, merge
from mergepoint.core.paths import nearest
from mergepoint.journal.redact import Redact
from mergepoint.session.entries import (
    CleanedText,
    Cleared,
    Entry,
    Fact,
    Role,
    SessionHeader,
    SessionMessage,
    StepType,
    WorkingStep,
    fact_id,
    normalize_text,
)

Conversation = State[SessionMessage]

_MODES: dict[Role, MergeMode] = {
    "user": "all_messages",
    "assistant": "last_response",
    "system": "all_messages",
}


class SessionState:
    """Messages, facts and steps of a session, with indexes to find them.

    The lists only grow until the session is cleared, so adding an entry costs the same however many
    there are. `turn` counts the user's messages, including cleared ones, so that no run's id is
    used twice.
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
        """Return the conversation as a state."""
        return State(tuple(self.messages))

    def commit(self, entry: Entry) -> None:
        """Add an entry that was just written; messages are merged. Raises MergeError."""
        self._index(entry)
        if isinstance(entry, SessionMessage):
            # A turn is a block with merge="last_response", and the session is its parent, as at the
            # exits of compiled graphs.
            self.messages += merge(State(), _MODES[entry.role], State((entry,))).messages

    def take(self, entries: Iterable[Entry]) -> None:
        """Add entries that their writers have merged, in the journal's order.

        Raises SessionError for an id that occurs twice.
        """
        for entry in entries:
            self._index(entry)
            if isinstance(entry, SessionMessage):
                self.messages.append(entry)

    def asked(self, turn: int) -> SessionMessage | None:
        """Return the user's message of a turn."""
        return self._asked.get(turn)

    def ended(self, turn: int) -> WorkingStep | None:
        """Return the result of a turn, or None while it is open."""
        return self._ended.get(turn)

    def steps_of(self, turn: int) -> tuple[WorkingStep, ...]:
        """Return the steps of a turn."""
        return tuple(self._steps.get(turn, ()))

    @property
    def unfinished(self) -> SessionMessage | None:
        """Return the user's message that a run should answer and that has no answer, or None."""
        # A message without a run was added by the program itself, and no turn has to answer it.
        asked = self._asked.get(self.turn)
        return asked if asked is not None and asked.run and self.turn not in self._ended else None

    def since_turn(self, last: int | None) -> tuple[SessionMessage, ...]:
        """Return the messages of the last turns; a turn begins with the user's message."""
        if last is None:
            return tuple(self.messages)
        found: list[SessionMessage] = []
        # From the end: the cost depends on the turns wanted, not on the length of the session.
        for message in reversed(self.messages):
            if last == 0:
                break
            found.append(message)
            last -= message.role == "user"
        return tuple(reversed(found))

    def _index(self, entry: Entry) -> None:
        if entry.id in self.by_id:
            raise SessionError(
                f"session {self.header.session_id!r} holds two entries with the id {entry.id!r}; "
                "mergepoint.session.repair_session omits the second"
            )
        self.by_id[entry.id] = entry
        # Steps have the time of their call, which may be before the last entry.
        self.updated_at = max(self.updated_at, entry.created_at)
        if isinstance(entry, WorkingStep):
            self._log(entry)
        elif isinstance(entry, Fact):
            self.facts.append(entry)
        elif isinstance(entry, Cleared):
            # `turn` and `by_id` stay: a later turn must not get the id of a run that has a journal.
            self.messages, self.facts, self.steps = [], [], []
            for known in (self._asked, self._ended, self._steps):
                known.clear()
        elif entry.role == "user":
            # An import may bring turns in another order.
            self.turn = max(self.turn, entry.turn)
            self._asked[entry.turn] = entry
        elif entry.role == "assistant":
            self._log(response_of(entry))

    def _log(self, step: WorkingStep) -> None:
        self.steps.append(step)
        self._steps[step.turn].append(step)
        if step.type is StepType.RESPONSE:
            self._ended[step.turn] = step


def response_of(message: SessionMessage) -> WorkingStep:
    """Return the record of an answer, which refers to its message without repeating it."""
    return WorkingStep(
        id=f"{message.id}/response",
        type=StepType.RESPONSE,
        turn=message.turn,
        created_at=message.created_at,
        path=message.path,
        message=message.id,
    )


_TEXTS = ("intent", "action", "decision", "decides", "feedback")
_NUMBERS = ("attempt", "exit_code")
_LONGEST = 1000
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ABOUT = (*_NUMBERS, *_TEXTS, "error", "metadata")


E = TypeVar("E", SessionMessage, WorkingStep)


@dataclass(frozen=True, kw_only=True)
class Draft(ABC, Generic[E]):
    """A message or step to add, which is written once if it has an id."""

    id: str | None
    text: CleanedText
    turn: int | None = None
    path: str = ""

    @abstractmethod
    def entry(self, past: SessionState) -> E:
        """Return the entry. Raises SessionError if its turn accepts no answer."""

    @abstractmethod
    def fits(self, entry: object) -> bool:
        """Return whether an entry equals the draft."""


@dataclass(frozen=True, kw_only=True)
class MessageDraft(Draft[SessionMessage]):
    """A message to add."""

    role: Role
    run: str = ""
    opens: bool = False

    def entry(self, past: SessionState) -> SessionMessage:
        """Return the message. Raises SessionError if its turn accepts no answer."""
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
            path=normalize_text(self.path, what="a path").text,
            changed=self.text.changed,
        )

    def fits(self, entry: object) -> bool:
        """Return whether an entry equals the draft."""
        # Both texts are masked and cleaned, so a repeated request with a secret in it is equal too.
        known = (entry.role, entry.content) if isinstance(entry, SessionMessage) else None
        return known == (self.role, self.text.text)


@dataclass(frozen=True, kw_only=True)
class StepDraft(Draft[WorkingStep]):
    """A working step to add; `about` contains its other fields, validated."""

    type: StepType
    made_at: datetime | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, past: SessionState) -> WorkingStep:
        """Return the step. Raises SessionError if its turn accepts no response."""
        turn = _turn(past, self.turn)
        if self.type is StepType.RESPONSE:
            check_open(past, turn)
        return WorkingStep(
            id=self.id or f"{stem_of(past, turn)}/{_new()}",
            type=self.type,
            turn=turn,
            created_at=self.made_at or _now(),
            content=self.text.text,
            path=normalize_text(self.path, what="a path").text,
            changed=self.text.changed,
            **self.about,
        )

    def fits(self, entry: object) -> bool:
        """Return whether an entry equals the draft."""
        known = (entry.type, entry.content) if isinstance(entry, WorkingStep) else None
        return known == (self.type, self.text.text)


@dataclass(frozen=True, kw_only=True)
class FactDraft:
    """A fact to add."""

    text: CleanedText
    turn: int | None = None
    source: str = ""

    def entry(self, past: SessionState) -> Fact:
        """Return the fact. Raises SessionError for an unknown turn."""
        return Fact(
            id=fact_id(past.header.session_id, self.text.text),
            content=self.text.text,
            turn=_turn(past, self.turn),
            created_at=_now(),
            source=normalize_text(self.source, what="a source").text,
            changed=self.text.changed,
        )


def checked_id(given: str | None) -> str | None:
    """Return an id that a client chose. Raises SessionError for an ambiguous one."""
    if given is None or (given and len(given) <= _LONGEST and not _CONTROL.search(given)):
        return given
    raise SessionError(
        f"no id for a message or step: {given[:100]!a}. Give 1 to {_LONGEST} characters "
        "without control characters, or none for an id of its own"
    )


def about_of(given: Mapping[str, Any], redact: Redact | None) -> dict[str, Any]:
    """Return the other fields of a working step in the form in which they are stored.

    Raises StepError for an unknown field, and for an invalid value.
    """
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _ABOUT:
            raise StepError(f"a step has no {name!r}{nearest(name, _ABOUT)}; {', '.join(_ABOUT)}")
        if name in _TEXTS:
            kept[name] = normalize_text(value, what=name, redact=redact).text
        elif name == "error" and isinstance(value, Mapping):
            kept[name] = {
                str(key): normalize_text(str(text), what="an error", redact=redact).text
                for key, text in value.items()
            }
        elif name == "metadata" and isinstance(value, Mapping):
            kept[name] = metadata_of(value, redact)
        elif name in _NUMBERS and type(value) is int:
            kept[name] = value
        elif value is not None:
            raise StepError(
                f"{name}={value!r} is invalid; use an integer, for error a mapping of "
                "strings, or for metadata a mapping of JSON data"
            )
    return kept


def metadata_of(given: Mapping[str, Any], redact: Redact | None) -> dict[str, Any]:
    """Return a copy of metadata to store, with its texts cleaned like all texts of a session.

    Raises StepError for data that is not JSON.
    """
    try:
        # Through JSON: what is returned now equals what a reader gets, with lists for tuples.
        plain = json.loads(json.dumps(given, allow_nan=False, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise StepError(f"the metadata of a step is JSON data: {error}") from None
    kept: dict[str, Any] = _kept(plain, redact)
    return kept


def _kept(value: Any, redact: Redact | None) -> Any:
    if isinstance(value, str):
        return normalize_text(value, what="metadata", redact=redact).text
    if isinstance(value, list):
        return [_kept(one, redact) for one in value]
    if isinstance(value, dict):
        return {_kept(name, redact): _kept(one, redact) for name, one in value.items()}
    return value


def cleared(past: SessionState) -> Cleared:
    """Return a marker that hides earlier entries. Raises SessionError in an unfinished turn."""
    if past.unfinished is not None:
        raise SessionError(
            f"turn {past.turn} of session {past.header.session_id!r} is unfinished; resume or "
            "cancel it before the session is cleared"
        )
    stem = stem_of(past, past.turn)
    return Cleared(id=f"{stem}/clear/{_new()}", turn=past.turn, created_at=_now())


def check_open(past: SessionState, turn: int) -> None:
    """Raise SessionError unless a turn can still receive an answer."""
    ended = past.ended(turn)
    if past.asked(turn) is None:
        problem = "does not exist, or was cleared"
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


def stem_of(past: SessionState, turn: int) -> str:
    """Return the id of a turn's run, which is the prefix of the ids of its messages."""
    return f"{past.header.session_id}.{turn}"


def _turn(past: SessionState, turn: int | None) -> int:
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


UNANSWERED = "(This was cancelled or failed, and is over.)"


def view_of(past: SessionState, *, last: int | None, facts: int | None) -> list[BaseMessage]:
    """Return the messages that a turn sees: facts, then the messages of the last turns.

    The session does not change. A note follows each message without an answer, or a model would
    take up a request that the user has given up.
    """
    seen = [*_said(past, last)]
    # Not [-facts:], which returns all facts for 0.
    known = past.facts if facts is None else past.facts[max(0, len(past.facts) - facts) :]
    if not known:
        return seen
    told = "\n".join(("Known from earlier:", *(f"- {fact.content}" for fact in known)))
    return [SystemMessage(content=told, id=f"{past.header.session_id}/facts"), *seen]


def _said(past: SessionState, last: int | None) -> Iterator[BaseMessage]:
    for message in past.since_turn(last):
        yield message.to_langchain()
        end = past.ended(message.turn) if message.role == "user" else None
        # Not after the last message: that is the turn which is being answered.
        if end is not None and end.error is not None and message.turn < past.turn:
            yield AIMessage(UNANSWERED, id=f"{message.id}/unanswered")


def summary_of(past: SessionState, *, last: int | None, facts: Sequence[Fact]) -> str:
    """Return a summary of a session for a prompt: its length, facts and last messages."""
    number = past.turn
    lines = [f"Session {past.header.session_id}: {number} turn{'' if number == 1 else 's'}."]
    if facts:
        lines += ["Facts:", *(f"- {fact.content} (turn {fact.turn})" for fact in facts)]
    if messages := past.since_turn(last):
        lines += ["Conversation:", *(f"{one.role}: {one.content}" for one in messages)]
    return "\n".join(lines)
