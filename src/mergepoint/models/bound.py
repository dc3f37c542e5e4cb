"""Bounds: how many tokens a call can use at most, known before it is made.

A prompt is bounded by its bytes: in byte-level tokenizers, and those that fall back to bytes, a
token stands for at least one. Counting with the provider's own tokenizer would be closer, and
need its package; a guess of three or four characters a token is no bound. An answer is bounded by
the limit that the call or its model sets. Images, audio and files are estimates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

OUTPUT_ESTIMATE = 1_024  # tokens of an answer that nothing limits
MEDIA_ESTIMATE = 4_096  # tokens of an image, an audio clip or a file in a prompt

_REQUEST = 64  # what a chat format puts around all messages
_MESSAGE = 16  # what it puts around each
_TOOLS = 1_024  # what a provider's own instructions for tools take
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
_NESTED = ("options", "generation_config", "model_kwargs")
_TOOL_PARAMS = ("tools", "functions", "response_format")


@dataclass(frozen=True, slots=True)
class CallShape:
    """What is known of a step's calls beforehand: its model, its cap, its schema's bytes."""

    model: str
    _: KW_ONLY
    output: int | None = None
    schema: int = 0


def prompt_at_most(
    messages: Sequence[BaseMessage], params: Mapping[str, Any], *, schema: int = 0
) -> int:
    """Give the most tokens that a prompt can have, tools and schema included."""
    tools = sum(_json_bytes(params[name]) for name in _TOOL_PARAMS if name in params) + schema
    around = _REQUEST + _MESSAGE * len(messages) + (_TOOLS if tools else 0)
    return around + tools + sum(_message_bytes(message) for message in messages)


def output_at_most(params: Mapping[str, Any], shape: CallShape | None, *, estimate: int) -> int:
    """Give the most tokens that an answer can have; the estimate where nothing limits it.

    With `n` answers for one prompt, that many times.
    """
    cap = output_cap(params) or (shape.output if shape is not None else None) or estimate
    answers = params.get("n")
    return cap * answers if isinstance(answers, int) and answers > 1 else cap


def shape_of(identity: str, model: BaseChatModel, schema: Mapping[str, Any] | None) -> CallShape:
    """Give the shape of the calls that a model of this identity is asked with a schema."""
    size = 0 if schema is None else _json_bytes(schema)
    return CallShape(identity, output=output_cap_of(model), schema=size)


def output_cap(params: Mapping[str, Any]) -> int | None:
    """Give the limit that parameters set on an answer's tokens, the largest of several."""
    nested = (params.get(name) for name in _NESTED)
    found = [params.get(name) for name in _CAPS]
    found += [output_cap(inner) for inner in nested if isinstance(inner, Mapping)]
    return max((cap for cap in found if type(cap) is int and cap > 0), default=None)


def output_cap_of(model: BaseChatModel) -> int | None:
    """Give the limit that a model sets on its answers' tokens."""
    names = _cap_names(type(model))
    return output_cap({name: getattr(model, name, None) for name in names}) if names else None


@lru_cache(maxsize=256)
def _cap_names(kind: type[BaseChatModel]) -> tuple[str, ...]:
    """Give the limits that models of a class have; pydantic is slow to miss an attribute."""
    return tuple(
        name for name in (*_CAPS, *_NESTED) if name in kind.model_fields or hasattr(kind, name)
    )


def _message_bytes(message: BaseMessage) -> int:
    content = message.content
    size = _bytes(content) if isinstance(content, str) else sum(map(_block_bytes, content))
    if isinstance(message, AIMessage) and message.tool_calls:
        size += _json_bytes(message.tool_calls)
    return size + (_bytes(message.name) if message.name else 0)


def _block_bytes(block: str | dict[str, Any]) -> int:
    if isinstance(block, str):
        return _bytes(block)
    text = block.get("text")
    if isinstance(text, str):
        return _bytes(text) + _MESSAGE
    media = str(block.get("type", "")) in _MEDIA
    return MEDIA_ESTIMATE if media else _json_bytes(block)


_MEDIA = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "file", "document"}
)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _json_bytes(value: Any) -> int:
    return _bytes(json.dumps(value, ensure_ascii=False, default=str))
