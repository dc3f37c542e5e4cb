"""Conditions on Things, as filter, route, select and batches take them.

    status: done                      the prop has this value
    score: {at_least: 70, below: 90}  every test must hold
    content: {matches: "^Yes"}        tests the content
    reason: {exists: false}

A mapping holds if all of its lines hold, and a list of mappings if one of them holds. If a Thing
lacks the prop, the line is false, except for `exists: false` and `isnt`. A judgement that was
dropped because the content changed counts as missing.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

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

from mergepoint.core.errors import BlockError
from mergepoint.core.paths import nearest
from mergepoint.streams.params import (
    ParamFault,
    Params,
    Rails,
    check_params,
    places_in,
    read_knobs,
    turned,
)
from mergepoint.streams.thing import Thing, dropped_by, shown

CONTENT: Final = "content"

_EDGES = re.compile(r"^\W+|\W+$")


def failed(thing: Thing) -> bool:
    """Return whether work on a Thing failed; group decisions ignore it."""
    return thing.props.get("status") == "failed"


def value(thing: Thing, name: str) -> Any:
    """Return a prop, or the content if `name` is `content`.

    Raise BlockError, with similar names, if the Thing lacks the prop or the prop was dropped.
    """
    if name == CONTENT:
        return thing.content
    if name not in thing.props:
        known = ", ".join(sorted(thing.props)) or "none"
        raise BlockError(
            f"the Thing has no prop {name!r}{nearest(name, thing.props)}; its props: {known}",
            item=thing.id,
        )
    if (entry := dropped_by(thing, name)) is not None:
        raise BlockError(
            f"its {name} was dropped when {entry.block} at {entry.stage_id} changed the content "
            "that it was about; judge the new content, or read the prop before that stage (what "
            "the items bring and is not about their content has another name, such as reference)",
            item=thing.id,
        )
    return thing.props[name]


def number(thing: Thing, name: str) -> float:
    """Return a numeric prop. Raise BlockError if it is missing or isn't a number."""
    # bool is an int in Python, but `true` isn't a score.
    found = value(thing, name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BlockError(f"{name} must be a number, not {shown(found)}", item=thing.id)
    return found


def canonical(data: Any) -> str:
    """Return JSON data as text that is the same for equal data."""
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def answer_key(thing: Thing, name: str, *, exact: bool) -> str:
    """Return the key by which answers are compared.

    Unless `exact`, texts are compared in Unicode form NFKC, without case, with single spaces, and
    without punctuation at both ends: ` Paris. ` becomes `paris`.
    """
    found = value(thing, name)
    if exact or not isinstance(found, str):
        return canonical(found)
    # An answer of punctuation only must not become equal to every other such answer.
    folded = " ".join(unicodedata.normalize("NFKC", found).casefold().split())
    return _EDGES.sub("", folded) or folded


def pattern(text: str) -> str:
    """Return the text of a regular expression. Raise ValueError if it is invalid."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"the regular expression is invalid: {error}") from None
    return text


class Check(Params):
    """Tests on one prop; all that are set must hold."""

    equals: JsonValue = Field(default=None, description="the value is this")
    isnt: JsonValue = Field(default=None, description="the value is not this, or there is none")
    one_of: list[JsonValue] | None = Field(default=None, description="the value is one of these")
    at_least: float | None = Field(default=None, description="a number, this or more")
    at_most: float | None = Field(default=None, description="a number, this or less")
    above: float | None = Field(default=None, description="a number, more than this")
    below: float | None = Field(default=None, description="a number, less than this")
    contains: JsonValue = Field(default=None, description="a string or list that contains this")
    matches: Annotated[str, AfterValidator(pattern)] | None = Field(
        default=None, description="a string in which this regular expression matches"
    )
    exists: bool | None = Field(default=None, description="whether the Thing has the prop")

    @model_validator(mode="after")
    def _some(self) -> Check:
        if not self.model_fields_set:
            raise ValueError("the condition has no test; add equals, at_least, exists, ...")
        return self


# JsonValue accepts mappings too: in a union without discriminator, a misspelled test would become
# a value to compare with.
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


class Condition(Params):
    """A condition on Things."""

    where: Where


def is_open(where: Any) -> bool:
    """Return whether a condition contains parameter placeholders, so that it isn't final yet."""
    return any(read_knobs(as_data(where)))


def _or_open(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    return given if is_open(given) else check(given)


OpenWhere = Annotated[Where, WrapValidator(_or_open)]
"""A condition, or one with placeholders, which stays as written."""


class MayHold(Params):
    """A condition that may contain placeholders."""

    where: OpenWhere


def holds(where: Where, thing: Thing) -> bool:
    """Return whether a condition holds for a Thing.

    Raise BlockError if a test needs a number and the prop isn't one.
    """
    if isinstance(where, list):
        return any(holds(lines, thing) for lines in where)
    return all(_line_holds(name, line, thing) for name, line in where.items())


def read_props(where: Where | None) -> list[str]:
    """Return the props that a condition reads, except the content."""
    lines = where if isinstance(where, list) else [where or {}]
    names = dict.fromkeys(name for line in lines for name in line)
    return [name for name in names if name != CONTENT]


def asked_for(where: Where | None) -> list[str]:
    """Return the props that a condition requires.

    A prop that is only tested with `exists` or `isnt` may be missing. Any block may set `status`
    and `reason` when it fails.
    """
    if where is None:
        return []
    lines = where if isinstance(where, list) else [where]
    may_miss = {"exists", "isnt"}
    names = dict.fromkeys(
        name
        for line in lines
        for name, test in line.items()
        if not (isinstance(test, Check) and test.model_fields_set <= may_miss)
    )
    return [name for name in names if name not in (CONTENT, "status", "reason")]


def as_data(value: Any) -> Any:
    """Return pydantic values as the data that they were read from."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: as_data(item) for key, item in value.items()}
    return [as_data(item) for item in value] if isinstance(value, list | tuple) else value


def _line_holds(name: str, line: Line, thing: Thing) -> bool:
    # A plain value is short for `equals`.
    test = line if isinstance(line, Check) else Check(equals=line)
    there = name == CONTENT or (name in thing.props and dropped_by(thing, name) is None)
    # Not the values: `equals: null` is a test, and None is also the default.
    asked = test.model_fields_set
    if "exists" in asked and there is not test.exists:
        return False
    # A missing prop satisfies only tests for absence.
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


# 1 == True in Python, but a count isn't a flag.
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


P = TypeVar("P", bound=BaseModel)


class RecipeLimits(Params):
    """The conditions and rails that end a recipe's work."""

    until: Where | None = None
    rails: Rails = Rails()


def filled(
    model: type[P], given: Mapping[str, Any], knobs: Mapping[str, Any]
) -> P | tuple[ParamFault, ...]:
    """Return the params with recipe parameters filled in, or all problems with them.

    A placeholder that names no parameter is a problem: nothing fills it later.
    """
    data = turned(as_data(given), knobs)
    unknown = tuple(
        ParamFault(at, f"no knob is named {name!r}{nearest(name, knobs)}")
        for at, name in places_in(data)
    )
    return unknown or check_params(model, data)
