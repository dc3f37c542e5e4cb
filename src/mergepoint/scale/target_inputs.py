"""The inputs that a target of a batch takes: declared ones of a tree, or the items of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from mergepoint.core.paths import nearest
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.thing import Thing
from mergepoint.tree.nodes import REQUIRED, Input, Node
from mergepoint.tree.validate import inputs_of

ID: Final = "id"
_ITEMS: Final = "items"


@dataclass(frozen=True, slots=True)
class TargetInputs:
    """The inputs that a target takes: `declared` ones of a tree, or None for items of a recipe."""

    declared: tuple[Input, ...] | None

    @classmethod
    def of(cls, target: Node | Recipe) -> TargetInputs:
        """Return the form of a tree's or a recipe's inputs."""
        return cls(None if isinstance(target, Recipe) else inputs_of(target))

    @property
    def takes(self) -> str:
        """Return what the target takes, as the end of a message."""
        if self.declared is None:
            return f"the recipe takes content and props, or a list of {_ITEMS}"
        return f"the tree takes: {', '.join(one.name for one in self.declared) or 'no inputs'}"

    def problems(self, data: Mapping[str, Any]) -> list[str]:
        """Return the problems of an object of inputs, in which an `id` is allowed."""
        if self.declared is None:
            return _item_problems(data)
        known = {one.name: one for one in self.declared}
        found = [
            f"input {name!r} is not declared{nearest(name, known)}; {self.takes}"
            for name in data
            if name not in known and name != ID
        ]
        found += [
            f"input {name!r} is missing; {self.takes}"
            for name, wanted in known.items()
            if name not in data and wanted.default is REQUIRED
        ]
        found += [
            f"{problem}; pass one such as {json.dumps(known[name].example)}"
            for name, value in data.items()
            if name in known and (problem := known[name].problem(value))
        ]
        return found

    def value(self, data: Mapping[str, Any]) -> Any:
        """Return the value of a `BatchInput` for an object without problems."""
        if self.declared is not None:
            named = {one.name for one in self.declared}
            return {name: given for name, given in data.items() if name in named}
        rest = {name: given for name, given in data.items() if name != ID}
        if _ITEMS in rest:
            return [_plain_item(one) for one in rest[_ITEMS]]
        return [_plain_item(rest)]

    def text_name(self) -> str:
        """Return the name of the only text that the target takes: a file of a folder is one.

        Raises ValueError if the target takes another number of inputs.
        """
        if self.declared is None:
            return "content"
        required = [one for one in self.declared if one.default is REQUIRED]
        one = required if len(required) == 1 else self.declared
        if len(one) != 1:
            raise ValueError(
                "a folder has one text for each input, and the tree takes "
                f"{', '.join(each.name for each in self.declared) or 'no inputs'}; write the "
                "inputs to a JSONL or CSV file"
            )
        return one[0].name

    def typed(self, name: str, text: str) -> Any:
        """Return a text as a value: parsed as JSON if the tree declares another type than text.

        A text that isn't JSON stays as it is, and is a problem of its type.
        """
        kinds = {one.name: one.json_type for one in self.declared or ()}
        if kinds.get(name, "") in ("", "string"):
            return text
        try:
            return json.loads(text, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            return text


def _item_problems(data: Mapping[str, Any]) -> list[str]:
    rest = [name for name in data if name != ID]
    if _ITEMS not in data:
        return _problems_of_item({name: data[name] for name in rest}, "the line")
    items = data[_ITEMS]
    if len(rest) > 1:
        others = ", ".join(repr(name) for name in rest if name != _ITEMS)
        return [f"next to {_ITEMS!r} there is only 'id', not {others}"]
    if not isinstance(items, list) or not items:
        return [f"{_ITEMS!r} must be a list of one or more items"]
    return [
        problem
        for position, one in enumerate(items, 1)
        for problem in _problems_of_item(one, f"item {position}")
    ]


def _problems_of_item(item: Any, what: str) -> list[str]:
    if not isinstance(item, Mapping):
        return []
    if "content" not in item:
        near = nearest("content", item)
        form = '{"content": "...", "props": {...}}'
        return [f"{what} has no 'content'{near}; write {form}, or a list of {_ITEMS}"]
    try:
        _thing(_plain_item(item))
    except (TypeError, ValueError) as error:
        return [f"{what}: {error}"]
    return []


def _plain_item(item: Any) -> Any:
    """Return an item as JSON data: an object's other fields are its props, as in `--items`."""
    if not isinstance(item, Mapping):
        return item
    props = item.get("props", {name: given for name, given in item.items() if name != "content"})
    return {"content": item["content"], **({"props": props} if props else {})}


def _thing(item: Mapping[str, Any]) -> Thing:
    return Thing(item["content"], item.get("props", {}))


def items_of(value: Sequence[Any]) -> list[Any]:
    """Return the items of a recipe's `BatchInput.value`, as `mergepoint.run` takes them."""
    return [_thing(one) if isinstance(one, Mapping) else one for one in value]


def refuse_constant(constant: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python's parser takes and JSON doesn't have."""
    raise ValueError(f"{constant} isn't JSON; write null or a number")
