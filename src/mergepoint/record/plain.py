"""Records as plain data: one form for transcripts and journals."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from langchain_core.messages import messages_from_dict, messages_to_dict

from mergepoint.record.jsonable import jsonable
from mergepoint.record.lean import full, lean
from mergepoint.record.record import CallKey, CallRecord

RECORDS = ("steps", "inner", "failures", "questions", "others")
"""The keys of a transcript under which records stand."""


def record_to_plain(record: CallRecord) -> dict[str, Any]:
    """Give a record as JSON data, in which the text of its answer stands once."""
    usage, message = record.usage, record.message
    started, ended = round(record.started * 1e6), round(record.ended * 1e6)
    return {
        **_rare(record),
        "path": record.path,
        "host": record.key.host,
        "name": record.path.rpartition("/")[2],
        "prompt": record.prompt,
        "lead": messages_to_dict(record.lead) if record.lead else [],
        "response": record.response,
        "params": jsonable(record.params) if record.params else {},
        "model": record.model,
        "not_a_language_model": is_offline(record),
        "view": record.view,
        "context": {"messages": record.context},
        "created_at": _iso(started),
        "ended_at": _iso(ended),
        "seconds": max(0, ended - started) / 1_000_000,
        "usage": usage,
        "attempts": record.attempt,
        "source": record.source,
        "request": record.request,
        "message": None if message is None else lean(message, record.response, usage=usage),
        "error": None if record.error is None else dict(record.error),
    }


def record_from_plain(data: Mapping[str, Any], run: str) -> CallRecord:
    """Give a record of a run back from its JSON data."""
    message, response, usage = data["message"], data["response"], data["usage"]
    answer: Any = None if message is None else full(message, response, usage=usage)
    return CallRecord(
        key=CallKey(run, data["host"], data["path"]),
        prompt=data["prompt"],
        lead=tuple(messages_from_dict(data["lead"])),
        context=data["context"]["messages"],
        response=response,
        message=answer,
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
        value=data.get("value", response if data.get("kind") == "call" else None),
        messages=tuple(full(made, response) for made in data.get("messages", ())),
        outputs=data.get("outputs", {}),
        cost=data.get("cost"),
        masked=tuple(data.get("masked", ())),
        sample=data.get("sample", 0),
    )


def _rare(record: CallRecord) -> dict[str, Any]:
    """Give what most records lack, so that it costs them no bytes."""
    rare: dict[str, Any] = {}
    if record.kind != "step":
        rare["kind"] = record.kind
        if record.kind != "call" or record.value != record.response:
            rare["value"] = jsonable(record.value)
    if record.messages:
        rare["messages"] = [lean(made, record.response) for made in record.messages]
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


def _iso(microseconds: int) -> str:
    whole, micro = divmod(microseconds, 1_000_000)
    return f"{_second(whole)}.{micro:06d}+00:00"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    """Give a second as text; both ends of a call, and of many calls, lie in the same few."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
