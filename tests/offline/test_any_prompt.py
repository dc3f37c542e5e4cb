"""The rules of the offline model stand any prompt: hostile, cut off, blank or full of marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from mergepoint.offline.model import OfflineModel
from mergepoint.streams.recipe_yaml import SHIPPED

_SENTENCES = (
    "Score the following from 0 to 100.",
    "Judge it. - ... -",
    "Choose the best of these.",
    "Break the task into parts.",
    "Verify the answer against the sources.",
    "Ask one follow-up question, or say none.",
    "Revise it by the critique.",
    "Write a plan, then a program.",
    'Issues:\n- \n\nEdits:\n- replace "" with ""',
    "Describe a picture.",
    "List 3 options:",
    "1. 2. 3.",
    "Avoid: , ; -",
    "...",
    "```python\nprint(\n```",
    "(score 99999999999999999999) a",
    "¿?",
)
_TAGS = ("text", "answer", "question", "task", "steps", "sources", "answers", "tool", "problem")
_RECIPES = tuple(file.read_text(encoding="utf-8") for file in sorted(SHIPPED.glob("*.yaml")))
_PROMPTS = tuple(
    line.partition('"')[2].rpartition('"')[0].encode().decode("unicode_escape", "replace")
    for text in _RECIPES
    for line in text.splitlines()
    if "{{" in line and '"' in line
)

_words = st.one_of(
    st.sampled_from(_SENTENCES),
    st.sampled_from(_PROMPTS),
    st.text(max_size=30),
    st.text(alphabet=" \n\t.,;:-*<>/[]{}()\"'0123456789#|", max_size=30),
)
_tagged = st.builds(
    lambda tag, body, end: f"<{tag}>\n{body}\n{end}",
    st.sampled_from(_TAGS),
    _words,
    st.sampled_from([f"</{tag}>" for tag in _TAGS] + ["", "<"]),
)
_texts = st.lists(st.one_of(_words, _tagged), max_size=6).map("\n".join)

_leaf = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 0},
        {"type": "string", "minLength": 500},
        {"type": "integer", "minimum": 5, "maximum": 5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", None, 3]},
        {"const": "x"},
        {},
    ]
)
_schema = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.builds(lambda one: {"type": "array", "items": one, "minItems": 1}, inner),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
        st.dictionaries(
            st.sampled_from(
                ["score", "feedback", "parts", "choice", "reason", "verified", "question", "stages"]
            ),
            inner,
            max_size=3,
        ).map(lambda made: {"type": "object", "properties": made, "required": list(made)}),
    ),
    max_leaves=4,
)


def asked(texts: list[str]) -> list[BaseMessage]:
    """Return a conversation of these texts, whose speakers take turns."""
    kinds: tuple[type[BaseMessage], ...] = (HumanMessage, AIMessage)
    return [kinds[number % 2](text) for number, text in enumerate(texts)]


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(_texts, max_size=4), system=st.none() | _texts)
@example(texts=["..."], system=None)
@example(texts=["Describe ... .\n<text>\n.\n</text>"], system=None)
def test_no_prompt_breaks_the_rules(texts: list[str], system: str | None) -> None:
    """Any conversation gets a text for an answer."""
    lead: list[BaseMessage] = [] if system is None else [SystemMessage(system)]
    assert OfflineModel().invoke([*lead, *asked(texts)] or [HumanMessage("")]).text is not None


@settings(max_examples=200, deadline=None)
@given(text=_texts, schema=_schema)
def test_no_prompt_breaks_structured_output(text: str, schema: dict[str, Any]) -> None:
    """Any prompt with any schema gets the call of a tool, with arguments as an object."""
    tool = {
        "title": "Made",
        "description": "What is made.",
        "type": "object",
        "properties": {"made": schema},
        "required": ["made"],
    }
    bound = OfflineModel().bind_tools([tool], tool_choice="any")
    (call,) = bound.invoke([HumanMessage(text)]).tool_calls
    assert "made" in call["args"]


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*.yaml")), ids=lambda file: str(file.stem))
def test_a_recipe_as_a_prompt_breaks_nothing(file: Path) -> None:
    """Even the text of a recipe is answered, whole and line by line."""
    text = file.read_text(encoding="utf-8")
    for part in (text, *text.splitlines()):
        assert OfflineModel().invoke(part).text.strip()
