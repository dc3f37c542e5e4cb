"""The offline model: honest about itself, the same everywhere, at home in every way of calling."""

from __future__ import annotations

import asyncio
import copy
import os
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from mergepoint.core.errors import StepError
from mergepoint.models.identity import identity
from mergepoint.models.instrument import instrument
from mergepoint.models.providers import resolve_model, view_of
from mergepoint.offline.language import ConversationReading
from mergepoint.offline.model import OfflineModel, fill_schema

TALK: list[BaseMessage] = [
    HumanMessage("Describe a poster of an old harbour at dawn."),
    AIMessage("The poster shows a very old harbour at dawn."),
    HumanMessage("Critique it."),
]


class Colour(Enum):
    """Two colours."""

    RED = "red"
    BLUE = "blue"


class Verdict(BaseModel):
    """A verdict with a reason."""

    reason: str
    score: int = Field(ge=1, le=5)


class Tree(BaseModel):
    """A name and what is below it."""

    name: str
    below: list[Tree]


class Everything(BaseModel):
    """Every kind of field that is filled in."""

    title: str
    summary: str
    code: str
    short: str = Field(min_length=3, max_length=12)
    score: int = Field(ge=0, le=10)
    more: int = Field(gt=7)
    less: int = Field(lt=-2)
    share: float = Field(gt=0, lt=1)
    sure: bool
    action: Literal["chat", "run", "stop"]
    only: Literal["one"]
    colour: Colour
    issues: list[str]
    steps: list[str]
    keywords: list[str] = Field(min_length=2, max_length=3)
    three: list[str] = Field(min_length=3, max_length=3)
    kinds: list[Literal["a", "b"]] = Field(min_length=1)
    verdict: Verdict
    verdicts: list[Verdict]
    pair: tuple[str, int]
    maybe: str | None
    either: int | str
    table: dict[str, int]
    left: str = "as it is"


class Plain(TypedDict):
    """A typed dictionary."""

    answer: Annotated[str, ..., "the answer"]
    score: int


@tool
def search_web(query: str, limit: int = 3) -> str:
    """Search the web."""
    return f"{limit} results for {query}"


PIECES = (
    *("Critique ", "Revise ", "Choose ", "Analyse ", "Describe the picture ", "Write a title "),
    *("the ", "mill", "no ", "for families ", "should be ", "we see ", "has ", "a ", "or ", "and "),
    *("<brief>", "</brief>", "<a>", "</a>", "Mood: ", "Likes: ", "Choice: 1", "1. ", "2) ", "- "),
    *('cut "mill"', 'add "x"', 'replace "a" with "b"', '"', ",", ". ", "?", "!", ":", "\n", " "),
    *("\N{PARTY POPPER}", "\u00fc", "{", "}", "{{ key }}", "\\1", "\t", "999999999999", "\x00"),
)


def ask(messages: Sequence[BaseMessage], **kwargs: Any) -> AIMessage:
    """Ask the offline model."""
    return OfflineModel().invoke(list(messages), **kwargs)


def joined(chunks: Sequence[AIMessageChunk]) -> AIMessageChunk:
    """Add up the chunks of a stream."""
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def test_it_is_what_offline_names() -> None:
    """The name `offline` gives this model, under its own provider, with the plain view."""
    model = resolve_model("offline")
    assert isinstance(model, OfflineModel)
    assert model._llm_type == "mergepoint-offline"
    known = model._get_ls_params(temperature=0.5)
    assert known.get("ls_provider") == "mergepoint"
    assert known.get("ls_model_name") == "offline"
    assert known.get("ls_temperature") == 0.5
    assert identity(model, {}) == "mergepoint:offline"
    assert view_of(model) == "as_is"


def test_every_answer_says_that_it_is_no_language_model() -> None:
    """Text, stream, tool call and cut answer carry the mark."""
    model = OfflineModel()
    forced = model.bind_tools([search_web], tool_choice="any")
    streamed = joined([chunk for chunk in model.stream(TALK) if isinstance(chunk, AIMessageChunk)])
    for answer in (ask(TALK), ask(TALK, max_tokens=2), forced.invoke(TALK), streamed):
        assert answer.response_metadata["not_a_language_model"] is True
        assert answer.response_metadata["model_name"] == "offline"


def test_all_ways_of_calling_give_one_answer() -> None:
    """Invoke, ainvoke, stream and astream give the same text, usage and metadata."""

    async def collected() -> list[AIMessageChunk]:
        return [
            chunk
            async for chunk in OfflineModel().astream(TALK)
            if isinstance(chunk, AIMessageChunk)
        ]

    whole = ask(TALK)
    chunks = [chunk for chunk in OfflineModel().stream(TALK) if isinstance(chunk, AIMessageChunk)]
    others = (
        asyncio.run(OfflineModel().ainvoke(TALK)),
        joined(chunks),
        joined(asyncio.run(collected())),
    )
    for other in others:
        assert other.text == whole.text
        assert other.usage_metadata == whole.usage_metadata
        assert other.response_metadata == whole.response_metadata
    assert len(chunks) == len(whole.text.split())
    assert [chunk.chunk_position for chunk in chunks] == [None] * (len(chunks) - 1) + ["last"]


