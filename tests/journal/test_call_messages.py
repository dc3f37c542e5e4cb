"""The messages that a call adds are what LangChain's own constructors return."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint.journal.call_records import CallKey, prompt_message, response_message

KEY = CallKey("r1", "", "a")
ANSWERED = AIMessage(
    content="Rain.",
    response_metadata={"finish_reason": "stop"},
    usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    note="an extra field",
)
MESSAGES: dict[str, tuple[Callable[[], BaseMessage], BaseMessage]] = {
    "prompt": (lambda: prompt_message(KEY, "Rain."), HumanMessage("Rain.", id="r1/a/0")),
    "blank": (lambda: response_message(KEY, "Rain."), AIMessage("Rain.", id="r1/a/1")),
    "answer": (
        lambda: response_message(KEY, "Rain.", ANSWERED),
        AIMessage(
            content="Rain.",
            response_metadata={"finish_reason": "stop"},
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            note="an extra field",
            id="r1/a/1",
        ),
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_what_the_constructor_returns(name: str) -> None:
    """Fields, which of them are set, extra fields, and what is dumped and copied are the same."""
    make, wanted = MESSAGES[name]
    found = make()
    assert type(found) is type(wanted)
    assert found == wanted
    assert vars(found) == vars(wanted)
    assert found.model_extra == wanted.model_extra
    assert found.model_fields_set == wanted.model_fields_set
    assert found.model_dump_json(exclude_unset=True) == wanted.model_dump_json(exclude_unset=True)
    assert dumps(found) == dumps(wanted)
    assert found.model_copy(deep=True) == wanted


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_share_nothing_that_can_be_changed(name: str) -> None:
    """A change to one message is in no other."""
    make, wanted = MESSAGES[name]
    first = make()
    for value in vars(first).values():
        if isinstance(value, dict):
            value["note"] = 1
        elif isinstance(value, list):
            value.append(1)
    first.model_fields_set.add("name")
    assert make().__getstate__() == wanted.__getstate__()
