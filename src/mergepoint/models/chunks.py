"""Chunks: a whole answer as a piece of a stream, and which pieces say something."""

from __future__ import annotations

import json

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult


def as_chunk(result: ChatResult) -> ChatGenerationChunk:
    """Give a whole answer as the one chunk of a stream."""
    message = result.generations[0].message
    whole = AIMessageChunk(
        **message.model_dump(exclude={"type", "tool_calls", "invalid_tool_calls"}),
        tool_call_chunks=[
            tool_call_chunk(
                name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index
            )
            for index, call in enumerate(getattr(message, "tool_calls", ()))
        ],
        chunk_position="last",
    )
    return ChatGenerationChunk(message=whole)


def says_something(chunk: ChatGenerationChunk) -> bool:
    """Say whether a chunk has more than what a provider opens a stream with."""
    message = chunk.message
    content = message.content.strip() if isinstance(message.content, str) else message.content
    calls = getattr(message, "tool_call_chunks", None)
    return bool(content or calls or message.additional_kwargs)
