"""Shown: a message or step as the browser shows it, worked out from a session."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

# Ids of what is worked out are of version 5, Chainlit's own are random, of version 4 (RFC 9562).
_SPACE = uuid.UUID("6f2ca2f2-4d0e-5c0e-9a53-6d657267650a")

ASSISTANT = "mergepoint"
"""The name under which answers stand."""

StepKind = Literal["user_message", "assistant_message", "run", "tool", "llm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A button below a message; `payload` is what its click says."""

    name: str
    label: str
    payload: Mapping[str, Any]
    icon: str = ""
    tooltip: str = ""

    def id_at(self, step: str) -> str:
        """Give the button's id below a message: the same at every look."""
        return str(uuid.uuid5(_SPACE, f"{step}/{self.name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A message or step of a turn. While it is `live` its text grows; `open` steps show it."""

    id: str
    type: StepKind
    name: str
    turn: int
    parent: str | None
    text: str
    created_at: datetime
    ended_at: datetime | None = None
    wrong: bool = False
    open: bool = False
    live: bool = False
    buttons: tuple[Button, ...] = ()

    @property
    def message(self) -> bool:
        """Say whether it is a message, and not a step."""
        return self.type.endswith("_message")

    def to_step(self, thread: str) -> dict[str, Any]:
        """Give it as Chainlit's StepDict."""
        begun = stamp(self.created_at)
        return {
            "id": self.id,
            "threadId": thread,
            "parentId": self.parent,
            "name": self.name,
            "type": self.type,
            "input": "",
            "output": self.text,
            "createdAt": begun,
            "start": begun,
            "end": stamp(self.ended_at) if self.ended_at else None,
            "isError": self.wrong,
            "streaming": False,
            "waitForAnswer": False,
            "showInput": False,
            "defaultOpen": self.open,
            "autoCollapse": not self.open,
            "metadata": {},
            "tags": None,
        }


def shown_id(entry: str) -> str:
    """Give the id under which the browser knows an entry: Chainlit's own ids stay as they are."""
    try:
        given = uuid.UUID(entry)
    except ValueError:
        return str(uuid.uuid5(_SPACE, entry))
    return entry if str(given) == entry else str(uuid.uuid5(_SPACE, entry))


def worked_out(step: str) -> bool:
    """Say whether an id is that of something that the session holds."""
    try:
        return uuid.UUID(step).version == 5
    except ValueError:
        return False


def stamp(moment: datetime) -> str:
    """Give a time as Chainlit writes it: in UTC, with a Z."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def moment_of(text: object) -> datetime:
    """Give the time of a stamp; what is none counts as the first of all."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
