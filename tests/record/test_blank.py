"""The messages of a call are what LangChain's own constructors give."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint.record.blank import ASSISTANT, USER

KINDS: dict[str, tuple[Callable[[str, str], BaseMessage], type[BaseMessage]]] = {
    "user": (USER.filled, HumanMessage),
    "assistant": (ASSISTANT.filled, AIMessage),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_filled_in_is_what_the_constructor_gives(kind: str) -> None:
    """Fields and their order, which of them are set, what is dumped, pickled and copied."""
    filled, made = KINDS[kind]
    found, wanted = filled("Rain.", "r1/a/0"), made(content="Rain.", id="r1/a/0")
    assert type(found) is made
    assert found == wanted
    assert list(vars(found).items()) == list(vars(wanted).items())
    assert found.__getstate__() == wanted.__getstate__()
    assert found.model_dump_json(exclude_unset=True) == wanted.model_dump_json(exclude_unset=True)
    assert dumps(found) == dumps(wanted)
    assert pickle.loads(pickle.dumps(found)) == wanted  # noqa: S301  (our own)
    assert found.model_copy(deep=True) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_messages_share_nothing_that_can_be_changed(kind: str) -> None:
    """What is written into one of them is in no other."""
    filled, made = KINDS[kind]
    first = filled("a", "1")
    for value in vars(first).values():
        if isinstance(value, dict):
            value["note"] = 1
        elif isinstance(value, list):
            value.append(1)
    first.model_fields_set.add("name")
    assert filled("a", "1").__getstate__() == made(content="a", id="1").__getstate__()
