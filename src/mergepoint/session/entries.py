"""The entries of a session: messages, facts, working steps, and their file format."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, get_args

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
)

from mergepoint.core.errors import SessionError, StepError
from mergepoint.core.text import clean_text
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.redact import Redact, mask, redacted, suspicious

Role = Literal["user", "assistant", "system"]
ROLES: tuple[str, ...] = get_args(Role)

_TYPES: dict[str, str] = {"user": "human", "assistant": "ai", "system": "system"}
_CLASSES: dict[str, type[BaseMessage]] = {
    "user": HumanMessage,
    "assistant": AIMessage,
    "system": SystemMessage,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMessage:
    """A message of a session's conversation; each user message begins a turn.

    `run` is set if a run answers: on a user's message the run that will answer, on the answer the
    run that did, with the `path` of the node that produced it. `changed` lists changes to the text
    on arrival.
    """

    id: str
    role: Role
    content: str
    turn: int
    created_at: datetime
    run: str = ""
    path: str = ""
    changed: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """Return the message's type, as merging needs it."""
        return _TYPES[self.role]

    def to_langchain(self) -> BaseMessage:
        """Return the message for models, with its id."""
        return _CLASSES[self.role](content=self.content, id=self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact to remember, and the turn that it came from.

    `turn` is the turn, `source` the id of the message, if known.
    """

    id: str
    content: str
    turn: int
    created_at: datetime
    source: str = ""
    changed: tuple[str, ...] = ()


def fact_id(session_id: str, content: str) -> str:
    """Return the id of a fact: the same for the same words, so that none is stored twice."""
    words = " ".join(content.casefold().split()).rstrip(".!")
    digest = hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
    return f"{session_id}/fact/{digest}"


CANCELLED = "Cancelled"


class StepType(StrEnum):
    """The kind of a step in a turn."""

    PLAN = "plan"
    CODEGEN = "codegen"
    EXECUTE = "execute"
    DECISION = "decision"
    RESPONSE = "response"


class StepCategory(StrEnum):
    """Whether a step is work or the result of the turn."""

    WORKING = "working"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingStep:
    """An artifact of a turn: a plan, code, an execution, a decision, or the turn's result.

    `path` is the node that produced it, `attempt` counts from 1. A plan has `intent` and `action`.
    An execution has an `exit_code`, and its content is JSON text with `stdout` and `stderr`, see
    `printed`. A decision has the `decision` (approve, edit, reject), the `feedback`, the type
    `decides` of the step that it is about, and the edited text as content. A response has no text:
    `message` is the id of the answer, or `error` is {type, message, path, node} of the failure.
    `metadata` is the caller's JSON data. Models never see working steps.
    """

    id: str
    type: StepType
    turn: int
    created_at: datetime
    content: str = ""
    path: str = ""
    attempt: int | None = None
    exit_code: int | None = None
    intent: str = ""
    action: str = ""
    decision: str = ""
    decides: str = ""
    feedback: str = ""
    message: str = ""
    error: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    changed: tuple[str, ...] = ()

    @property
    def category(self) -> StepCategory:
        """Return whether it is work or a response."""
        response = self.type is StepType.RESPONSE
        return StepCategory.RESPONSE if response else StepCategory.WORKING

    @property
    def printed(self) -> tuple[str, str]:
        """Return stdout and stderr of an execution; other content counts as stdout."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            return self.content, ""
        if not isinstance(found, dict) or not found.keys() <= {"stdout", "stderr"} or not found:
            return self.content, ""
        return str(found.get("stdout", "")), str(found.get("stderr", ""))

    @property
    def cancelled(self) -> bool:
        """Return whether a person ended the turn."""
        return self.error is not None and self.error.get("type") == CANCELLED


def execution_content(stdout: str, stderr: str) -> str:
    """Return the output of a program as the content of an execution.

    Lone surrogates are replaced here, since an escape in JSON would restore them.
    """
    printed = {"stdout": clean_text(stdout), "stderr": clean_text(stderr)}
    return json.dumps(printed, ensure_ascii=False)


FORMAT: Final = "mergepoint.session/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeader:
    """The start of a session, which is the first line of its journal.

    `repaired` counts how often the journal was rewritten without damaged lines.
    """

    session_id: str
    created_at: datetime
    repaired: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Return the header as JSON data."""
        return {"format": FORMAT, **plain_of(self)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> SessionHeader:
        """Return a header from its JSON data."""
        return SessionHeader(**_read(SessionHeader, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """A marker: earlier entries are hidden from here on, and stay in the journal."""

    id: str
    turn: int
    created_at: datetime


Entry = SessionMessage | Fact | WorkingStep | Cleared

_KINDS: dict[str, type[Entry]] = {
    "message": SessionMessage,
    "fact": Fact,
    "step": WorkingStep,
    "clear": Cleared,
}
_KIND_OF = {kind: name for name, kind in _KINDS.items()}


def entry_to_plain(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON data; fields with their default value are omitted."""
    return {"kind": _KIND_OF[type(entry)], **plain_of(entry)}


def entry_from_plain(data: Mapping[str, Any]) -> Entry:
    """Return an entry from its JSON data; unknown keys are ignored.

    Raises ValueError, TypeError or KeyError for invalid data.
    """
    kind: Any = _KINDS[data["kind"]]
    entry: Entry = kind(**_read(kind, data))
    return entry


def plain_of(value: Any) -> dict[str, Any]:
    """Return the fields of an entry as JSON data, without those that have their default."""
    return {
        field.name: _WRITERS[field.name](found) if field.name in _WRITERS else found
        for field in fields(value)
        if (found := getattr(value, field.name)) != field.default
    }


def _read(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for one in fields(kind):
        if one.name in data or one.default is MISSING:
            read: Callable[[Any], Any] = _READERS.get(one.name, _text)
            found[one.name] = read(data[one.name])
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} isn't a string")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} isn't an integer")
    return value


def _role(value: Any) -> str:
    if value not in ROLES:
        raise ValueError(f"role {value!r} is none of {', '.join(ROLES)}")
    return str(value)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} isn't a mapping")
    return copy.deepcopy(dict(value))


