"""SessionMessage: one turn of speech in a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

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
    """A message of a session's conversation, in the turn that the last user message began.

    `run` is there where a run answers: on a user's message the run that is to, on the answer the
    run that did, with the `path` of what made it. `changed` says what was done to the text when
    it came in.
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
        """Give the message's type, as the merge asks for it."""
        return _TYPES[self.role]

    def to_langchain(self) -> BaseMessage:
        """Give the message as models take it, with its id."""
        return _CLASSES[self.role](content=self.content, id=self.id)
