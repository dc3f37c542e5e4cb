"""Filling: values for a JSON schema, made from a conversation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from mergepoint.core.errors import StepError
from mergepoint.offline.brief import Brief, brief_of
from mergepoint.offline.critique import critique
from mergepoint.offline.edits import edits_in, options_in
from mergepoint.offline.language import (
    ConversationReading,
    Kind,
    content_words,
    how_many,
    listed,
    plain,
    sentences,
    subject_words,
    word_set,
    words_of,
)
from mergepoint.offline.stage_prompts import (
    StagePrompt,
    better,
    chosen,
    follow_up,
    parts_of,
    passes,
    reason,
    share,
    stage_of,
)
from mergepoint.offline.writing import answer, answer_as

_STAGED: Mapping[str, Callable[[StagePrompt], Any]] = {
    "score": lambda stage: round(100 * share(stage), 1),
    "winner": better,
    "verdict": lambda stage: "pass" if passes(stage) else "fail",
    "choice": chosen,
    "parts": lambda stage: parts_of(stage, how_many(stage.instruction, 3)),
    "enough": lambda stage: bool(stage.items("notes")),
    "follow_up": follow_up,
    "reason": reason,
}
"""What the answers of blocks hold, by name."""

DEEPEST = 8
"""Levels of nesting down to which lists of objects get an item; below they stay empty."""

_ANSWERS = word_set("answer response text content message output reply result draft body")

Schema = Mapping[str, Any]

_BY_NAME: tuple[tuple[frozenset[str], Kind], ...] = (
    (frozenset({"title", "name", "headline", "heading"}), "title"),
    (frozenset({"critique", "feedback", "issue", "issues", "problem", "problems"}), "critique"),
    (frozenset({"summary", "gist"}), "summarise"),
    (frozenset({"plan", "steps", "step", "outline", "tasks", "subtasks"}), "outline"),
    (frozenset({"options", "ideas", "concepts", "alternatives"}), "options"),
    (frozenset({"choice", "winner", "selected", "best"}), "choose"),
    (frozenset({"revised", "revision", "improved"}), "revise"),
)


def filled(schema: Schema, conversation: ConversationReading) -> Any:
    """Return a value that fits a JSON schema; the same for the same conversation.

    Required properties are filled, others are left to their defaults. Known are objects, arrays,
    text, numbers within their bounds, booleans, enums, constants, unions (null where it is
    allowed, else the first branch) and references within the schema. Patterns and formats are
    not looked at.

    Raises StepError for a schema that only an endless value fits.
    """
    return _Filling(schema, conversation).value(schema, "", 0)


class _Filling:
    """Fills one schema, whose definitions references point into."""

    def __init__(self, root: Schema, conversation: ConversationReading) -> None:
        self._root = root
        self._stage = stage_of(conversation)
        self._conversation = conversation if self._stage is None else self._stage.conversation

    def value(self, schema: Schema, name: str, depth: int) -> Any:
        if depth > 2 * DEEPEST:
            raise StepError(f"the schema has no end: {name!r} asks for itself; make it optional")
        schema = self._resolved(schema, name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._one_of(schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self._branch([{"type": one} for one in kind], name)["type"]
        if kind is None and "properties" in schema:
            kind = "object"
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind == "boolean":
            return self._holds()
        if kind in ("integer", "number"):
            return self._number(schema, whole=kind == "integer")
        return None if kind == "null" else self._text(schema, name)

    def _resolved(self, schema: Schema, name: str) -> Schema:
        for _ in range(DEEPEST):
            if "$ref" in schema:
                target: Any = self._root
                for part in str(schema["$ref"]).split("/")[1:]:
                    target = target[part]
                schema = {**target, **{key: schema[key] for key in schema if key != "$ref"}}
            elif branches := schema.get("anyOf") or schema.get("oneOf"):
                schema = self._branch(branches, name)
            elif len(schema.get("allOf", ())) == 1:
                schema = schema["allOf"][0]
            else:
                break
        return schema

    def _branch(self, branches: list[Schema], name: str) -> Schema:
        """Return the first branch; where null is one, null, unless the conversation has a value."""
        nulls = [branch for branch in branches if branch.get("type") == "null"]
        others = [branch for branch in branches if branch.get("type") != "null"]
        return nulls[0] if nulls and not self._labelled(name) else (others or nulls)[0]

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        properties: Mapping[str, Schema] = schema.get("properties", {})
        stage = self._stage
        told = (
            {}
            if stage is None
            else {name: _STAGED[name](stage) for name in _STAGED.keys() & {*properties}}
        )
        wanted = [*required, *(name for name in properties if name in told)]
        return {
            name: told[name]
            if name in told
            else self.value(properties.get(name, {}), name, depth + 1)
            for name in dict.fromkeys(wanted)
        }

    def _array(self, schema: Schema, name: str, depth: int) -> list[Any]:
        if "prefixItems" in schema:
            return [self.value(item, name, depth + 1) for item in schema["prefixItems"]]
        least, most = int(schema.get("minItems", 0)), int(schema.get("maxItems", 4))
        item = self._resolved(schema.get("items", {}), name)
        if not item:
            return [None] * least
        if item.get("type", "string") != "string" or "enum" in item:
            count = max(least, min(1, most)) if depth < DEEPEST else least
            made = [self.value(item, name, depth + 1) for _ in range(count)]
            return self._distinct(made, item) if schema.get("uniqueItems") else made
        lines = self._lines(name)
        while len(lines) < least:
            lines.append(f"{self._written(name)} ({len(lines) + 1})" if lines else "nothing")
        return [self._cut(line, item) for line in lines[: max(most, least)]]

    def _distinct(self, made: list[Any], item: Schema) -> list[Any]:
        """Return as many different values, as far as the schema of the items has a list of them."""
        if "enum" in item:
            best = self._one_of(item["enum"])
            return [best, *(option for option in item["enum"] if option != best)][: len(made)]
        return [value for number, value in enumerate(made) if value not in made[:number]]

    def _lines(self, name: str) -> list[str]:
        words = set(words_of(name.replace("_", " ")))
        brief = brief_of(self._conversation)
        if words & {"likes", "include"}:
            return list(brief.likes)
        if words & {"dislikes", "avoid", "exclude"}:
            return list(brief.dislikes)
        if words & {"keywords", "tags", "topics", "words"}:
            return list(content_words(self._conversation.work or self._conversation.task)[:5])
        if words & {"edits", "changes", "fixes"}:
            return [str(edit) for edit in edits_in(critique(self._conversation))]
        if words & {"issues", "problems", "weaknesses", "flaws"}:
            issues = critique(self._conversation).partition("Edits:")[0]
            return sentences(issues.removeprefix("Issues:"))
        text = self._written(name)
        return list(options_in(text)) or sentences(text)

    def _text(self, schema: Schema, name: str) -> str:
        return self._cut(self._written(name), schema)

    def _labelled(self, name: str) -> str:
        return self._conversation.labelled(" ".join(words_of(name.replace("_", " "))))

    def _written(self, name: str) -> str:
        if said := self._labelled(name):
            return said
        words = set(words_of(name.replace("_", " ")))
        brief = brief_of(self._conversation)
        if words & {"reason", "reasoning", "why", "because", "rationale", "explanation"}:
            return self._reason()
        if words & {"code", "script", "program", "python"}:
            return f"print({json.dumps(self._about(brief))})"
        if {"image", "prompt"} <= words:
            return answer_as("image_prompt", self._conversation)
        for names, kind in _BY_NAME:
            if words & names:
                return answer_as(kind, self._conversation)
        if words & _ANSWERS:
            return answer(self._conversation)
        facts = {"audience": brief.audience, "mood": brief.mood, "tone": brief.mood}
        return facts.get(name) or self._about(brief)

    def _about(self, brief: Brief) -> str:
        words = subject_words(self._conversation.task)
        return brief.subject or listed(words[:4]) or "nothing was asked"

    def _reason(self) -> str:
        shared = self._shared()
        if shared:
            return f"It holds what was asked for: {listed(shared[:4])}."
        asked = listed(content_words(self._conversation.task)[:4])
        return f"Nothing under work speaks of {asked}." if asked else "Nothing was asked."

    def _shared(self) -> list[str]:
        worked = content_words(self._conversation.work or self._conversation.task)
        brief = brief_of(self._conversation)
        asked = content_words(" ".join([brief.subject, *brief.details, brief.mood]))
        return [word for word in asked if word in worked]

    def _share(self) -> float:
        """Return the share of the request that is met, 0 to 1, less a tenth for each edit due."""
        brief = brief_of(self._conversation)
        asked = content_words(" ".join([brief.subject, *brief.details, brief.mood]))
        found = len(self._shared()) / len(asked) if asked else 0.5
        return found * 0.9 ** len(edits_in(critique(self._conversation)))

    def _holds(self) -> bool:
        return bool(self._shared())

    def _one_of(self, options: list[Any]) -> Any:
        """Return the option that the newest message speaks of, else the first."""
        for _, text in reversed(self._conversation.messages):
            said = plain(text)
            for option in options:
                word = plain(str(option))
                if word and re.search(rf"\b{re.escape(word)}\b", said):
                    return option
        return options[0]

    def _number(self, schema: Schema, *, whole: bool) -> int | float:
        low, high = _bounds(schema, whole=whole)
        value = low + (high - low) * self._share()
        step = schema.get("multipleOf") or (1 if whole else None)
        if step:
            first = math.ceil(low / step) * step
            value = first + step * math.floor((value - low) / step)
            value = min(value, math.floor(high / step) * step)
        rounded = round(value, 3)
        return int(value) if whole else rounded if low <= rounded <= high else value

    def _cut(self, text: str, schema: Schema) -> str:
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        while len(text) < least:
            text = f"{text} {text}" if text else "."
        if most is None or len(text) <= int(most):
            return text
        cut = text[: int(most)]
        shorter = cut.rpartition(" ")[0].rstrip(" ,.;:")
        return shorter if len(shorter) >= max(1, least) else cut


def _bounds(schema: Schema, *, whole: bool) -> tuple[float, float]:
    """Return the least and the greatest number allowed; an open end is 10 away, for fractions 1."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    span = 10.0 if whole else 1.0
    if low is None:
        low = 0.0 if high is None or high > 0 else high - span
    if high is None:
        high = low + span
    inset = 1.0 if whole else (high - low) / 100
    return (
        float(low) + (inset if "exclusiveMinimum" in schema else 0.0),
        float(high) - (inset if "exclusiveMaximum" in schema else 0.0),
    )
