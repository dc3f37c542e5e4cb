"""Records of calls: what they say, and which messages they made."""

from __future__ import annotations

import time

from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.journal.call_records import CallKey, CallRecord, error_of, now

KEY = CallKey("r", "host/scope", "mp/step_01")


def test_a_key_knows_the_path_with_the_hosts_prefix() -> None:
    """The full path starts with the host's, if there is one."""
    assert KEY.full_path == "host/scope/mp/step_01"
    assert CallKey("r", "", "mp").full_path == "mp"


def test_a_record_gives_the_two_messages_that_its_call_made() -> None:
    """They are fresh, and their ids are `<run>/<full path>/<n>`."""
    blocks: list[str | dict[str, object]] = [{"type": "text", "text": "A."}]
    made = CallRecord(key=KEY, prompt=blocks, response="x").made()
    assert made.messages == (
        HumanMessage(blocks, id="r/host/scope/mp/step_01/0"),
        AIMessage("x", id="r/host/scope/mp/step_01/1"),
    )
    assert KEY.message_id(1) == made.messages[1].id


def test_a_record_is_answered_unless_it_holds_an_error() -> None:
    """A failed call is a record too."""
    assert CallRecord(key=KEY, prompt="A.").answered
    assert not CallRecord(key=KEY, prompt="A.", error=error_of(ValueError("no"))).answered


def test_usage_is_the_providers_or_nothing() -> None:
    """Counts are never made up."""
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    counted = AIMessage("x", usage_metadata=usage)
    assert CallRecord(key=KEY, prompt="A.", message=counted).usage == usage
    assert CallRecord(key=KEY, prompt="A.", message=AIMessage("x")).usage is None
    assert CallRecord(key=KEY, prompt="A.").usage is None


def test_an_error_is_kept_as_type_and_message() -> None:
    """Plain data, nothing of the traceback."""
    assert error_of(KeyError("k")) == {"type": "KeyError", "message": "'k'"}


def test_times_are_seconds_since_the_epoch() -> None:
    """They are those of the clock, in whole microseconds."""
    before, found, after = time.time(), now(), time.time()
    assert before - 1e-6 <= found <= after + 1e-6
    assert found == round(found, 6)
