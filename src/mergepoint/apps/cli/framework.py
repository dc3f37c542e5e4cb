"""The framework of the commands: help in sections, and errors as one message with an exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from mergepoint.apps.cli.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    REFUSED,
    Declined,
    EndedRun,
    PipeClosed,
)
from mergepoint.apps.cli.option_binding import COMMON, HELP_ALL, PANELS
from mergepoint.apps.cli.output import printable, put_json, silence, tell
from mergepoint.core.errors import MergepointError
from mergepoint.core.tracebacks import own_traceback

_TYPE = re.compile(r" <[^<>]*>$")

Row = tuple[str, str]


class SectionedCommand(TyperCommand):
    """A command whose help has sections: arguments, common options, and the others on request.

    `--help` fits on a screen: it lists the common options, and names the sections of the others,
    which `--help-all` shows.
    """

    def _panels(self) -> list[str]:
        """Return the sections that only `--help-all` shows."""
        used = {getattr(param, "rich_help_panel", None) for param in self.params}
        return [panel for panel in PANELS if panel in used and panel != COMMON]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of the command's help."""
        whole = bool(ctx.meta.get(HELP_ALL))
        rows: dict[str, list[Row]] = {"Arguments": [], COMMON: []}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is None:
                continue
            if param.param_type_name == "argument":
                rows["Arguments"].append((_TYPE.sub("", row[0]), row[1]))
            else:
                rows.setdefault(getattr(param, "rich_help_panel", None) or COMMON, []).append(row)
        for title in ("Arguments", COMMON, *(self._panels() if whole else ())):
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
            result = super().main(arguments, standalone_mode=False, **options)
        except PipeClosed:
            silence(sys.stdout)
            return PIPE_CLOSED
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (every error has a message)
            return _report(error, arguments)
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
    if isinstance(error, EndedRun):
        facts = {"status": error.status, "type": "", "message": str(error), "path": None}
        return error.code, {**facts, "transcript": None, **error.facts}
    if isinstance(error, Declined | KeyboardInterrupt | typer.Abort):
        message = str(error) or "Nothing more was run."
        return INTERRUPTED, _fact("interrupted", type(error).__name__, message)
    # The module of click's errors varies with the version of typer, so ask for their method.
    if hasattr(error, "format_message"):
        return REFUSED, _fact("refused", "UsageError", _usage(error))
    if isinstance(error, MergepointError):
        path = getattr(error, "pipeline_path", "") or None
        return REFUSED, _fact("refused", type(error).__name__, str(error), path=path)
    if isinstance(error, OSError):
        return REFUSED, _fact("refused", type(error).__name__, _os_problem(error))
    return FAILED, _fact("failed", type(error).__name__, str(error))


def _fact(status: str, kind: str, message: str, *, path: str | None = None) -> dict[str, Any]:
    return {"status": status, "type": kind, "message": message, "path": path, "transcript": None}


def _lines(error: BaseException, facts: dict[str, Any]) -> list[str]:
    message = facts["message"]
    if isinstance(error, EndedRun):
        return [*error.head.splitlines(), *error.details]
    if facts["status"] == "failed":
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


def _os_problem(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what
