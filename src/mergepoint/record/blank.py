"""Blank: messages that hold a text and an id and nothing else, as a call makes two of."""

from __future__ import annotations

from typing import Generic, TypeVar

from langchain_core.messages import AIMessage, HumanMessage

M = TypeVar("M", HumanMessage, AIMessage)


class Blank(Generic[M]):
    """A message class to be filled in, by the way in which copies and pickles are made.

    Pydantic's own way checks a text that is one, at four times the cost; with the two messages of
    each call that is a part of what the call costs.
    """

    def __init__(self, kind: type[M]) -> None:
        self._kind: type[M] = kind
        self._state = kind(content="", id="").__getstate__()
        fields = self._state["__dict__"]
        self._fresh = [(name, type(value)) for name, value in fields.items() if value in ([], {})]

    def filled(self, text: str, message_id: str) -> M:
        """Give what the class gives for this content and id."""
        fields = self._state["__dict__"].copy()
        fields["content"], fields["id"] = text, message_id
        for name, kind in self._fresh:
            fields[name] = kind()
        made: M = self._kind.__new__(self._kind)
        made.__setstate__(
            {
                **self._state,
                "__dict__": fields,
                "__pydantic_extra__": {},
                "__pydantic_fields_set__": {"content", "id"},
            }
        )
        return made


USER = Blank(HumanMessage)
ASSISTANT = Blank(AIMessage)
