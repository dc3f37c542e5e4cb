"""Filling: values for JSON schemas, kind by kind, made from the words of a conversation."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.core.errors import StepError
from mergepoint.offline.language import ConversationReading
from mergepoint.offline.schema_values import filled

TALK = ConversationReading.of(
    [
        HumanMessage("<brief>A poster of a mill, for families. It should feel calm.</brief>"),
        AIMessage("The poster shows a very blue mill. It feels calm."),
        HumanMessage("Critique it. Likes: reeds, linen"),
    ]
)
CRITIQUE_ISSUES = [
    '"very" hedges; the text is firmer without it.',
    '"a mill" is named, and nothing in it could be touched.',
]


def field(name: str, schema: dict[str, Any], **more: Any) -> Any:
    """Fill one required field of an object."""
    whole = {"type": "object", "properties": {name: schema}, "required": [name], **more}
    made = filled(whole, TALK)
    assert set(made) == {name}
    return made[name]


TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}


@pytest.mark.parametrize(
    ("name", "schema", "value"),
    [
        ("subject", TEXT, "a mill"),
        ("audience", TEXT, "families"),
        ("tone", TEXT, "calm"),
        ("title", TEXT, "A Mill"),
        ("image_prompt", TEXT, "Poster of a mill, reeds, linen, calm mood"),
        ("script", TEXT, 'print("a mill")'),
        ("why", TEXT, "It holds what was asked for: mill and calm."),
        ("likes", TEXT, "reeds, linen"),
        ("likes", TEXTS, ["reeds", "linen"]),
        ("dislikes", TEXTS, []),
        ("dislikes", {**TEXTS, "minItems": 1}, ["nothing"]),
        ("tags", {**TEXTS, "maxItems": 2}, ["poster", "blue"]),
        ("issues", TEXTS, CRITIQUE_ISSUES),
        ("edits", {**TEXTS, "maxItems": 1}, ['cut "very"']),
        ("short", {"type": "string", "maxLength": 4}, "a"),
        ("long", {"type": "string", "minLength": 10}, "a mill a mill"),
        ("fixed", {"const": 3}, 3),
        ("colour", {"enum": ["red", "blue"]}, "blue"),
        ("colours", {"type": "array", "items": {"enum": ["red", "blue"]}}, ["blue"]),
        (
            "both",
            {"type": "array", "items": {"enum": ["r", "blue"]}, "uniqueItems": True, "minItems": 2},
            ["blue", "r"],
        ),
        ("set", {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [8]),
        ("good", {"type": "boolean"}, True),
        ("score", {"type": "integer", "minimum": 1, "maximum": 5}, 4),
        ("share", {"type": "number"}, 0.81),
        ("tight", {"type": "number", "minimum": 0.00012, "maximum": 0.00013}, 0.0001281),
        ("none", {"type": "null"}, None),
        ("maybe", {"anyOf": [TEXT, {"type": "null"}]}, None),
        ("perhaps", {"type": ["string", "null"]}, None),
        ("likes", {"type": ["null", "string"]}, "reeds, linen"),
        ("either", {"oneOf": [{"type": "boolean"}, TEXT]}, True),
        ("all", {"allOf": [{"type": "boolean"}]}, True),
        ("any", {"type": "array", "items": {}, "minItems": 1}, [None]),
        ("pair", {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}]}, [1, 2]),
        (
            "nested",
            {"properties": {"good": {"type": "boolean"}}, "required": ["good"]},
            {"good": True},
        ),
        ("free", {"type": "object"}, {}),
    ],
)
def test_each_kind_of_schema_gets_a_value_that_fits(
    name: str, schema: dict[str, Any], value: Any
) -> None:
    """Names say what is wanted, the schema says in which form."""
    assert field(name, schema) == value


def test_references_are_followed() -> None:
    """A reference points into the schema; lists of what refers to itself end."""
    node = {
        "type": "object",
        "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["below"],
    }
    made = field("node", {"$ref": "#/$defs/node"}, **{"$defs": {"node": node}})
    depth = 0
    while made["below"]:
        (made,) = made["below"]
        depth += 1
    assert 0 < depth < 10


def test_a_schema_without_an_end_is_refused() -> None:
    """What requires itself has no value, and says which field asks for it."""
    node = {"properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    with pytest.raises(StepError, match="'next' asks for itself"):
        field("node", {"$ref": "#/$defs/node"}, **{"$defs": {"node": node}})


def test_what_has_a_default_is_left_to_it() -> None:
    """Properties that are not required are not filled in."""
    assert filled({"type": "object", "properties": {"title": TEXT}}, TALK) == {}


def test_an_empty_conversation_fills_in_too() -> None:
    """With no words at all there are values, and the judgement is that nothing is there."""
    empty = ConversationReading.of([])
    schema = {
        "type": "object",
        "properties": {"why": TEXT, "good": {"type": "boolean"}, "topic": TEXT},
        "required": ["why", "good", "topic"],
    }
    assert filled(schema, empty) == {
        "why": "Nothing was asked.",
        "good": False,
        "topic": "nothing was asked",
    }
