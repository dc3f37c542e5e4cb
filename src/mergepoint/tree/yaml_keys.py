"""Forms: the keys of values in YAML, declared as pydantic models, and where their errors are.

A form declares which keys there are and how they are nested. Whether a value is valid is decided
by the class that the form makes, so YAML and Python have the same rules and the same messages.
Trees and recipes share the forms of budgets and policies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    SkipValidation,
    Tag,
    ValidationInfo,
    field_validator,
)

from mergepoint.tree.policy import Budget, Policy, Retry

Location = tuple[str | int, ...]
"""Keys and 0-based positions from the root of a document down."""


class Form(BaseModel):
    """The keys of one kind of value; subclasses declare them as fields.

    The default of a field is that of the value's class, or None.

    Attributes:
        makes: The class of the value, or a function that returns one.
        needed: Values of the arguments that `makes` requires, used to try the others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    makes: ClassVar[Callable[..., Any]]
    needed: ClassVar[Mapping[str, Any]] = {}

    @field_validator("*", mode="after")
    @classmethod
    def _try(cls, value: Any, info: ValidationInfo) -> Any:
        # Each field is tried with those before it, which are valid, so that pydantic locates its
        # problems. A single attempt with all fields would locate them at the value as a whole.
        before = {name: _made(one) for name, one in info.data.items() if one is not None}
        cls.makes(**{**cls.needed, **before, str(info.field_name): _made(value)})
        return value

    def made(self) -> Any:
        """Return the value. Raise what its class raises."""
        # Only keys that were written: the default of a form's field may be None, unlike the
        # class's.
        names = type(self).model_fields.keys() & self.model_fields_set
        return type(self).makes(**{name: _made(getattr(self, name)) for name in names})


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [_made(one) for one in value]
    return value.made() if isinstance(value, Form) else value


class WrongType(ValueError):
    """A value of another type than a form has; the message is the wanted type in words."""


def typed(words: str, test: type | Callable[[Any], bool]) -> BeforeValidator:
    """Return a validator that accepts values of one type, or those that pass a test.

    It raises WrongType with the words.
    """

    def check(value: Any) -> Any:
        if type(value) is test if isinstance(test, type) else test(value):
            return value
        raise WrongType(words)

    return BeforeValidator(check)


IS_MAPPING: Final = Discriminator(
    lambda value: "mapping" if isinstance(value, Mapping | BaseModel) else "other"
)
"""Tells the two types of a union apart: the one with the tag "mapping", and "other"."""


class BudgetForm(Form):
    """Limits on calls; a call beyond them isn't made."""

    makes = Budget

    usd: SkipValidation[float | None] = Field(default=None, description="cost in USD")
    tokens: SkipValidation[int | None] = Field(
        default=None, description="tokens of prompts and answers"
    )
    calls: SkipValidation[int | None] = Field(default=None, description="calls of models")
    seconds: SkipValidation[float | None] = Field(default=None, description="seconds of wall time")
    on_exhausted: SkipValidation[str] = Field(default="raise", description="raise or keep")


class RetryForm(Form):
    """Number of attempts of a call, and the waiting time between them."""

    makes = Retry

    attempts: SkipValidation[int] = Field(
        default=3, description="number of attempts, including the first"
    )
    wait: SkipValidation[float] = Field(
        default=1.0, description="seconds before the second attempt, then doubled"
    )
    longest: SkipValidation[float] = Field(
        default=60.0, description="maximum seconds between two attempts"
    )


class PolicyForm(Form):
    """Retry and timeout of calls."""

    makes = Policy

    retry: Annotated[
        Annotated[RetryForm, Tag("mapping")] | Annotated[SkipValidation[int | None], Tag("other")],
        IS_MAPPING,
    ] = Field(default=None, description="attempts of each call")
    timeout: SkipValidation[float | None] = Field(
        default=None, description="seconds for each attempt"
    )
    accept_truncated: SkipValidation[bool] = Field(
        default=False, description="use truncated answers"
    )


def limits_as_data(value: Budget | Policy | Retry) -> Any:
    """Return the fields that differ from their defaults, as data for the form of the value."""
    if isinstance(value, Retry) and value == Retry(value.attempts):
        return value.attempts
    default = type(value)()
    given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {
        name: limits_as_data(one) if isinstance(one, Budget | Retry) else one
        for name, one in given.items()
        if one != getattr(default, name)
    }


def location_in(data: Any, location: Location, *, missing: bool = False) -> Location:
    """Return the location of a validation error in the data, without pydantic's union tags.

    Args:
        data: The data that was validated.
        location: The location that pydantic reports.
        missing: Whether the last part is the name of a missing field, which is kept.
    """
    found: list[str | int] = []
    for place, part in enumerate(location, start=1):
        is_item = isinstance(data, list) and isinstance(part, int)
        is_there = is_item or (isinstance(data, Mapping) and part in data)
        if is_there:
            data = data[part]
        if is_there or (missing and place == len(location)):
            found.append(part)
    return tuple(found)


def known_names(model: Any, location: Location) -> list[str]:
    """Return the names of the fields at a location that pydantic reports, in order."""
    models = list(models_of(model))
    for part in location:
        inside = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        if inside:
            models = [one for annotation in inside for one in models_of(annotation)]
        elif tagged := [one for one in models if part in _tags(one)]:
            models = tagged
    return list(dict.fromkeys(name for one in models for name in one.model_fields))


def models_of(annotation: Any) -> Iterator[Any]:
    """Yield the models that a type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from models_of(annotation.model_fields["root"].annotation)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from models_of(argument)


def _tags(model: Any) -> set[Any]:
    """Return what distinguishes a model from its alternatives: literals, and its name."""
    fields = model.model_fields.values()
    return {model.__name__, *(tag for field in fields for tag in get_args(field.annotation))}
