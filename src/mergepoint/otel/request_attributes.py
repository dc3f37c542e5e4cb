"""Attributes of requests to models and of executions of tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from mergepoint.core.text import clean
from mergepoint.journal.call_records import SHOWN_SOURCES, TOOL, CallRecord, to_json_value
from mergepoint.journal.redact import Redact, safe_texts
from mergepoint.models.responses import finish_reason
from mergepoint.otel import conventions as names
from mergepoint.otel.span_facts import Value
from mergepoint.report.views import SeenMessage, result_of, role_of, said

Mask = Callable[[str], str]


def request_attributes(record: CallRecord) -> dict[str, Value]:
    """Return the attributes of a request to a model, without content.

    A reused answer has no usage: nothing was paid for it, and backends add usage up.
    """
    provider, _, model = record.model.rpartition(":")
    found: dict[str, Value] = {
        names.OPERATION: names.CHAT,
        names.PROVIDER: names.PROVIDERS.get(provider, provider) or names.OTHER_ERROR,
        **({names.REQUEST_MODEL: model} if model else {}),
        **_parameters(record.params),
        **record_attributes(record),
        names.ATTEMPT: record.attempt,
    }
    if record.source == "live":
        found |= _usage(record.usage or {})
    if record.message is not None:
        found |= _response(record.message)
    return found


def record_attributes(record: CallRecord) -> dict[str, Value]:
    """Return the attributes that every call has: its path, its source, and its cost."""
    cost = record.cost if record.source == "live" else None
    return {
        names.PATH: record.path,
        **({names.HOST: record.key.host} if record.key.host else {}),
        names.KIND: record.kind,
        names.SOURCE: SHOWN_SOURCES[record.source],
        **({names.COST: cost} if cost is not None else {}),
    }


def tool_attributes(record: CallRecord) -> dict[str, Value]:
    """Return the attributes of the execution of a tool, without content."""
    return {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_NAME: record.model.removeprefix(TOOL),
        names.TOOL_TYPE: "function",
        **record_attributes(record),
        names.KIND: "tool",
    }


def request_content(
    record: CallRecord, seen: Sequence[SeenMessage], redact: Redact | None
) -> dict[str, Value]:
    """Return the prompt and the answer of a request as attributes.

    Args:
        record: The record of the request.
        seen: All messages of the request, if they are known. Otherwise it has the messages of the
            record, which lack the conversation before the prompt.
        redact: The hook that changes texts before they leave.
    """
    system: list[str] = []
    sent: list[Mapping[str, Any]] = []
    pairs = [(one.role, one.text) for one in seen] or [
        (role_of(one), said(one)) for one in (*record.lead, HumanMessage(record.prompt))
    ]
    for role, text in pairs:
        if role == "system":
            system.append(text)
        else:
            sent.append({"role": role, "parts": [_text_part(text)]})
    found = {names.INPUT_MESSAGES: _as_json(sent, redact)}
    if system:
        found[names.SYSTEM_INSTRUCTIONS] = _as_json([*map(_text_part, system)], redact)
    if record.message is not None or record.response:
        found[names.OUTPUT_MESSAGES] = _as_json([_answer(record)], redact)
    return dict(found)


def tool_content(record: CallRecord, redact: Redact | None) -> dict[str, Value]:
    """Return the arguments and the result of a tool's execution as attributes."""
    text, _ = result_of(record)
    found: dict[str, Value] = {
        names.TOOL_ARGUMENTS: _as_json(dict(record.params).get("args", {}), redact)
    }
    return found if text is None else {**found, names.TOOL_RESULT: _as_json(text, redact)}


def messages_content(messages: Iterable[BaseMessage], redact: Redact | None) -> str:
    """Return messages as the JSON text of `gen_ai.input.messages`."""
    plain = [
        {"role": role_of(one), "parts": [_text_part(said(one))]}
        for one in messages
        if not isinstance(one, SystemMessage)
    ]
    return _as_json(plain, redact)


def values_content(value: Any, redact: Redact | None) -> str:
    """Return any value as JSON text, masked as a journal masks it."""
    return _as_json(to_json_value(value), redact)


def output_content(text: str, redact: Redact | None) -> str:
    """Return the result of a run as the JSON text of `gen_ai.output.messages`."""
    answer = {"role": "assistant", "parts": [_text_part(text)], "finish_reason": "stop"}
    return _as_json([answer], redact)


def _answer(record: CallRecord) -> Mapping[str, Any]:
    message = record.message
    calls = [] if message is None else message.tool_calls
    text = record.response or ("" if message is None else str(message.text))
    parts = [
        *([_text_part(text)] if text or not calls else []),
        *(
            {"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": call["args"]}
            for call in calls
        ),
    ]
    reason = "" if message is None else finish_reason(message)
    stopped = reason or ("tool_call" if calls else "stop")
    return {"role": "assistant", "parts": parts, "finish_reason": stopped}


def _text_part(text: str) -> Mapping[str, Any]:
    return {"type": "text", "content": text}


def _as_json(value: Any, redact: Redact | None) -> str:
    return json.dumps(clean(safe_texts(value, redact)), ensure_ascii=False, default=str)


def _parameters(params: Mapping[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, attribute in names.REQUEST_NUMBERS.items():
        if isinstance(value := params.get(name), int | float):
            found[attribute] = float(value)
    for name, attribute in names.REQUEST_COUNTS.items():
        if type(value := params.get(name)) is int:
            found[attribute] = value
    return found


def _usage(usage: Mapping[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, attribute in (
        ("input_tokens", names.INPUT_TOKENS),
        ("output_tokens", names.OUTPUT_TOKENS),
    ):
        if (count := usage.get(name)) is not None:
            found[attribute] = int(count)
    for (group, name), attribute in names.USAGE_DETAILS.items():
        if (count := (usage.get(group) or {}).get(name)) is not None:
            found[attribute] = int(count)
    return found


def _response(message: AIMessage) -> dict[str, Value]:
    about = message.response_metadata
    model = about.get("model_name") or about.get("model")
    reason = finish_reason(message)
    answer = about.get("id")
    return {
        **({names.RESPONSE_MODEL: model} if isinstance(model, str) and model else {}),
        **({names.RESPONSE_ID: answer} if isinstance(answer, str) and answer else {}),
        **({names.FINISH_REASONS: (reason,)} if reason else {}),
    }
