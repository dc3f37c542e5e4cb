"""Lean: a message as plain data, without what its record says beside it.

An answer of four pages is the larger part of its record, and would stand in it twice: as the text
that the step made, and as the content of the provider's message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from langchain_core.messages import AIMessage, BaseMessage, messages_from_dict

from mergepoint.record.jsonable import jsonable

_EMPTY: Mapping[str, Any] = {
    "additional_kwargs": {},
    "response_metadata": {},
    "name": None,
    "id": None,
    "tool_calls": [],
    "invalid_tool_calls": [],
    "usage_metadata": None,
}
_ABSENT = object()


def lean(
    message: BaseMessage, response: str, *, usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Give a message as JSON data, without fields that are empty.

    Null stands for the record's response where that is the content, or the text of its one block
    of text. Token counts are left out where they are the record's `usage`.
    """
    data = {
        key: value
        for key, value in _fields(message).items()
        if value or value != _EMPTY.get(key, _ABSENT)
    }
    kind = data.pop("type")
    if usage is not None and data.get("usage_metadata") == usage:
        del data["usage_metadata"]
    data["content"] = _without(data["content"], response)
    return {"type": kind, "data": jsonable(data)}


def full(
    plain: Mapping[str, Any], response: str, *, usage: Mapping[str, Any] | None = None
) -> BaseMessage:
    """Give the message back."""
    data = {**plain["data"], "content": _with(plain["data"]["content"], response)}
    if usage is not None:
        data.setdefault("usage_metadata", usage)
    return messages_from_dict([{**plain, "data": data}])[0]


def _fields(message: BaseMessage) -> Mapping[str, Any]:
    """Give the fields of a message; pydantic takes five times as long to copy them first."""
    if type(message) is not AIMessage:
        return message.model_dump()
    return {**vars(message), **message.model_extra} if message.model_extra else vars(message)


def _without(content: Any, response: str) -> Any:
    if content == response:
        return None
    if not isinstance(content, list) or [b["text"] for b in content if _is_text(b)] != [response]:
        return content
    return [{**block, "text": None} if _is_text(block) else block for block in content]


def _with(content: Any, response: str) -> Any:
    if content is None:
        return response
    if not isinstance(content, list):
        return content
    return [
        {**block, "text": response} if _is_text(block) and block["text"] is None else block
        for block in content
    ]


def _is_text(block: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(block, dict) and block.get("type") == "text" and "text" in block
