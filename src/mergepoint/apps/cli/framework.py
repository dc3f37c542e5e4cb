"""The framework of the commands: declared options, help in sections, and errors with exit codes.

An option is a field of a dataclass, from its help to a printed command line. The type and default
of an option are the field's; its names and help are in the field's `Option`. `with_options` gives a
command the options of the dataclasses that its parameters name, and `words` writes the values of a
dataclass as a command line.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from mergepoint.apps.cli.output import (
    DONE,
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    REFUSED,
    Declined,
    EndedRun,
    FailedCommand,
    PipeClosed,
    printable,
    put_json,
    silence,
    tell,
)
from mergepoint.core.errors import MergepointError, own_traceback

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
        unset = default is None or default is False or default == ()  # but 0 is a default
        known = self.default or ("" if unset else str(default))
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

    def to_field(self, *, value: Any) -> Any:
        """Return the option as the field of a dataclass, whose default is the value."""
        return field(default=value, metadata={"option": self})

    def words(self, value: Any) -> Iterator[str]:
        """Yield a value as the words of a command line."""
        name = next(name for name in self.names if name.startswith("--"))
        if isinstance(value, bool):
            yield name.split("/")[0 if value else -1]
            return
        for one in value if isinstance(value, tuple) else (value,):
            yield name
            # Not `:g`, which rounds to six digits: a resumed call would be another one.
            whole = isinstance(one, float) and one.is_integer()
            yield shlex.quote(str(int(one) if whole else one))


def option(*names: str, help: str, **more: Any) -> Option:  # noqa: A002  (typer's word for it)
    """Return an `Option`; the help ends without the default, which is added to it."""
    return Option(names=names, help=help, **more)


def argument(metavar: str, about: str, completion: Callable[..., list[str]] | None = None) -> Any:
    """Return an argument of a command, as typer takes it."""
    return typer.Argument(
        metavar=metavar, help=about, autocompletion=completion, show_default=False
    )


def setting(*names: str, value: Any, help: str, **more: Any) -> Any:  # noqa: A002
    """Return an option as the field of a dataclass, whose default is the value."""
    return option(*names, help=help, **more).to_field(value=value)


TRACEBACK = option("--traceback", help="Show the whole Python traceback of an error.")


@dataclass(frozen=True, slots=True)
class OnlySet:
    """Marks a parameter that takes the options of a dataclass which were set, by name.

    For an option that was not set there is no entry, so that a recorded value stays.
    """

    options: type[OptionGroup]


@cache
def declared(kind: type[OptionGroup]) -> tuple[tuple[Field[Any], Any, Option], ...]:
    """Return the fields of a dataclass that are options, each with its type and `Option`."""
    hints = get_type_hints(kind)
    options = [one for one in fields(kind) if "option" in one.metadata]
    return tuple((one, hints[one.name], one.metadata["option"]) for one in options)


def is_unset(value: Any) -> bool:
    """Return whether a value is the one of an option that was not set and has no default."""
    # Not by truth: 0 and False are values that override recorded ones.
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
            # Eager, so that it works without the required arguments.
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
    marked with `OnlySet` too, and gets a mapping. Tuples are lists for typer.
    """
    hints = get_type_hints(command, include_extras=True)
    shown: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[OptionGroup], bool]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        given = next((mark for mark in marks if isinstance(mark, OnlySet)), None)
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
        for option in added:
            values.pop(option.name, None)
        for name, (kind, only_set) in groups.items():
            taken = {one.name: _frozen(values.pop(one.name)) for one, _, _ in declared(kind)}
            given = {key: value for key, value in taken.items() if not is_unset(value)}
            values[name] = given if only_set else kind(**taken)
        return command(**values)

    # Errors are reported outside the command, so that only few need the option themselves.
    added = (
        [] if "traceback" in hints else [_parameter("traceback", bool, TRACEBACK, default=False)]
    )
    if any(_panel_of(one) not in ("", COMMON) for one in shown):
        added.append(_HELP_ALL)
    shown += added
    # A signature must have its positional parameters first; the sort keeps the order otherwise.
    shown.sort(key=lambda one: one.kind == inspect.Parameter.KEYWORD_ONLY)
    # typer reads both: the signature for the parameters, the annotations for their types.
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


_TYPE = re.compile(r" <[^<>]*>$")

Row = tuple[str, str]


class SectionedCommand(TyperCommand):
    """A command whose help has sections: arguments, common options, and the others on request.

    `--help` fits on a screen: it lists the common options, and names the sections of the others,
    which `--help-all` shows.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of the command's help."""
        whole = bool(ctx.meta.get(HELP_ALL))
        rows: dict[str, list[Row]] = {"Arguments": [], COMMON: []}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is None:
                continue
            if param.param_type_name == "argument":
                # typer writes the type behind the metavar of an argument, as in `TARGET <text>`.
                rows["Arguments"].append((_TYPE.sub("", row[0]), row[1]))
            else:
                rows.setdefault(getattr(param, "rich_help_panel", None) or COMMON, []).append(row)
        for title in ("Arguments", *(PANELS if whole else (COMMON,))):
            _section(formatter, title, rows.get(title, ()))