def _error(value: Any) -> dict[str, str]:
    return {_text(key): _text(item) for key, item in dict(value).items()}


_READERS: dict[str, Callable[[Any], Any]] = {
    "role": _role,
    "turn": _number,
    "attempt": _number,
    "exit_code": _number,
    "repaired": _number,
    "type": StepType,
    "created_at": lambda value: datetime.fromisoformat(_text(value)),
    "changed": lambda value: tuple(map(_text, value)),
    "error": _error,
    "metadata": _mapping,
}
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "type": str,
    "created_at": lambda value: value.isoformat(),
    "changed": list,
    "error": dict,
    # A deep copy: metadata is nested, and a caller may change the data that it gets.
    "metadata": copy.deepcopy,
}


@dataclass(frozen=True, slots=True)
class CleanedText:
    """Text to store; `changed` lists its changes: cleaned, redacted, masked."""

    text: str
    changed: tuple[str, ...] = ()


def normalize_text(given: object, *, what: str, redact: Redact | None = None) -> CleanedText:
    r"""Return text in the form in which it is stored.

    Halves of surrogate pairs, which UTF-8 cannot encode, are joined if they form a character; a
    lone one becomes U+FFFD. Everything else stays, control characters too. The hook may change the
    text, and keys of known forms are masked.

    Raises StepError for a value that is not text, and SessionError if the hook fails.
    """
    if not isinstance(given, str):
        raise StepError(f"{what} is text, not {type(given).__name__}")
    steps = [clean_text(given)]
    try:
        steps.append(steps[-1] if redact is None else clean_text(redacted(steps[-1], redact)))
    except JournalError as error:
        raise SessionError(f"{what} cannot be written: {error}") from error
    steps.append(mask(steps[-1]) if suspicious(steps[-1].encode()) else steps[-1])
    # Pairs each text with the one before it; the last text has no successor, so not strict.
    acts = zip(("cleaned", "redacted", "masked"), [given, *steps], steps, strict=False)
    return CleanedText(steps[-1], tuple(act for act, before, after in acts if before != after))


def normalize_spoken_text(given: object, *, what: str, redact: Redact | None = None) -> CleanedText:
    """Return the same as `normalize_text`. Raises StepError for blank text too."""
    kept = normalize_text(given, what=what, redact=redact)
    if not kept.text.strip():
        raise StepError(f"{what} is blank; give it some text")
    return kept


# Clients choose ids of sessions, and ids become folder names, so only safe ones are accepted.

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def new_session_id() -> str:
    """Return a new unique id: a random UUID (RFC 9562, version 4)."""
    return str(uuid.uuid4())