def test_tokens_are_words() -> None:
    """Usage counts the words that were sent and the words that came back."""
    answer = ask(TALK)
    sent = sum(len(str(message.text).split()) for message in TALK)
    said = len(str(answer.text).split())
    assert answer.usage_metadata == {
        "input_tokens": sent,
        "output_tokens": said,
        "total_tokens": sent + said,
    }


def test_a_limit_of_tokens_and_stops_are_kept() -> None:
    """`max_tokens` cuts after so many words and says why; a stop sequence ends the text."""
    cut = ask(TALK, max_tokens=3)
    assert len(str(cut.text).split()) == 3
    assert cut.response_metadata["finish_reason"] == "length"
    assert ask(TALK, max_tokens=1000).response_metadata["finish_reason"] == "stop"
    stopped = ask(TALK, stop=["Edits:"])
    assert str(ask(TALK).text).startswith(str(stopped.text))
    assert "Edits" not in stopped.text


@pytest.mark.campaign
def test_the_answer_does_not_depend_on_the_process() -> None:
    """A process with another hash seed gives the same text and the same structured answer."""
    program = (
        "from tests.models.test_offline import TALK, Everything, ask, OfflineModel\n"
        "made = OfflineModel().with_structured_output(Everything).invoke(TALK)\n"
        "print(ask(TALK).text, made.model_dump_json(), sep='|')"
    )
    said = {
        subprocess.run(  # noqa: S603  (our own program)
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert str(ask(TALK).text) in said.pop()


def test_a_copy_behind_the_door_is_the_same_model() -> None:
    """A copy whose class was changed to a subclass answers, streams and binds tools as before."""
    model = OfflineModel()
    doored = instrument(model)
    assert type(doored) is not OfflineModel
    assert isinstance(doored, OfflineModel)
    for other in (doored, copy.copy(model), copy.deepcopy(model)):
        assert other.invoke(TALK).text == model.invoke(TALK).text
        assert "".join(str(chunk.text) for chunk in other.stream(TALK)) == model.invoke(TALK).text
        assert identity(other, {}) == "mergepoint:offline"
    assert doored.with_structured_output(Verdict).invoke(TALK) == model.with_structured_output(
        Verdict
    ).invoke(TALK)


@pytest.mark.parametrize(
    "messages",
    [
        [HumanMessage("")],
        [HumanMessage("   \n ")],
        [HumanMessage("...")],
        [HumanMessage("\N{PARTY POPPER}")],
        [SystemMessage("You are kind.")],
        [AIMessage("I begin.")],
        [HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}])],
        [HumanMessage("Revise it.")],
        [HumanMessage("Choose one.")],
        [HumanMessage("Summarise this.")],
        [HumanMessage("Critique this.")],
        [HumanMessage("Give it a title.")],
        [HumanMessage("Analyse the brief.")],
        [HumanMessage("Write an image prompt.")],
        [HumanMessage("State the message.")],
        [HumanMessage("Plan it in 99999999999999999999 steps.")],
        [HumanMessage("<brief></brief> Likes: none")],
        [HumanMessage('Revise: \n- cut "x"'), AIMessage("x"), HumanMessage('- cut "x"')],
    ],
)
def test_an_answer_is_never_blank(messages: list[BaseMessage]) -> None:
    """Whatever is asked, with nothing to work on or nothing left of it, there is an answer."""
    assert str(ask(messages).text).strip()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=4))
def test_any_text_is_answered_twice_alike(texts: list[str]) -> None:
    """Texts of marks, labels, tags and instruction words never raise, and get one answer."""
    talk: list[BaseMessage] = [
        AIMessage(text) if number % 2 else HumanMessage(text) for number, text in enumerate(texts)
    ]
    talk.append(HumanMessage(texts[0] if texts else "?"))
    answer = ask(talk)
    assert str(answer.text).strip()
    assert ask(talk).text == answer.text
    made = OfflineModel().with_structured_output(Everything).invoke(talk)
    assert isinstance(made, Everything)


def test_it_says_what_it_can_do() -> None:
    """A greeting is answered by saying what answers; a task beyond it by saying so."""
    assert "isn't a language model" in ask([HumanMessage("hello")]).text
    poem = ask([HumanMessage("Write a haiku about rain in autumn.")]).text
    assert poem.startswith("Request: rain in autumn.")
    assert "use a language model" in poem


