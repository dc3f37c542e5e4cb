"""Said: a message's role and text, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

_ROLES = {"human": "user", "ai": "assistant"}


def role_of(message: BaseMessage) -> str:
    """Give who speaks: system, user, assistant, tool."""
    return _ROLES.get(message.type, message.type)


def said(message: BaseMessage) -> str:
    """Give a message's text; what is not text is named, as in `[image]` or `[calls search]`."""
    content = message.content
    blocks: Sequence[Any] = [content] if isinstance(content, str) else content
    text = "".join(map(_block_text, blocks))
    if isinstance(message, AIMessage):
        text += "".join(f"[calls {call['name']}]" for call in message.tool_calls)
    return text


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type", "block")
    return str(block.get("text", "")) if kind == "text" else f"[{kind}]"
