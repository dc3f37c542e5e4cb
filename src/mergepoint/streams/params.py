"""Params of blocks, knobs and limits (rails) of recipes, and objects named by `module:name`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from mergepoint.core.errors import (
    BlockError,
    BudgetExceeded,
    MergepointError,
    RailError,
    RecipeError,
    TreeError,
)
from mergepoint.core.paths import nearest
from mergepoint.core.text import clip
from mergepoint.tree.policy import Budget
from mergepoint.tree.prompts import as_text
from mergepoint.tree.yaml_keys import Location, known_names, location_in

P = TypeVar("P", bound=BaseModel)


class Params(BaseModel):
    """Base class of params: no unknown fields, strict types, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True, slots=True)
class ParamFault:
    """One problem of given params: its location, and a message.

    `unknown` marks a field that doesn't exist: the other fields are valid without it. `complete`
    marks a message that names the field itself.
    """

    location: Location
    problem: str
    unknown: bool = False
    complete: bool = False

    def __str__(self) -> str:
        where = "" if self.complete else ".".join(map(str, self.location))
        return f"{where}: {self.problem}" if where else self.problem


def params_of(model: type[P], given: Mapping[str, Any] | P | None, *, where: str) -> P:
    """Return validated params; `where`, a stage id, begins the error message.

    Raise RecipeError with all problems.
    """
    checked = check_params(model, given)
    if isinstance(checked, tuple):
        raise RecipeError(f"{where}: {'; '.join(map(str, checked))}")
    return checked


def check_params(model: type[P], given: Mapping[str, Any] | P | None) -> P | tuple[ParamFault, ...]:
    """Return validated params, or all problems with them."""
    if isinstance(given, model):
        return given
    if given is not None and not isinstance(given, Mapping):
        return (ParamFault((), f"params are a mapping, not {given!r}"),)
    try:
        return model.model_validate(dict(given or {}))
    except ValidationError as error:
        return tuple(fault for found in error.errors() for fault in _faults(model, given, found))


def _faults(model: type[BaseModel], given: Any, found: Mapping[str, Any]) -> Iterator[ParamFault]:
    location = location_in(given, found["loc"], missing=found["type"] == "missing")
    error = found.get("ctx", {}).get("error")
    # Errors of our own classes say which field they are about.
    if isinstance(error, TreeError):
        for fault in error.faults:
            yield ParamFault(location, fault.problem, complete=True)
    elif isinstance(error, MergepointError):
        for problem in str(error).splitlines():
            yield ParamFault(location, problem.strip(), complete=True)
    else:
        yield _fault(model, location, found)


def _fault(model: type[BaseModel], location: Location, found: Mapping[str, Any]) -> ParamFault:
    kind, value, context = found["type"], found["input"], found.get("ctx", {})
    if kind == "extra_forbidden":
        known = known_names(model, found["loc"][:-1])
        near = nearest(str(location[-1]), known)
        problem = f"no such param{near}; available: {', '.join(known) or 'none'}"
        return ParamFault(location, problem, unknown=len(location) == 1)
    if kind in ("missing", "union_tag_not_found"):
        name = str(context.get("discriminator", "")).strip("'")
        return ParamFault((*location, name) if name else location, "is missing")
    if kind == "union_tag_invalid":
        name, value = str(context["discriminator"]).strip("'"), context["tag"]
        location, listed = (*location, name), str(context["expected_tags"])
        problem = f"is one of {listed}"
    else:
        listed = str(context.get("expected", ""))
        message = str(found["msg"]).removeprefix("Value error, ")
        problem = message[:1].lower() + message[1:]
    words = [word.strip("'") for word in listed.replace(" or ", ", ").split(", ")]
    near = nearest(value, words) if listed and isinstance(value, str) else ""
    is_own = kind == "value_error" and isinstance(value, Mapping)
    return ParamFault(
        location, problem if is_own else f"{problem}, not {clip(repr(value), 60)}{near}"
    )


_PLACE = re.compile(r"\{\{\s*([^\s{}]+)\s*\}\}")


def turned(value: Any, knobs: Mapping[str, Any]) -> Any:
    """Return JSON data in which each `{{ knob }}` is replaced by the knob's value.

    A string that consists of one placeholder becomes the value itself, of any type. Placeholders
    that name no knob stay: prompts of blocks have placeholders of their own.
    """
    if isinstance(value, str):
        # A string that is only a placeholder keeps the knob's type: a number stays a number.
        whole = _PLACE.fullmatch(value.strip())
        if whole and whole[1] in knobs:
            return knobs[whole[1]]
        return _PLACE.sub(
            lambda place: as_text(knobs[place[1]]) if place[1] in knobs else place[0], value
        )
    if isinstance(value, Mapping):
        return {key: turned(item, knobs) for key, item in value.items()}
    return [turned(item, knobs) for item in value] if isinstance(value, list | tuple) else value


def read_knobs(value: Any) -> Iterator[str]:
    """Return the names of all placeholders in JSON data, whether or not they are knobs."""
    return (name for _, name in places_in(value))


