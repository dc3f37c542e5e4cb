"""Provider's views: what is sent, without changing what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_openai import ChatOpenAI

from mergepoint.models.providers import OPENING, VIEWS, seen_through, view_of, view_problem
from mergepoint.testing.scripted_model import ScriptedModel

U, A, S = HumanMessage, AIMessage, SystemMessage


def said(messages: Sequence[BaseMessage]) -> list[tuple[str, Any]]:
    """Return type and content of each message."""
    return [(message.type, message.content) for message in messages]


def alternated(*messages: BaseMessage) -> list[tuple[str, Any]]:
    """Return what is sent of these messages to a provider that wants alternation."""
    return said(seen_through("alternate", messages))


def test_as_is_sends_the_messages_themselves() -> None:
    """Nothing is changed or copied."""
    messages = [A("a"), A("b"), U("c")]
    sent = seen_through("as_is", messages)
    assert sent == messages
    assert sent is not messages


def test_neighbours_of_one_role_are_joined() -> None:
    """Their texts stand in one message, a blank line between."""
    assert alternated(U("a"), U("b"), A("c"), A("d"), U("e")) == [
        ("human", "a\n\nb"),
        ("ai", "c\n\nd"),
        ("human", "e"),
    ]


def test_a_conversation_that_opens_with_an_answer_gets_a_user_line() -> None:
    """Before the first assistant message stands a line of the user."""
    assert alternated(A("a"), U("b")) == [("human", OPENING), ("ai", "a"), ("human", "b")]


def test_after_the_system_message_the_user_opens() -> None:
    """A system message does not open the conversation; several are joined."""
    assert alternated(S("s"), S("t"), A("a"), U("b")) == [
        ("system", "s\n\nt"),
        ("human", OPENING),
        ("ai", "a"),
        ("human", "b"),
    ]


def test_content_blocks_are_joined_as_blocks() -> None:
    """Where one of two is a list of blocks the joined message is one too."""
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:,x"}}
    assert alternated(U("a"), U([image]), U("b")) == [
        ("human", [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}])
    ]


def test_tool_calls_and_their_results_stay_apart() -> None:
    """A message with tool calls is not joined, and neither are tool results."""
    call = A("a", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
    messages = [U("q"), call, ToolMessage("r", tool_call_id="1"), A("b"), U("c")]
    assert seen_through("alternate", messages) == messages
    assert seen_through("alternate", [U("q"), A("x"), call]) == [U("q"), A("x"), call]
    results = [ToolMessage("r", tool_call_id="1"), ToolMessage("s", tool_call_id="2")]
    assert seen_through("alternate", [U("q"), call, *results]) == [U("q"), call, *results]


def test_joining_changes_no_message_of_the_state() -> None:
    """Joined messages are new ones."""
    messages = [U("a", id="1"), U("b", id="2")]
    before = [message.model_copy(deep=True) for message in messages]
    seen_through("alternate", messages)
    assert messages == before


any_message = st.builds(
    lambda kind, text: kind(text), st.sampled_from([U, A, S]), st.text(min_size=1, max_size=5)
)


@given(messages=st.lists(any_message, max_size=8))
def test_roles_take_turns_and_a_user_opens(messages: list[BaseMessage]) -> None:
    """Whatever is given, no two neighbours have one role, and the first to speak is the user."""
    sent = seen_through("alternate", messages)
    kinds = [message.type for message in sent]
    assert all(one != other for one, other in pairwise(kinds))
    speaking = [kind for kind in kinds if kind != "system"]
    assert speaking[:1] in ([], ["human"])


@given(messages=st.lists(any_message.filter(lambda one: one.type != "system"), max_size=8))
def test_no_word_is_lost_or_moved(messages: list[BaseMessage]) -> None:
    """All that was said is sent, in order; only opening lines come in."""
    sent = seen_through("alternate", messages)
    told = "\n\n".join(str(one.content) for one in sent if one.content != OPENING)
    assert told == "\n\n".join(str(one.content) for one in messages if one.content != OPENING)


@given(messages=st.lists(any_message, max_size=8))
def test_a_view_of_a_view_is_the_view(messages: list[BaseMessage]) -> None:
    """What takes turns already is sent as it is."""
    once = seen_through("alternate", messages)
    assert seen_through("alternate", once) == once


def test_a_system_message_in_the_middle_goes_to_the_front() -> None:
    """A strict server takes one system message, before the others: later ones are joined to it."""
    assert alternated(S("s"), U("a"), A("b"), S("t"), U("c")) == [
        ("system", "s\n\nt"),
        ("human", "a"),
        ("ai", "b"),
        ("human", "c"),
    ]


class Provider(ScriptedModel):
    """A model that says which provider it belongs to."""

    provider: str

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {**super()._get_ls_params(stop=stop, **kwargs), "ls_provider": self.provider}


@pytest.mark.parametrize(
    ("provider", "view"),
    [
        *[("anthropic", "alternate"), ("mistral", "alternate"), ("google_genai", "alternate")],
        *[("openai", "as_is"), ("scripted", "as_is"), ("", "as_is")],
    ],
)
def test_the_default_view_goes_by_provider(provider: str, view: str) -> None:
    """Those that refuse neighbours of one role get the joined conversation."""
    model: BaseChatModel = Provider(provider=provider)
    assert view_of(model) == view


@pytest.mark.parametrize(
    ("base_url", "view"),
    [
        (None, "as_is"),
        ("https://api.openai.com/v1", "as_is"),
        ("http://127.0.0.1:11434/v1", "alternate"),
        ("https://example.org/api.openai.com/v1", "alternate"),
    ],
)
def test_a_server_of_ones_own_counts_as_alternating(base_url: str | None, view: str) -> None:
    """OpenAI's interface at another host may run any chat template."""
    model = ChatOpenAI(model="m", api_key="none", base_url=base_url)  # type: ignore[arg-type]
    assert view_of(model) == view


def test_views_have_names() -> None:
    """The two are known, anything else is refused with both named."""
    assert [view_problem(view) for view in VIEWS] == [None, None]
    problem = view_problem("zigzag")
    assert problem is not None
    assert "'as_is', 'alternate'" in problem