def test_every_kind_of_field_is_filled_in() -> None:
    """A schema of text, numbers, choices, lists and models gets values that pydantic accepts."""
    model = OfflineModel().with_structured_output(Everything, include_raw=True)
    result = model.invoke(TALK)
    assert isinstance(result, dict)
    assert result["parsing_error"] is None
    made = result["parsed"]
    assert isinstance(made, Everything)
    assert made.title == "an old harbour at dawn"
    assert made.issues == ["an old harbour at dawn"]
    assert made.action == "chat"
    assert made.maybe is None
    assert made.left == "as it is"
    assert "harbour" in made.verdict.reason
    (call,) = result["raw"].tool_calls
    assert call["name"] == "Everything"
    assert result["raw"].usage_metadata["output_tokens"] > 10


def test_recursive_and_dictionary_schemas_are_filled_in() -> None:
    """A model that holds itself ends at once; a typed dictionary gives a dictionary."""
    made = OfflineModel().with_structured_output(Tree).invoke(TALK)
    assert made == Tree(name="an old harbour at dawn", below=[])
    plain = OfflineModel().with_structured_output(Plain).invoke(TALK)
    assert isinstance(plain, dict)
    assert set(plain) == {"answer", "score"}
    assert plain["answer"] == "an old harbour at dawn"


def test_a_tool_is_called_where_the_task_names_it() -> None:
    """A free choice calls the tool whose name the task says, once, and then tells the result."""
    model = OfflineModel().bind_tools([search_web])
    asked = HumanMessage("Please search the web for otters.")
    call = model.invoke([asked])
    assert [(made["name"], made["args"]) for made in call.tool_calls] == [
        ("search_web", {"query": "otters"})
    ]
    result = ToolMessage("3 otters", tool_call_id=call.tool_calls[0]["id"], name="search_web")
    told = model.invoke([asked, call, result])
    assert not told.tool_calls
    assert told.text == "search_web returned: 3 otters"
    assert not model.invoke(TALK).tool_calls


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("any", "search_web"),
        ("required", "search_web"),
        ("Verdict", "Verdict"),
        ({"type": "function", "function": {"name": "Verdict"}}, "Verdict"),
        ("none", None),
        ("auto", None),
    ],
)
def test_a_demanded_tool_is_called(choice: Any, called: str | None) -> None:
    """Any, required and a name demand a call; none forbids it, and auto leaves it to the task."""
    model = OfflineModel().bind_tools([search_web, Verdict], tool_choice=choice)
    made = [call["name"] for call in model.invoke(TALK).tool_calls]
    assert made == ([called] if called else [])


def test_a_streamed_tool_call_is_whole() -> None:
    """The chunks of a tool call add up to the call that invoke gives."""
    model: Any = OfflineModel().bind_tools([Verdict], tool_choice="any")
    chunks = [chunk for chunk in model.stream(TALK) if isinstance(chunk, AIMessageChunk)]
    assert joined(chunks).tool_calls == model.invoke(TALK).tool_calls


def test_inputs_are_left_as_they_are() -> None:
    """The messages that were given are not written to."""
    before = [message.model_copy(deep=True) for message in TALK]
    model: BaseChatModel = OfflineModel()
    model.invoke(TALK)
    assert before == TALK


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "maxLength": 8}, "an old h"),
        ({"type": "string", "minLength": 24}, "an old harbour at dawn.."),
        ({"const": 3}, 3),
        ({"type": "array", "items": {"enum": ["red", "blue"]}}, ["red"]),
        ({"type": "integer", "minimum": 1, "maximum": 5}, 1),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, 0.5),
        ({"type": "integer", "exclusiveMaximum": 0}, -1),
        ({"type": ["string", "null"]}, None),
        ({"oneOf": [{"type": "boolean"}, {"type": "string"}]}, False),
        ({"allOf": [{"type": "boolean"}]}, False),
        ({"type": "array", "items": {}, "minItems": 1}, ["an old harbour at dawn"]),
        ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}]}, [1, 2]),
        ({"properties": {"a": {"type": "null"}, "b": {}}, "required": ["a"]}, {"a": None}),
    ],
)
def test_each_kind_of_schema_has_a_valid_value(schema: dict[str, Any], value: Any) -> None:
    """A schema gets its first valid value, and text is the subject of the conversation."""
    assert fill_schema(schema, ConversationReading.of(TALK)) == value


def test_references_in_a_schema_are_followed() -> None:
    """A list of a schema that contains itself ends; a required field that does so is an error."""
    link = {"$ref": "#/$defs/node"}
    node = {"properties": {"below": {"type": "array", "items": link}}, "required": ["below"]}
    value = fill_schema({**link, "$defs": {"node": node}}, ConversationReading.of(TALK))
    assert str(value).count("below") < 10
    endless = {"properties": {"next": link}, "required": ["next"]}
    with pytest.raises(StepError, match="'next' requires itself"):
        fill_schema({**link, "$defs": {"node": endless}}, ConversationReading.of(TALK))
