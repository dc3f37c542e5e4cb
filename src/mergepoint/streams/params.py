"""Params: what a stage tells its block, checked before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from mergepoint.core.errors import RecipeError
from mergepoint.core.path import nearest
from mergepoint.report.lettering import clip

Location = tuple[str | int, ...]
P = TypeVar("P", bound=BaseModel)


class Params(BaseModel):
    """What params derive from: nothing unknown, no text for a number, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True, slots=True)
class ParamFault:
    """One thing that is wrong with given params: where in them, and what.

    One that is `unknown` stands beside the others, which are what they are without it.
    """

    location: Location
    problem: str
    unknown: bool = False

    def __str__(self) -> str:
        where = ".".join(map(str, self.location))
        return f"{where}: {self.problem}" if where else self.problem


def params_of(model: type[P], given: Mapping[str, Any] | P | None, *, where: str) -> P:
    """Give the params that were given; `where` (a stage id) begins the error.

    Raises RecipeError that lists everything that is wrong with them.
    """
    checked = check_params(model, given)
    if isinstance(checked, tuple):
        raise RecipeError(f"{where}: {'; '.join(map(str, checked))}")
    return checked


def check_params(model: type[P], given: Mapping[str, Any] | P | None) -> P | tuple[ParamFault, ...]:
    """Give the params, or all that is wrong with what was given."""
    if isinstance(given, model):
        return given
    if given is not None and not isinstance(given, Mapping):
        return (ParamFault((), f"params are a mapping, not {given!r}"),)
    try:
        return model.model_validate(dict(given or {}))
    except ValidationError as error:
        return tuple(_fault(model, given, found) for found in error.errors())


def _fault(model: type[BaseModel], given: Any, found: Mapping[str, Any]) -> ParamFault:
    kind, value, context = found["type"], found["input"], found.get("ctx", {})
    location = _inside(given, found["loc"], named=kind == "missing")
    if kind == "extra_forbidden":
        known = known_names(model, found["loc"][:-1])
        near = nearest(str(location[-1]), known)
        problem = f"no such param{near}; there are: {', '.join(known) or 'none'}"
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


def _inside(given: Any, location: Location, *, named: bool) -> Location:
    """Give a location without the names of alternatives, which are no part of what was given."""
    kept: list[str | int] = []
    for place, part in enumerate(location, start=1):
        is_item = isinstance(given, list) and isinstance(part, int)
        is_there = is_item or (isinstance(given, Mapping) and part in given)
        if is_there:
            given = given[part]
        if is_there or (named and place == len(location)):
            kept.append(part)
    return tuple(kept)


def known_names(model: Any, location: Location) -> list[str]:
    """Give the names of the params at a location, in order."""
    models = list(models_of(model))
    for part in location:
        inside = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        if inside:
            models = [one for annotation in inside for one in models_of(annotation)]
        elif tagged := [one for one in models if part in _tags(one)]:
            models = tagged
    return list(dict.fromkeys(name for one in models for name in one.model_fields))


def models_of(annotation: Any) -> Iterator[Any]:
    """Give the models that a type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from models_of(annotation.model_fields["root"].annotation)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from models_of(argument)


def _tags(model: Any) -> set[Any]:
    """Give the literals by which a model is told from its alternatives."""
    return {tag for field in model.model_fields.values() for tag in get_args(field.annotation)}
