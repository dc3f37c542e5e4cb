"""Records say what an answer says once, and give it back whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from pydantic import BaseModel
from tests.journal.test_stores import record

from mergepoint.journal.call_records import (
    CallRecord,
    record_from_plain,
    record_to_plain,
    restore_message,
    slim_message,
)

SAID = "Rain falls on the sea. " * 40
USAGE = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
CALLED = [{"name": "look", "args": {"at": SAID}, "id": "c1", "type": "tool_call"}]
TEXT = {"type": "text", "text": SAID, "index": 0}
THOUGHT = {"type": "reasoning", "reasoning": "Rain?"}

MESSAGES: dict[str, BaseMessage] = {
    "text": AIMessage(SAID, usage_metadata=USAGE),
    "one block of text": AIMessage([THOUGHT, TEXT], id="m1"),
    "two blocks of text": AIMessage([TEXT, TEXT]),
    "plain strings": AIMessage([SAID, THOUGHT]),
    "blocks without text": AIMessage([THOUGHT]),
    "a tool call": AIMessage("", tool_calls=CALLED),
    "metadata": AIMessage(SAID, response_metadata={"id": 0, "stop": None, "at": {}}, name=""),
    "another text": AIMessage("Rain.", usage_metadata=USAGE),
    "fields of its own": AIMessage(SAID, parsed=0, note=None),
    "a piece of a stream": AIMessageChunk(content=SAID, chunk_position="last"),
    "a person's": HumanMessage(SAID, id="m2"),
}


@pytest.mark.parametrize("usage", [None, USAGE, {**USAGE, "output_tokens": 5}])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_comes_back_as_it_was(name: str, usage: dict[str, Any] | None) -> None:
    """Through JSON and back, whatever of it its record says beside it."""
    message = MESSAGES[name]
    own = getattr(message, "usage_metadata", None)
    usage = usage if own is not None else None
    plain = json.loads(json.dumps(slim_message(message, SAID, usage=usage)))
    found = restore_message(plain, SAID, usage=usage)
    assert type(found) is type(message)
    assert found == message


@pytest.mark.parametrize("name", ["text", "one block of text", "metadata", "a piece of a stream"])
def test_an_answer_stands_in_its_record_once(name: str) -> None:
    """What a model said is not written a second time, as text nor as a block."""
    message = MESSAGES[name]
    assert isinstance(message, AIMessage)
    one = record("a", message=message)
    written = json.dumps(record_to_plain(_saying(one, SAID)))
    assert written.count(SAID) == 1
    assert record_from_plain(json.loads(written), "r1") == _saying(one, SAID)


@pytest.mark.parametrize("value", [SAID, None, "", [SAID], {"text": SAID}, 0])
def test_a_result_comes_back_as_it_was(value: Any) -> None:
    """A Call's value is left out only where it is the response, to the letter."""
    one = _saying(record("a", kind="call", value=value, messages=(AIMessage(SAID),)), SAID)
    plain = record_to_plain(one)
    assert record_from_plain(json.loads(json.dumps(plain)), "r1") == one
    assert ("value" in plain) == (value != SAID)


def test_a_decision_is_written_as_it_is() -> None:
    """What a gate's record holds is no response, also where it is the same text."""
    one = _saying(record("a", kind="gate", value=""), "")
    assert record_to_plain(one)["value"] == ""
    assert record_from_plain(record_to_plain(one), "r1") == one


def test_a_record_that_says_it_twice_is_read_too() -> None:
    """Nothing that may be left out has to be."""
    message = AIMessage(SAID, usage_metadata=USAGE)
    one = _saying(record("a", message=message, kind="call", value=SAID), SAID)
    plain = record_to_plain(one)
    plain["message"] = {"type": "ai", "data": message.model_dump()}
    assert record_from_plain({**plain, "value": SAID}, "r1") == one


def _saying(one: CallRecord, response: str) -> CallRecord:
    return replace(one, response=response)


class Ranked(BaseModel):
    """What a provider may put into its metadata."""

    rank: int


@dataclass
class Rated:
    """What another may."""

    rate: float


def test_objects_of_a_provider_are_written_as_their_fields() -> None:
    """A pydantic model and a dataclass in an answer's metadata become objects, as in its dump."""
    held = {"ranked": [Ranked(rank=2)], "rated": {"at": Rated(0.5)}, "kind": Rated}
    data = slim_message(AIMessage(SAID, response_metadata=held, extra=Ranked(rank=3)), SAID)["data"]
    told = data["response_metadata"]
    assert (told["ranked"], told["rated"]) == ([{"rank": 2}], {"at": {"rate": 0.5}})
    assert told["kind"] == str(Rated)
    assert data["extra"] == {"rank": 3}


@given(st.floats(min_value=0, max_value=4e9), st.floats(min_value=0, max_value=1e5))
def test_times_are_written_to_the_microsecond(started: float, took: float) -> None:
    """Both ends are what the standard library writes, and the seconds are what lies between."""
    started, ended = round(started, 6), round(started + took, 6)
    plain = record_to_plain(replace(record("a"), started=started, ended=ended))
    texts = [
        datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")
        for at in (started, ended)
    ]
    assert [plain["created_at"], plain["ended_at"]] == texts
    first, last = map(datetime.fromisoformat, texts)
    assert plain["seconds"] == (last - first).total_seconds()