def checked_session_id(given: object) -> str:
    """Return a session's id: a UUID, or another word of letters, digits, `-` and `_`.

    Raises SessionError for anything else. Such an id cannot leave its folder, is not hidden, and
    has no `.`, which separates the number of a turn in the ids of runs.
    """
    if isinstance(given, str) and _SAFE.fullmatch(given):
        return given
    shown = ascii(given) if len(str(given)) <= 100 else f"one of {len(str(given)):,} characters"
    raise SessionError(
        f"no id for a session: {shown}. Give a UUID, or 1 to 100 letters from a to z, digits, '-' "
        "and '_', the first of them a letter or digit"
    )


_ROLES = {"human": "user", "ai": "assistant"}


def _time(given: Any) -> datetime:
    if not isinstance(given, str):
        raise ValueError("a time is text, such as 2026-01-31T09:30:00+00:00")
    found = datetime.fromisoformat(given)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _spoken(given: str) -> str:
    if not given.strip():
        raise ValueError("it is blank; write some text, or leave the row out")
    return given


def _written(given: Any) -> Any:
    """Return a step's content; a value that is not text, such as {stdout, stderr}, as JSON."""
    if isinstance(given, dict | list):
        return json.dumps(given, ensure_ascii=False)
    return given


def _fact(given: Any) -> Any:
    return {"content": given} if isinstance(given, str) else given


Time = Annotated[datetime, BeforeValidator(_time)]
Turn = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[int, Field(strict=True)]
Speaker = Annotated[
    Role,
    BeforeValidator(lambda given: _ROLES.get(given, given) if isinstance(given, str) else given),
]
Text = Annotated[str, AfterValidator(_spoken)]


class _Row(BaseModel):
    """A row. `timestamp` is an alias of `created_at`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = ""
    created_at: Time | None = Field(
        default=None, validation_alias=AliasChoices("created_at", "timestamp")
    )
    changed: tuple[str, ...] = ()


class MessageRow(_Row):
    """A message: `role` (user, assistant, system; human and ai are accepted) and `content`.

    A message without a `turn` belongs to the turn of the last user message.
    """

    role: Speaker
    content: Text
    turn: Turn | None = None
    run: str = ""
    path: str = ""


class FactRow(_Row):
    """A fact: `content`, and the `turn` and message (`source`) that it came from.

    `fact` and `source_turn` are aliases of content and turn.
    """

    content: Text = Field(validation_alias=AliasChoices("content", "fact"))
    turn: Turn = Field(default=0, validation_alias=AliasChoices("turn", "source_turn"))
    source: str = ""


class StepRow(_Row):
    """A step. `step_type` is an alias of `type`.

    Without a `turn`, it belongs to the turn in which it was made according to its time, or to the
    last one. A response names a `message` or an `error`, or has the content of an answer.
    """

    type: StepType = Field(validation_alias=AliasChoices("type", "step_type"))
    category: StepCategory | None = None
    content: Annotated[str, BeforeValidator(_written)] = ""
    turn: Turn | None = None
    path: str = ""
    attempt: Number | None = None
    exit_code: Number | None = None
    intent: str = ""
    action: str = ""
    decision: str = ""
    decides: str = ""
    feedback: str = ""
    message: str = ""
    error: dict[str, str] | None = None
    metadata: dict[str, JsonValue] | None = None


def _list(given: Any) -> Any:
    return [] if given is None else given


class SessionFile(BaseModel):
    """A session. Times without a time zone are UTC; a fact may be just a string."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session_id: str | None = None
    created_at: Time | None = None
    updated_at: Time | None = None
    omitted: dict[str, int] = {}
    messages: list[MessageRow]
    facts: Annotated[list[Annotated[FactRow, BeforeValidator(_fact)]], BeforeValidator(_list)] = []
    steps: Annotated[list[StepRow], BeforeValidator(_list)] = Field(
        default=[], validation_alias=AliasChoices("steps", "working_steps")
    )


def keys_of(row: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys that a mapping of a file may have, including aliases."""
    keys: list[str] = []
    for name, field in row.model_fields.items():
        alias = field.validation_alias
        keys += map(str, alias.choices) if isinstance(alias, AliasChoices) else [name]
    return tuple(keys)
