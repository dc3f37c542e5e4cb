"""Records as plain data: one form for transcripts and journals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import AIMessage, messages_from_dict, messages_to_dict

from mergepoint.record.record import CallKey, CallRecord

RECORDS = ("steps", "inner", "failures", "questions", "others")
"""The keys of a transcript under which records stand."""


def record_to_plain(record: CallRecord) -> dict[str, Any]:
    """Give a record as JSON data."""
    return {
        **_rare(record),
        "path": record.path,
        "host": record.key.host,
        "name": record.path.rpartition("/")[2],
        "prompt": record.prompt,
        "lead": messages_to_dict(record.lead),
        "response": record.response,
        "params": jsonable(record.params),
        "model": record.model,
        "not_a_language_model": is_offline(record),
        "view": record.view,
        "context": {"messages": record.context},
        "created_at": _iso(record.started),
        "ended_at": _iso(record.ended),
        "seconds": round(max(0.0, record.ended - record.started), 6),
        "usage": record.usage,
        "attempts": record.attempt,
        "source": record.source,
        "request": record.request,
        "message": None if record.message is None else jsonable(_message(record.message)),
        "error": None if record.error is None else dict(record.error),
    }


def record_from_plain(data: Mapping[str, Any], run: str) -> CallRecord:
    """Give a record of a run back from its JSON data."""
    message: Any = None if data["message"] is None else messages_from_dict([data["message"]])[0]
    return CallRecord(
        key=CallKey(run, data["host"], data["path"]),
        prompt=data["prompt"],
        lead=tuple(messages_from_dict(data["lead"])),
        context=data["context"]["messages"],
        response=data["response"],
        message=message,
        params=data["params"],
        model=data["model"],
        view=data["view"],
        started=datetime.fromisoformat(data["created_at"]).timestamp(),
        ended=datetime.fromisoformat(data["ended_at"]).timestamp(),
        attempt=data["attempts"],
        source=data["source"],
        request=data.get("request", ""),
        error=data["error"],
        kind=data.get("kind", "step"),
        value=data.get("value"),
        messages=tuple(messages_from_dict(data.get("messages", []))),
        outputs=data.get("outputs", {}),
        cost=data.get("cost"),
        masked=tuple(data.get("masked", ())),
        sample=data.get("sample", 0),
    )


def _rare(record: CallRecord) -> dict[str, Any]:
    """Give what most records lack, so that it costs them no bytes."""
    rare: dict[str, Any] = {}
    if record.kind != "step":
        rare |= {"kind": record.kind, "value": jsonable(record.value)}
    if record.messages:
        rare["messages"] = jsonable(messages_to_dict(record.messages))
    if record.outputs:
        rare["outputs"] = jsonable(record.outputs)
    if record.cost is not None:
        rare["cost"] = record.cost
    if record.masked:
        rare["masked"] = list(record.masked)
    if record.sample:
        rare["sample"] = record.sample
    return rare


def is_offline(record: CallRecord) -> bool:
    """Say whether the answer came from something that is not a language model."""
    message = record.message
    return message is not None and bool(message.response_metadata.get("not_a_language_model"))


def jsonable(value: Any) -> Any:
    """Give a value with nothing in it that JSON does not hold.

    What providers put into an answer's metadata is theirs; a number that is not finite, a key
    that is no text or an object of theirs must not cost the record of a call that is paid.
    """
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _message(message: AIMessage) -> dict[str, Any]:
    return messages_to_dict([message])[0]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
