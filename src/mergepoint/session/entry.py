"""Entries: what a session's journal holds, as values and as plain data. docs/sessions.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Any, Final

from mergepoint.session.fact import Fact
from mergepoint.session.message import ROLES, SessionMessage
from mergepoint.session.working_step import StepType, WorkingStep

FORMAT: Final = "mergepoint.session/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeader:
    """What a session began with; the first line of its journal.

    `repaired` counts how often the journal was written anew without damaged lines.
    """

    session_id: str
    created_at: datetime
    repaired: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Give the header as JSON data."""
        return {"format": FORMAT, **plain_of(self)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> SessionHeader:
        """Give a header back from its JSON data."""
        return SessionHeader(**_read(SessionHeader, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """A new beginning: what came before is left out from here on, and stays in the journal."""

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
    """Give an entry as JSON data; fields that have their default are left out."""
    return {"kind": _KIND_OF[type(entry)], **plain_of(entry)}


def entry_from_plain(data: Mapping[str, Any]) -> Entry:
    """Give an entry back from its JSON data; unknown keys are passed over.

    Raises ValueError, TypeError or KeyError for what is none.
    """
    kind: Any = _KINDS[data["kind"]]
    entry: Entry = kind(**_read(kind, data))
    return entry


def plain_of(value: Any) -> dict[str, Any]:
    """Give the fields of an entry as JSON data, less those that have their default."""
    return {
        field.name: _WRITERS.get(field.name, _same)(found)
        for field in fields(value)
        if (found := getattr(value, field.name)) != field.default
    }


def _read(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    wanted = (one for one in fields(kind) if one.name in data or one.default is MISSING)
    return {one.name: _reader(one.name)(data[one.name]) for one in wanted}


def _reader(name: str) -> Callable[[Any], Any]:
    return _READERS.get(name, _text)


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _role(value: Any) -> str:
    if value not in ROLES:
        raise ValueError(f"role {value!r} is none of {', '.join(ROLES)}")
    return str(value)


def _type(value: Any) -> StepType:
    return StepType(value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, value))


def _error(value: Any) -> dict[str, str]:
    return {_text(key): _text(item) for key, item in dict(value).items()}


_READERS: dict[str, Callable[[Any], Any]] = {
    "role": _role,
    "turn": _number,
    "attempt": _number,
    "exit_code": _number,
    "repaired": _number,
    "type": _type,
    "created_at": lambda value: datetime.fromisoformat(_text(value)),
    "changed": _texts,
    "error": _error,
}
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "type": str,
    "created_at": lambda value: value.isoformat(),
    "changed": list,
    "error": dict,
}
