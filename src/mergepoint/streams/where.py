"""Where: conditions on props, as filter, route, select and batches take them.

    status: done                      the prop is that
    score: {at_least: 70, below: 90}  all of it holds
    content: {matches: "^Yes"}        of the content
    reason: {exists: false}

A mapping holds where all its lines do, a list of mappings where one of them does. A prop that a
Thing does not have makes a line false, but for `exists: false` and `isnt`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from mergepoint.streams.knobs import read_knobs
from mergepoint.streams.params import Params
from mergepoint.streams.reading import CONTENT, number
from mergepoint.streams.thing import Thing


def pattern(text: str) -> str:
    """Give the text of a regular expression. Raises ValueError for one that is none."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"this is no regular expression: {error}") from None
    return text


class Check(Params):
    """What is asked of one prop; all that is given has to hold."""

    equals: JsonValue = Field(default=None, description="the value is this")
    isnt: JsonValue = Field(default=None, description="the value is not this, or there is none")
    one_of: list[JsonValue] | None = Field(default=None, description="the value is one of these")
    at_least: float | None = Field(default=None, description="a number, this or more")
    at_most: float | None = Field(default=None, description="a number, this or less")
    above: float | None = Field(default=None, description="a number, more than this")
    below: float | None = Field(default=None, description="a number, less than this")
    contains: JsonValue = Field(default=None, description="a text or list with this in it")
    matches: Annotated[str, AfterValidator(pattern)] | None = Field(
        default=None, description="a text in which this regular expression is found"
    )
    exists: bool | None = Field(default=None, description="there is such a prop, or there is none")

    @model_validator(mode="after")
    def _some(self) -> Check:
        if not self.model_fields_set:
            raise ValueError("a condition without a test; give equals, at_least, exists ...")
        return self


def _is_check(line: object) -> str:
    return "check" if isinstance(line, Check | Mapping) else "value"


def _is_any(where: object) -> str:
    return "any" if isinstance(where, list) else "all"


Line = Annotated[
    Annotated[Check, Tag("check")] | Annotated[JsonValue, Tag("value")], Discriminator(_is_check)
]
Lines = Annotated[dict[str, Line], Field(min_length=1)]
Where = Annotated[
    Annotated[Lines, Tag("all")] | Annotated[list[Lines], Field(min_length=1), Tag("any")],
    Discriminator(_is_any),
    Field(description="conditions on props"),
]


class Held(Params):
    """A condition."""

    where: Where


def is_open(where: Any) -> bool:
    """Say whether a condition has places for knobs, so that it is not known yet."""
    return any(read_knobs(as_data(where)))


def _or_open(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    return given if is_open(given) else check(given)


OpenWhere = Annotated[Where, WrapValidator(_or_open)]
"""A condition, or one with places for knobs, which stays as it was given."""


class MayHold(Params):
    """A condition that may be open."""

    where: OpenWhere


def holds(where: Where, thing: Thing) -> bool:
    """Say whether a condition holds for a Thing.

    Raises BlockError where a number is asked for and the prop is none.
    """
    if isinstance(where, list):
        return any(holds(lines, thing) for lines in where)
    return all(_line_holds(name, line, thing) for name, line in where.items())


def read_props(where: Where | None) -> list[str]:
    """Give the props that a condition reads, without the content."""
    lines = where if isinstance(where, list) else [where or {}]
    names = dict.fromkeys(name for line in lines for name in line)
    return [name for name in names if name != CONTENT]


def asked_for(where: Where | None) -> list[str]:
    """Give the props without which no line of a condition could hold or fail by itself.

    A prop of which only is asked whether it is there, or isn't something, may be missing; and any
    block may say by `status` and `reason` that it failed.
    """
    lines = where if isinstance(where, list) else [where or {}]
    may_miss = {"exists", "isnt"}
    names = dict.fromkeys(
        name
        for line in lines
        for name, test in line.items()
        if not (isinstance(test, Check) and test.model_fields_set <= may_miss)
    )
    return [name for name in names if name not in (CONTENT, "status", "reason")]


def as_data(value: Any) -> Any:
    """Give what pydantic holds as the data that it was read from."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: as_data(item) for key, item in value.items()}
    return [as_data(item) for item in value] if isinstance(value, list | tuple) else value


def _line_holds(name: str, line: Line, thing: Thing) -> bool:
    test = line if isinstance(line, Check) else Check(equals=line)
    there = name == CONTENT or name in thing.props
    asked = test.model_fields_set
    if "exists" in asked and there is not test.exists:
        return False
    if not there:
        return asked <= {"exists", "isnt"}
    found = thing.content if name == CONTENT else thing.props[name]
    return all(
        check(found, getattr(test, word)) for word, check in _CHECKS.items() if word in asked
    ) and all(
        check(number(thing, name), getattr(test, word))
        for word, check in _MEASURES.items()
        if word in asked
    )


def _same(found: Any, wanted: Any) -> bool:
    return isinstance(found, bool) is isinstance(wanted, bool) and bool(found == wanted)


def _contains(found: Any, wanted: Any) -> bool:
    if isinstance(found, str):
        return isinstance(wanted, str) and wanted in found
    return isinstance(found, list) and any(_same(item, wanted) for item in found)


_CHECKS: dict[str, Any] = {
    "equals": _same,
    "isnt": lambda found, wanted: not _same(found, wanted),
    "one_of": lambda found, wanted: any(_same(found, one) for one in wanted or ()),
    "contains": _contains,
    "matches": lambda found, wanted: isinstance(found, str) and bool(re.search(wanted, found)),
}
_MEASURES: dict[str, Any] = {
    "at_least": lambda found, limit: found >= limit,
    "at_most": lambda found, limit: found <= limit,
    "above": lambda found, limit: found > limit,
    "below": lambda found, limit: found < limit,
}
