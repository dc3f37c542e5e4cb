"""The JSON Schema of recipe files, for editors: every block with its own params."""

from __future__ import annotations

from typing import Any

from mergepoint.streams.library import LIBRARY, Library
from mergepoint.streams.recipe_yaml import RecipeFields
from mergepoint.streams.registry import REGISTRY, Registry

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_AS_THEY_ARE = {"BudgetFields", "Gather", "JsonValue", "PolicyFields", "RetryFields", "StageFields"}


def recipe_schema(*, registry: Registry = REGISTRY, library: Library = LIBRARY) -> dict[str, Any]:
    """Give the schema, JSON Schema 2020-12.

    A stage's `params` follow from its `type`. Texts stand for values of any type where a knob may
    be filled in. Raises RecipeError for blocks that cannot be loaded.
    """
    schema = RecipeFields.model_json_schema()
    stage = schema["$defs"]["StageFields"]
    types: list[dict[str, Any]] = []
    for kind in registry.all():
        params = kind.schema()
        for name, definition in params.pop("$defs", {}).items():
            schema["$defs"].setdefault(name, definition)
        place = f"block_{kind.name}"
        schema["$defs"][place] = params
        types.append(_when(kind.name, {"$ref": f"#/$defs/{place}"}))
    for name in library.names():
        knobs = {"type": "object", "properties": {key: {} for key in library.find(name).knobs}}
        types.append(_when(name, {**knobs, "additionalProperties": False}))
    stage["properties"]["type"]["examples"] = [*registry.names(), *library.names()]
    stage["allOf"] = types
    for name in schema["$defs"].keys() - _AS_THEY_ARE:
        schema["$defs"][name] = _with_knobs(schema["$defs"][name])
    return {"$schema": DRAFT, **_apart(schema)}


def _when(name: str, params: dict[str, Any]) -> dict[str, Any]:
    return {
        "if": {"properties": {"type": {"const": name}}},
        "then": {"properties": {"params": params}},
    }


def _apart(value: Any) -> Any:
    """Tell models from plain values, of which JSON Schema says that a mapping is one as well."""
    if isinstance(value, list):
        return [_apart(item) for item in value]
    if not isinstance(value, dict):
        return value
    model, plain = [*value.get("oneOf", ()), None, None][:2]
    if plain == {"$ref": "#/$defs/JsonValue"}:
        return {"if": {"type": "object"}, "then": model}
    return {key: _apart(item) for key, item in value.items()}


def _with_knobs(params: dict[str, Any]) -> dict[str, Any]:
    """Let a text with a place stand in for each param."""
    if "properties" not in params:
        return params
    place = {"type": "string", "pattern": r"^\{\{.*\}\}$"}
    properties = {
        name: {"anyOf": [definition, place], "description": definition.get("description", "")}
        for name, definition in params.get("properties", {}).items()
    }
    return {**params, "properties": properties}
