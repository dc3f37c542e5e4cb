"""Records of calls, and their conversion to JSON and back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal, TypeGuard, cast

import orjson
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    message_chunk_to_message,
    messages_from_dict,
    messages_to_dict,
)
from pydantic import BaseModel

from mergepoint.core.errors import AnswerError, BudgetExceeded, TruncatedAnswer, describe_error
from mergepoint.core.frozen_json import NOTHING
from mergepoint.core.merge import State
from mergepoint.tree.leaves import Content
from mergepoint.tree.prompts import copied_message
from mergepoint.tree.semantics import Messages

# Jsonable: a value with nothing in it that JSON does not hold.


def to_json_value(value: Any) -> Any:
    """Return a copy of a value with nothing in it that JSON does not hold.

    What providers put into an answer's metadata is theirs; a number that is not finite, a key
    that isn't a string or an object of theirs must not cost the record of a paid call. Models and
    dataclasses become their fields, any other object its text.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    try:
        plain = orjson.loads(orjson.dumps(value))
    except (TypeError, ValueError):
        return _converted(value)
    # Equal means that nothing was converted: a tuple, a NaN or a date would have changed.
    return plain if plain == value else _converted(value)


def _converted(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _converted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_converted(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, BaseModel):
        return _converted(value.model_dump())
    if is_dataclass(value) and not isinstance(value, type):
        return _converted(asdict(value))
    return str(value)


# Lean: a message as plain data, without what its record says beside it.
#
# An answer of four pages is the larger part of its record, and would stand in it twice: as the
# text that the step made, and as the content of the provider's message.


_EMPTY: Mapping[str, Any] = {
    "additional_kwargs": {},
    "response_metadata": {},
    "name": None,
    "id": None,
    "tool_calls": [],
    "invalid_tool_calls": [],
    "usage_metadata": None,
}
_FIXED = frozenset({str, int, bool, type(None)})
_UNSET: tuple[Any, ...] = ([], {}, None)
_CALLS = {"tool_use", "tool_call", "function_call", "input_json_delta"}


def slim_message(
    message: BaseMessage, response: str, *, usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a message as JSON data, without empty fields.

    Null replaces the record's response if that is the content, or the text of its only text block.
    Token counts are omitted if they are the record's `usage`.
    """
    # A copy by pydantic takes five times as long.
    own = type(message) is AIMessage and not message.model_extra
    data = vars(message).copy() if own else message.model_dump()
    for key, empty in _EMPTY.items():
        if key in data and not data[key] and data[key] == empty:
            del data[key]
    kind = data.pop("type")
    if usage is not None and data.get("usage_metadata") == usage:
        del data["usage_metadata"]
    content = data["content"]
    data["content"] = None if content == response else _without(content, response)
    is_flat = _FIXED.issuperset(map(type, data.values()))
    return {"type": kind, "data": data if is_flat else to_json_value(data)}


def restore_message(
    plain: Mapping[str, Any], response: str, *, usage: Mapping[str, Any] | None = None
) -> BaseMessage:
    """Return the message that `slim_message` has stored."""
    data = {**plain["data"], "content": _with(plain["data"]["content"], response)}
    if usage is not None:
        data.setdefault("usage_metadata", usage)
    message = messages_from_dict([{**plain, "data": data}])[0]
    if isinstance(message, AIMessage) and "tool_calls" in message.additional_kwargs:
        # LangChain reads tool calls out of the provider's own ones where there are none.
        for name in ("tool_calls", "invalid_tool_calls"):
            vars(message)[name] = data.get(name, [])
    return message


def own_answer(message: AIMessage) -> AIMessage:
    """Return an answer of JSON data that shares nothing with the client library that gave it.

    A journal returns an answer with the same fields. AIMessage's own constructor would read
    tool calls again out of `additional_kwargs`.
    """
    if type(message) is not AIMessage:
        if isinstance(message, AIMessageChunk):
            message = cast("AIMessage", message_chunk_to_message(message))
        else:
            message = AIMessage(**{**message.model_dump(), "type": "ai"})
    fields, shared = {**vars(message), **(message.model_extra or {})}, {}
    told = set(fields).difference(["type"])
    for name, value in fields.items():
        if value in _UNSET:
            told.discard(name)
            fields[name] = copy(value)
        elif type(value) not in _FIXED:
            shared[name] = value
    if shared:
        fields |= to_json_value(shared)
    return AIMessage.model_construct(_fields_set=told, **fields)


def put_text(fields: dict[str, Any], text: str) -> None:
    """Replace the text in an answer's fields; other content stays.

    A tool call that contained the text, as in a structured answer, is removed: it would wait for a
    result that never comes.
    """
    content, dropped = fields["content"], {"text"}
    if fields["tool_calls"] and _is_object(text):
        fields["tool_calls"] = []
        dropped |= _CALLS
        for name in ("tool_calls", "function_call"):
            fields["additional_kwargs"].pop(name, None)
    blocks = content if isinstance(content, list) else []
    others = [one for one in blocks if isinstance(one, dict) and one.get("type") not in dropped]
    fields["content"] = [*others, {"type": "text", "text": text}] if others else text


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _without(content: Any, response: str) -> Any:
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


MOST_TOKENS: Final = 100_000_000
"""More tokens than any model reads or writes in one call."""

_REFUSALS: Final = (AnswerError.__name__, TruncatedAnswer.__name__)
_COUNTS: Final = ("input_tokens", "output_tokens", "total_tokens")
_DETAILS: Final = {
    "input_token_details": "input_tokens",
    "output_token_details": "output_tokens",
}

Source = Literal["live", "replayed"]
SHOWN_SOURCES: Final[Mapping[str, str]] = {"live": "live", "replayed": "reused"}
"""The source of an answer in the words of the progress, as views for people show it."""

Kind = Literal["step", "call", "gate", "inner", "left_out"]


@dataclass(frozen=True, slots=True)
class CallKey:
    """The identity of a call: the run, the host graph's prefix, and the path in the tree.

    `full_path` is the path with the host's prefix.
    """

    run: str
    host: str
    path: str
    full_path: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        full_path = f"{self.host}/{self.path}" if self.host else self.path
        object.__setattr__(self, "full_path", full_path)

    def message_id(self, number: int) -> str:
        """Return the id of a message that the call makes: `<run>/<full path>/<number>`."""
        around = f"{self.run}/{self.host}" if self.host else self.run
        return f"{around}/{self.path}/{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call of a model or function, or one decision, answered or failed.

    A record contains the new part of a call: the prompt, the messages that belong to this call only
    (`lead`), and the whole answer. The rest of the call's input, `context` messages, follows from
    the merges before it (see `mergepoint.journal.replay`). `request` is the fingerprint of the
    whole request, if the run keeps a journal on disk. Times are seconds since the epoch. `cost` is
    in USD, None if no price is known. `attempt` counts from 1 within one execution of a step.

    `kind` is the kind of call: a step's model, a Call (its result is `value`, `messages` are those
    that it added), a Gate, or a model inside a Call, which has no place in the tree (`inner`).
    `sample`, from 0, distinguishes equal requests of such models in one execution. A Gate has two
    records if its decision was not available: its question, with the `messages` and `outputs` that
    would be merged and no `value`; and its decision, the `value`. A `left_out` call was skipped: a
    budget was too small, and a node around it continued without it.

    `masked` names fields that were masked when the record was written. `truncated` is the finish
    reason of an answer that was cut off and accepted. `cleaned` names fields that were changed on
    arrival: texts with lone surrogates, which could not be sent again, and impossible token counts.

    With `begun` the record is the start of a call. A journal on disk has one if a budget counts
    calls (see `mergepoint.journal.recorded_answers.outcomes`).
    """

    key: CallKey
    prompt: Content
    lead: tuple[BaseMessage, ...] = ()
    context: int = 0
    response: str = ""
    message: AIMessage | None = None
    params: Mapping[str, Any] = NOTHING
    model: str = ""
    view: str = "as_is"
    started: float = 0.0
    ended: float = 0.0
    attempt: int = 1
    source: Source = "live"
    request: str = ""
    error: Mapping[str, Any] | None = None
    kind: Kind = "step"
    value: Any = None
    messages: tuple[BaseMessage, ...] = ()
    outputs: Mapping[str, Any] = NOTHING
    cost: float | None = None
    masked: tuple[str, ...] = ()
    sample: int = 0
    truncated: str = ""
    cleaned: tuple[str, ...] = ()
    begun: bool = False

    @property
    def path(self) -> str:
        """Return the path from the tree's root."""
        return self.key.path

    @property
    def answered(self) -> bool:
        """Return whether there is an answer that could be used, or a decision."""
        return self.error is None and (self.kind != "gate" or self.value is not None)

    @property
    def asks(self) -> bool:
        """Return whether it is the question of a gate, and not the decision."""
        return self.kind == "gate" and self.value is None

    @property
    def failed(self) -> bool:
        """Return whether the call was made and failed."""
        return self.error is not None and self.kind != "left_out"

    @property
    def refused(self) -> bool:
        """Return whether the model answered, and the answer could not be used."""
        kind = None if self.error is None else self.error.get("type")
        return self.failed and self.message is not None and kind in _REFUSALS

    @property
    def settled(self) -> bool:
        """Return whether a call has its final outcome: an answer, a decision, or being skipped.

        A resumed run takes the outcome from the record, and does not call again.
        """
        return self.kind == "left_out" or self.answered

    @property
    def at_edge(self) -> bool:
        """Return whether it is always flushed: a failed call, a gate's question, a decision."""
        return self.error is not None or self.kind == "gate"

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """Return the provider's token counts, or None if they are missing or impossible."""
        return None if self.message is None else sound_usage(self.message.usage_metadata)

    def made(self, capture_key: str | None = None) -> Messages:
        """Return the result of an answered call: new messages, with ids of this path.

        A step has two messages, a Call its own and, under the key, its result.
        """
        if self.kind == "call":
            captured = {} if capture_key is None else {capture_key: self.value}
            return State.of(call_messages(self.key, self.messages), captured)
        response = response_message(self.key, self.response, self.message)
        return State((prompt_message(self.key, self.prompt), response))


TOOL = "tool."
"""The prefix of the recorded name of a tool that a step executed."""


def is_tool(record: CallRecord) -> bool:
    """Return whether a record is the execution of a tool that the model of a step called."""
    return record.kind == "call" and record.model.startswith(TOOL)


def prompt_message(key: CallKey, prompt: Content) -> HumanMessage:
    """Return the user message of a call, with the id `<run>/<path>/0`."""
    return HumanMessage(content=prompt, id=key.message_id(0))


def response_message(key: CallKey, response: str, message: AIMessage | None = None) -> AIMessage:
    """Return the assistant message that a call adds to the state.

    It is the provider's message: content blocks, token usage, response metadata, reasoning, name,
    tool calls. Only the id is ours, `<run>/<path>/1`. The fields are copies that contain only JSON
    data, so that a message from a journal equals that of the live call. A `response` that differs
    from the message's text (the canonical JSON of a structured answer) replaces it.
    """
    if message is None:
        return AIMessage(content=response, id=key.message_id(1))
    own = copied_message(message) if type(message) is AIMessage else own_answer(message)
    fields = vars(own)
    if fields["content"] != response and str(own.text) != response:
        put_text(fields, response)
    fields["id"] = key.message_id(1)
    own.model_fields_set.add("id")
    return own


def call_messages(key: CallKey, messages: Iterable[BaseMessage]) -> tuple[BaseMessage, ...]:
    """Return the messages that a Call made, with the ids `<run>/<path>/0` and on."""
    return tuple(_named(message, key.message_id(number)) for number, message in enumerate(messages))


def _named(message: BaseMessage, message_id: str) -> BaseMessage:
    own = copied_message(message)
    own.id = message_id
    return own


def sound_usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return plausible token counts, or None.

    A negative count would refill a budget; an absurd one would use it up, or be too large for JSON.
    A call without plausible counts is charged the most that it may have used.
    """
    if not usage:
        return None
    for name in _COUNTS:
        count = usage.get(name)
        if count is not None and (type(count) is not int or not 0 <= count <= MOST_TOKENS):
            return None
    for name, whole in _DETAILS.items():
        if (parts := usage.get(name)) and not _are_parts(parts, usage.get(whole) or 0):
            return {key: value for key, value in usage.items() if key not in _DETAILS}
    return dict(usage)


def _are_parts(parts: object, whole: int) -> bool:
    if not isinstance(parts, Mapping):
        return False
    counts = [count for count in parts.values() if count is not None]
    return {int}.issuperset(map(type, counts)) and 0 <= min(counts, default=0) <= max(
        counts, default=0
    ) <= min(whole, MOST_TOKENS)


def now() -> float:
    """Return the time in seconds since the epoch, rounded to microseconds as transcripts are."""
    return time.time_ns() // 1000 / 1_000_000


def is_refusal(error: BaseException) -> bool:
    """Return whether an error means that an answer arrived and cannot be used."""
    return type(error).__name__ in _REFUSALS


def error_of(error: BaseException) -> dict[str, Any]:
    """Return an error's type, message and position in an answer as plain data."""
    about = {"type": type(error).__name__, "message": describe_error(error)}
    if isinstance(error, AnswerError) and error.position:
        return {**about, "position": error.position}
    return about


RECORDS = ("steps", "inner", "failures", "questions", "others")
"""The keys of a transcript that contain records."""


def record_to_plain(record: CallRecord) -> dict[str, Any]:
    """Return a record as JSON data, in which the text of its answer stands once."""
    message, path = record.message, record.key.path
    usage = None if message is None else sound_usage(message.usage_metadata)
    started, ended = round(record.started * 1e6), round(record.ended * 1e6)
    return {
        **_rare(record),
        "path": path,
        "host": record.key.host,
        "name": path.rpartition("/")[2],
        "prompt": record.prompt,
        "lead": messages_to_dict(record.lead) if record.lead else [],
        "response": record.response,
        "params": to_json_value(record.params) if record.params else {},
        "model": record.model,
        "not_a_language_model": message is not None
        and bool(message.response_metadata.get("not_a_language_model")),
        "view": record.view,
        "context": {"messages": record.context},
        "created_at": f"{_second(started // 1_000_000)}.{started % 1_000_000:06d}+00:00",
        "ended_at": f"{_second(ended // 1_000_000)}.{ended % 1_000_000:06d}+00:00",
        "seconds": max(0, ended - started) / 1_000_000,
        "usage": usage,
        "attempts": record.attempt,
        "source": record.source,
        "request": record.request,
        "message": None if message is None else slim_message(message, record.response, usage=usage),
        "error": None if record.error is None else dict(record.error),
    }


def record_from_plain(data: Mapping[str, Any], run: str) -> CallRecord:
    """Return a record of a run from its JSON data."""
    message, response, usage = data["message"], data["response"], data["usage"]
    answer: Any = None if message is None else restore_message(message, response, usage=usage)
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
        messages=tuple(restore_message(made, response) for made in data.get("messages", ())),
        outputs=data.get("outputs", {}),
        cost=data.get("cost"),
        masked=tuple(data.get("masked", ())),
        sample=data.get("sample", 0),
        truncated=data.get("truncated", ""),
        cleaned=tuple(data.get("cleaned", ())),
        begun=data.get("begun", False),
    )


_RARE: Final = ("masked", "sample", "truncated", "cleaned", "begun")


def _rare(record: CallRecord) -> dict[str, Any]:
    """Return the fields that most records lack, so that these cost them no bytes."""
    rare: dict[str, Any] = {}
    for name in _RARE:
        if value := getattr(record, name):
            rare[name] = list(value) if isinstance(value, tuple) else value
    if record.kind != "step":
        rare["kind"] = record.kind
        if record.kind != "call" or record.value != record.response:
            rare["value"] = to_json_value(record.value)
    if record.messages:
        rare["messages"] = [slim_message(made, record.response) for made in record.messages]
    if record.outputs:
        rare["outputs"] = to_json_value(record.outputs)
    if record.cost is not None:
        rare["cost"] = record.cost
    return rare


def is_offline(record: CallRecord) -> bool:
    """Return whether the answer came from something that is not a language model."""
    message = record.message
    return message is not None and bool(message.response_metadata.get("not_a_language_model"))


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    """Return a second as text; cached, because calls begin and end in the same few seconds."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


_FACTS = ("kind", "spent", "held", "limit")


def skipped_record(call: CallRecord, error: BudgetExceeded) -> CallRecord:
    """Return the record of a skipped call, with the budget's error.

    The error's `path` is that of the node that continues without the call.
    """
    facts = {name: getattr(error, name) for name in _FACTS}
    told = {**error_of(error), "path": error.path, **facts}
    return replace(call, kind="left_out", error=told)


def skipped_error(record: CallRecord) -> BudgetExceeded:
    """Return the budget's error of a skipped call, so that the same node skips it again."""
    told = record.error or {}
    facts = {name: told[name] for name in _FACTS}
    return BudgetExceeded(told["path"], **facts, problem=told["message"], keep=True)
