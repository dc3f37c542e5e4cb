"""SessionFile: the schema of a session as YAML. docs/sessions.md shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mergepoint.session.message import Role
from mergepoint.session.working_step import StepCategory, StepType

_ROLES = {"human": "user", "ai": "assistant"}


def _role(given: Any) -> Any:
    return _ROLES.get(given, given) if isinstance(given, str) else given


def _time(given: Any) -> datetime:
    if not isinstance(given, str):
        raise ValueError("a time is text, such as 2026-01-31T09:30:00+00:00")
    found = datetime.fromisoformat(given)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _spoken(given: str) -> str:
    if not given.strip():
        raise ValueError("it is blank; write some text, or leave the row out")
    return given


def _fact(given: Any) -> Any:
    return {"content": given} if isinstance(given, str) else given


Time = Annotated[datetime, BeforeValidator(_time)]
Turn = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[int, Field(strict=True)]
Speaker = Annotated[Role, BeforeValidator(_role)]
Text = Annotated[str, AfterValidator(_spoken)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = ""
    created_at: Time | None = None
    changed: tuple[str, ...] = ()


class MessageRow(_Row):
    """A message: `role` (user, assistant, system; human and ai are taken too) and `content`.

    A message without a `turn` belongs to that of the last user message, which counts them.
    """

    role: Speaker
    content: Text
    turn: Turn | None = None
    run: str = ""
    path: str = ""


class FactRow(_Row):
    """A fact: `content`, and the `turn` and message (`source`) that it came from."""

    content: Text
    turn: Turn = 0
    source: str = ""


class StepRow(_Row):
    """A working step, by default of the last turn; a response names a `message` or an `error`."""

    type: StepType
    category: StepCategory | None = None
    content: str = ""
    turn: Turn | None = None
    path: str = ""
    attempt: Number | None = None
    exit_code: Number | None = None
    intent: str = ""
    action: str = ""
    decision: str = ""
    feedback: str = ""
    message: str = ""
    error: dict[str, str] | None = None


def _list(given: Any) -> Any:
    return [] if given is None else given


class SessionFile(BaseModel):
    """A session. Times without a zone are in UTC; a fact may be a text alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session_id: str | None = None
    created_at: Time | None = None
    updated_at: Time | None = None
    omitted: dict[str, int] = {}
    messages: list[MessageRow]
    facts: Annotated[list[Annotated[FactRow, BeforeValidator(_fact)]], BeforeValidator(_list)] = []
    steps: Annotated[list[StepRow], BeforeValidator(_list)] = []
