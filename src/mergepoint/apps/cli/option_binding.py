"""Declaring options: an option is a field of a dataclass, from its help to a printed command line.

The type and default of an option are the field's; its names and help are in the field's `Option`.
`with_options` gives a command the options of the dataclasses that its parameters name, and `words`
writes the values of a dataclass as a command line.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

import typer

# The sections of a command's help, in this order. Those after COMMON are in --help-all only.
COMMON = "Options"
MODEL = "Model options"
TREE = "Options for trees"
RECIPE = "Options for recipes"
SAVING = "Options for saving and reusing runs"
AGENT = "Agent options"
SERVER = "Server options"
PANELS = (COMMON, MODEL, TREE, RECIPE, SAVING, AGENT, SERVER)
HELP_ALL = "--help-all"


class OptionGroup(Protocol):
    """A dataclass whose fields are options."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Names and help of an option, next to its type.

    `default` describes a default that the field itself can't show. An option with `only` is for
    one kind of workflow and refused with the other. `stated` options are always part of a printed
    resume command, so that it shows the model and the limits.
    """

    names: tuple[str, ...]
    help: str
    panel: str = COMMON
    metavar: str | None = None
    default: str = ""
    min: int | None = None
    max: int | None = None
    only: Literal["", "tree", "recipe"] = ""
    stated: bool = False
    completion: Callable[..., list[str]] | None = None

    def to_typer(self, default: Any, *, repeatable: bool, shows_default: bool) -> Any:
        """Return the option as typer takes it, with its default and "Repeatable." in the help."""
        known = self.default or ("" if default in (None, False, ()) else str(default))
        parts = [self.help, f"Default: {known}." if known and shows_default else ""]
        parts.append("Repeatable." if repeatable else "")
        return typer.Option(
            *self.names,
            help=" ".join(filter(None, parts)),
            metavar=self.metavar,
            min=self.min,
            max=self.max,
            show_default=False,
            autocompletion=self.completion,
            rich_help_panel=self.panel,
        )

    def words(self, value: Any) -> Iterator[str]:
        """Yield a value as the words of a command line."""
        name = next(name for name in self.names if name.startswith("--"))
        if isinstance(value, bool):
            yield name.split("/")[0 if value else -1]
            return
        for one in value if isinstance(value, tuple) else (value,):
            yield name
            yield shlex.quote(f"{one:g}" if isinstance(one, float) else str(one))


def option(*names: str, help: str, **more: Any) -> Option:  # noqa: A002  (typer's word for it)
    """Return an `Option`; the help ends without the default, which is added to it."""
    return Option(names=names, help=help, **more)


@dataclass(frozen=True, slots=True)
class Given:
    """Marks a parameter that takes the options of a dataclass which were set, by name.

    For an option that was not set there is no entry, so that a recorded value stays.
    """

    options: type[OptionGroup]


@cache
def declared(kind: type[OptionGroup]) -> tuple[tuple[Field[Any], Any, Option], ...]:
    """Return the fields of a dataclass that are options, each with its type and `Option`."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for one in fields(kind):
        annotated = get_args(hints[one.name])
        if get_origin(hints[one.name]) is Annotated and isinstance(annotated[1], Option):
            found.append((one, annotated[0], annotated[1]))
    return tuple(found)


def is_unset(value: Any) -> bool:
    """Return whether a value is the one of an option that was not set and has no default."""
    return value is None or value in ((), [])


def words(options: OptionGroup, names: Iterable[str] | None = None) -> Iterator[str]:
    """Yield options as the words of a command line, quoted for a shell.

    Args:
        options: A dataclass of options.
        names: The fields to write, also where they have their defaults. Default: the others.
    """
    chosen = None if names is None else frozenset(names)
    for one, _, known in declared(type(options)):
        value = getattr(options, one.name)
        is_chosen = value != one.default if chosen is None else one.name in chosen
        if is_chosen and value not in (None, ()):
            yield from known.words(value)


def names_for(kind: str, *groups: OptionGroup) -> list[str]:
    """Return the options that are set although they are not for this kind of workflow."""
    return [
        known.names[0]
        for group in groups
        for one, _, known in declared(type(group))
        if known.only not in ("", kind) and getattr(group, one.name) != one.default
    ]


def _show_all(ctx: typer.Context, wanted: bool) -> None:  # noqa: FBT001  (typer calls it)
    if wanted and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            HELP_ALL,
            is_eager=True,
            callback=_show_all,
            help="Show all options and exit.",
            show_default=False,
        ),
    ],
)


def _panel_of(parameter: inspect.Parameter) -> str:
    return next(
        (getattr(one, "rich_help_panel", None) or "" for one in get_args(parameter.annotation)[1:]),
        "",
    )


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command as typer takes it: a parameter for each option.

    A parameter whose type is a dataclass of options becomes an option for each field; one that is
    marked with `Given` too, and gets a mapping. Tuples are lists for typer.
    """
    hints = get_type_hints(command, include_extras=True)
    shown: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[OptionGroup], bool]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        given = next((mark for mark in marks if isinstance(mark, Given)), None)
        if given is not None:
            groups[name] = (given.options, True)
            shown += _parameters(given.options, keeps=False)
        elif isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
            groups[name] = (hint, False)
            shown += _parameters(hint, keeps=True)
        elif marks and isinstance(marks[0], Option):
            shown.append(_parameter(name, get_args(hint)[0], marks[0], parameter.default))
        else:
            shown.append(parameter.replace(annotation=hint))

    @functools.wraps(command)
    def call(**values: Any) -> Any:
        values.pop(_HELP_ALL.name, None)
        for name, (kind, only_given) in groups.items():
            taken = {one.name: _frozen(values.pop(one.name)) for one, _, _ in declared(kind)}
            given = {key: value for key, value in taken.items() if not is_unset(value)}
            values[name] = given if only_given else kind(**taken)
        return command(**values)

    if any(_panel_of(one) not in ("", COMMON) for one in shown):
        shown.append(_HELP_ALL)
    shown.sort(key=lambda one: one.kind == inspect.Parameter.KEYWORD_ONLY)
    vars(call)["__signature__"] = inspect.Signature(shown)
    call.__annotations__ = {one.name: one.annotation for one in shown}
    return call


def _parameters(kind: type[OptionGroup], *, keeps: bool) -> Iterator[inspect.Parameter]:
    for one, hint, known in declared(kind):
        default = one.default if one.default is not MISSING else inspect.Parameter.empty
        yield _parameter(one.name, hint, known, default, keeps=keeps)


def _parameter(
    name: str, hint: Any, known: Option, default: Any, *, keeps: bool = True
) -> inspect.Parameter:
    """Return an option as a parameter; one that does not keep its default has None, or no items."""
    repeatable = get_origin(hint) is list or get_args(hint)[-1:] == (...,)
    info = known.to_typer(default, repeatable=repeatable, shows_default=keeps)
    if repeatable:
        hint, default = list[get_args(hint)[0]], []  # type: ignore[misc]
    elif not keeps:
        hint, default = hint | None, None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info]
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