def _section(formatter: Any, title: str, rows: Iterable[Row]) -> None:
    lines = list(rows)
    if lines:
        with formatter.section(title):
            formatter.write_dl(lines)


class GuardedGroup(TyperGroup):
    """A group of commands that reports errors as one message, without a traceback.

    With `--json`, the message is a JSON object on stdout; with `--traceback`, Python's traceback
    comes first. The help lists the commands in sections, which are their `rich_help_panel`.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  (the signature is typer's)
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002
        **extra: Any,
    ) -> Any:
        """Run the command that the arguments name, and exit with its exit code."""
        arguments = list(sys.argv[1:] if args is None else args)
        options = {"prog_name": prog_name, "complete_var": complete_var, **extra}
        sys.exit(self._code(arguments, options))

    def _code(self, arguments: list[str], options: dict[str, Any]) -> int:
        try:
            # In standalone mode, click would print errors and exit before they can be reported.
            result = super().main(arguments, standalone_mode=False, **options)
        except PipeClosed:
            # The interpreter flushes stdout at exit, and would fail again there.
            silence(sys.stdout)
            return PIPE_CLOSED
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (every error has a message)
            return _report(error, arguments)
        # typer.Exit is not raised here: outside standalone mode, typer returns its code.
        return result if isinstance(result, int) else DONE

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in sections."""
        sections: dict[str, list[Row]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                title = panel if isinstance(panel, str) else "Commands"
                sections.setdefault(title, []).append((name, command.get_short_help_str(66)))
        for title, rows in sections.items():
            _section(formatter, title, rows)


def _report(error: BaseException, arguments: Sequence[str]) -> int:
    """Report an error, and return its exit code."""
    code, facts = _facts(error)
    # Read from the words of the command line: a usage error comes before options have values.
    if "--traceback" in arguments:
        tell_traceback(error, whole=True)
    elif "--json" not in arguments and code in (FAILED, REFUSED):
        tell_traceback(error)
    if "--json" in arguments:
        put_json(facts)
    else:
        head, *rest = _lines(error, facts)
        tell(head, style="yellow" if code == INTERRUPTED else "bold red")
        for line in rest:
            tell(line)
        if facts.get("resume"):
            tell(f"  resume: {facts['resume']}")
    if isinstance(error, EndedRun) and error.dropped:
        # os._exit skips the flush at exit. Stdout was flushed after each write.
        sys.stderr.flush()
        os._exit(code)  # A plain exit would wait for the threads of the calls in progress.
    return code


def tell_traceback(error: BaseException, *, whole: bool = False) -> None:
    """Show where the user's own code raised an error, or the whole traceback of any error."""
    if whole:
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
        return
    for line in own_traceback(error, explained=MergepointError).splitlines():
        tell(line, style="dim")


def _facts(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Return the exit code of an error, and its JSON form."""
    # EndedRun and Declined are MergepointErrors too, so they are tested before that class.
    if isinstance(error, EndedRun):
        facts = {"status": error.status, "type": "", "message": str(error), "path": None}
        return error.code, {**facts, "transcript": None, **error.facts}
    if isinstance(error, Declined | KeyboardInterrupt | typer.Abort):
        message = str(error) or "Nothing more was run."
        return INTERRUPTED, _fact("interrupted", type(error).__name__, message)
    # The module of click's errors varies with the version of typer, so ask for their method.
    if hasattr(error, "format_message"):
        return REFUSED, _fact("refused", "UsageError", _usage(error))
    if isinstance(error, FailedCommand):
        return FAILED, _fact("failed", type(error.__cause__ or error).__name__, str(error))
    if isinstance(error, MergepointError):
        path = getattr(error, "pipeline_path", "") or None
        return REFUSED, _fact("refused", type(error).__name__, str(error), path=path)
    if isinstance(error, OSError):
        problem = error.strerror or str(error)
        problem = f"{error.filename}: {problem}" if error.filename else problem
        return REFUSED, _fact("refused", type(error).__name__, problem)
    return FAILED, _fact("failed", type(error).__name__, str(error))


def _fact(status: str, kind: str, message: str, *, path: str | None = None) -> dict[str, Any]:
    return {"status": status, "type": kind, "message": message, "path": path, "transcript": None}


def _lines(error: BaseException, facts: dict[str, Any]) -> list[str]:
    message = facts["message"]
    if isinstance(error, EndedRun):
        return [*error.head.splitlines(), *error.details]
    if facts["status"] == "failed" and not isinstance(error, FailedCommand):
        return [
            f"error: {facts['type']}: {message}",
            "  This is a bug in mergepoint. --traceback shows where it comes from.",
        ]
    label = "interrupted" if facts["status"] == "interrupted" else "error"
    return f"{label}: {message}".splitlines()


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    hint = f"; see '{context.command_path} --help'" if context is not None else ""
    message = str(error.format_message()).replace("Value error, ", "")
    return message.rstrip(".") + hint
