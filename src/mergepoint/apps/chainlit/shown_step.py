"""A message or step as the browser shows it, and its ids."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

# Derived steps have version-5 UUIDs and Chainlit's own have random version-4 UUIDs (RFC 9562), so
# an id shows where a step comes from.
_SPACE = uuid.UUID("6f2ca2f2-4d0e-5c0e-9a53-6d657267650a")

ICON = "icon"
"""Key in a step's metadata from which Chainlit reads the icon."""

ASSISTANT = "mergepoint"
"""The author name of answers."""

StepKind = Literal["user_message", "assistant_message", "system_message", "run", "tool", "llm"]
"""The kinds of messages and steps. Only answers are assistant messages: thumbs rate those."""

# Absolute paths, drive letters, home folders, and the paths in file and SQLite URLs. The bounded
# repetitions keep matching linear on hostile text.
_PATH = re.compile(
    r"(?<![\w.~\\/:])(?:sqlite:/{3}|file:/{2})?(?:~|[A-Za-z]:)?"
    r"(?:[\\/][^\s\\/:'\"`,;()<>]{0,255}){1,64}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A button below a message, and the payload of its click."""

    name: str
    label: str
    payload: Mapping[str, Any]
    icon: str = ""
    tooltip: str = ""

    def id_at(self, step: str) -> str:
        """Return the button's id below a message, which is the same each time.

        It begins with the button's action, which the page's style and script match.
        """
        return f"mergepoint-{self.name}-{uuid.uuid5(_SPACE, f'{step}/{self.name}')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStep:
    """A message or step of a turn.

    While it is `live`, its text grows. `open` steps are unfolded. `icon` is the name of a Lucide
    icon.
    """

    id: str
    type: StepKind
    name: str
    turn: int
    parent: str | None
    text: str
    created_at: datetime
    ended_at: datetime | None = None
    is_error: bool = False
    open: bool = False
    live: bool = False
    buttons: tuple[Button, ...] = ()
    icon: str = ""

    @property
    def message(self) -> bool:
        """Return whether it is a message instead of a step."""
        return self.type.endswith("_message")

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata from which Chainlit reads the icon."""
        return {ICON: self.icon} if self.icon else {}

    def to_step(self, thread: str) -> dict[str, Any]:
        """Return it as Chainlit's StepDict."""
        begun = timestamp(self.created_at)
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
            "end": timestamp(self.ended_at) if self.ended_at else None,
            "isError": self.is_error,
            "streaming": False,
            "waitForAnswer": False,
            "showInput": False,
            "defaultOpen": self.open,
            "autoCollapse": not self.open,
            "metadata": self.metadata,
            "tags": None,
        }


def shown_id(entry: str) -> str:
    """Return the browser's id of a session entry; Chainlit's own ids are kept."""
    try:
        given = uuid.UUID(entry)
    except ValueError:
        return str(uuid.uuid5(_SPACE, entry))
    return entry if str(given) == entry else str(uuid.uuid5(_SPACE, entry))


def is_derived(step: str) -> bool:
    """Return whether an id belongs to a step that is derived from the session."""
    try:
        return uuid.UUID(step).version == 5
    except ValueError:
        return False


def timestamp(moment: datetime) -> str:
    """Return a time as Chainlit writes it: in UTC, with a Z."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def parse_timestamp(text: object) -> datetime:
    """Return the time of a stamp; invalid ones count as the earliest."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def without_paths(text: str) -> str:
    """Return a text with paths of this machine reduced to their last part.

    Clients see this form of an error; the server's log has the whole text.
    """
    return _PATH.sub(lambda found: re.split(r"[\\/]", found[0].rstrip("\\/"))[-1] or "/", text)