def places_in(value: Any, at: Location = ()) -> Iterator[tuple[Location, str]]:
    """Yield the locations and names of the placeholders in JSON data."""
    if isinstance(value, str):
        yield from ((at, name) for name in _PLACE.findall(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from places_in(item, (*at, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from places_in(item, (*at, number))


def knob_faults(given: Mapping[str, Any], knobs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and problem of each value that isn't a knob or has the wrong type."""
    for name, value in given.items():
        if name not in knobs:
            there = f"; available: {', '.join(knobs)}" if knobs else "; the recipe has none"
            yield name, f"no such knob{nearest(str(name), knobs)}{there}"
        elif not _fits(value, knobs[name]):
            yield name, f"must have the type of its default {knobs[name]!r}, not {value!r}"


def _fits(value: Any, default: Any) -> bool:
    """Return whether a value has the default's type; integers are numbers, null is anything."""
    if default is None or value is None:
        return True
    # bool is a subclass of int, so it is compared first.
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, int | float):
        return isinstance(value, int | float)
    kinds: tuple[type, ...] = (str, list, dict)
    return any(isinstance(default, kind) and isinstance(value, kind) for kind in kinds)


_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def named_problem(given: Any) -> str:
    """Return the expected form if a value isn't a `module:name`, or ""; nothing is imported."""
    return "" if isinstance(given, str) and _NAME.fullmatch(given) else "the string 'module:name'"


def name_of(given: Any) -> str:
    """Return the name of an object: a string itself, otherwise `module:qualified name`."""
    if isinstance(given, str):
        return given
    kind = given if hasattr(given, "__qualname__") else type(given)
    return f"{kind.__module__}:{kind.__qualname__}"


NAMED: Final = PlainSerializer(lambda given: None if given is None else name_of(given))
"""Serializer for params that are objects: by name, so that fingerprints can contain them."""


def recorded(value: Any) -> Any:
    """Return a value as JSON data, with functions and other objects as their names."""
    if isinstance(value, Mapping):
        return {name: recorded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [recorded(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else name_of(value)


def named(given: str) -> Any:
    """Import a module and return the object named by `module:name`. Raise BlockError on failure."""
    module, _, name = given.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        problem = f"can't be loaded: {type(error).__name__}: {error}"
        raise BlockError(f"{given!r} {problem}") from error


class Rails(Params):
    """The limits of a recipe's work; null removes a limit.

    Calls, usd, tokens, and deadline apply to the whole recipe. A call beyond a limit isn't made,
    finished results are still returned, and the prop `stopped` names the limit. The defaults of
    calls and deadlock belong to the run: a nested recipe has only the limits that it sets. Explicit
    limits bound everything nested; a default deadlock yields to a nested one.
    """

    max_iterations: int = Field(
        default=10, ge=1, description="maximum number of rounds of a recurrent recipe per Thing"
    )
    calls: int | None = Field(default=1_000, ge=0, description="maximum number of model calls")
    usd: float | None = Field(default=None, ge=0, description="maximum cost in USD")
    tokens: int | None = Field(
        default=None, ge=0, description="maximum tokens of prompts and answers"
    )
    deadline: float | None = Field(
        default=None, gt=0, description="maximum seconds from the first item (depends on time)"
    )
    patience: int | None = Field(
        default=None, ge=1, description="maximum rounds without a better score or changed props"
    )
    deadlock: float | None = Field(
        default=60.0,
        gt=0,
        description="maximum seconds without progress while no call is in progress",
    )

    @property
    def inside(self) -> Rails:
        """Return the rails as they apply to a nested recipe: without the run's defaults."""
        own = self.model_fields_set
        limits = {name: getattr(self, name) for name in type(self).model_fields}
        limits |= {name: None for name in ("calls", "deadlock") if name not in own}
        # model_construct keeps `model_fields_set`, which tells explicit limits from defaults.
        return self.model_construct(own, **limits)

    @property
    def budget(self) -> Budget | None:
        """Return the limits of calls as a budget, or None if there are none."""
        if self.calls is None and self.usd is None and self.tokens is None:
            return None
        return Budget(self.usd, tokens=self.tokens, calls=self.calls)


def _or_open(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    # Placeholders can't be validated yet; the other fields can.
    if not isinstance(given, Mapping) or not any(read_knobs(given)):
        return check(given)
    check({name: value for name, value in given.items() if not any(read_knobs(value))})
    return given


OpenRails = Annotated[Rails, WrapValidator(_or_open)]
"""Rails, or rails with placeholders, which stay as written."""


DEADLOCK: Final = "deadlock"


class TimeLimitStop(RailError):
    """A time limit that ended a part of a recipe; `rail` is deadline or deadlock."""

    def __init__(self, rail: str, problem: str) -> None:
        super().__init__(problem)
        self.rail = rail

    # The default __reduce__ would call __init__ with the message only.
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rail, str(self)), self.__dict__


@dataclass(frozen=True, slots=True)
class StopReason:
    """The rail that ended a stage, the stage, and the message."""

    rail: str
    stage_id: str
    problem: str

    def __str__(self) -> str:
        return f"{self.rail} at {self.stage_id}: {self.problem}"


class Stops:
    """The stops of one run, in order."""

    def __init__(self) -> None:
        self.all: list[StopReason] = []

    def note(self, stage_id: str, error: RailError) -> None:
        """Record that a rail ended a stage."""
        rail = "rail"
        if isinstance(error, BudgetExceeded):
            rail = error.kind
        elif isinstance(error, TimeLimitStop):
            rail = error.rail
        self.all.append(StopReason(rail, stage_id, str(error)))

    @property
    def reason(self) -> str:
        """Return the rail of the first stop, or "" if nothing was stopped."""
        return self.all[0].rail if self.all else ""
