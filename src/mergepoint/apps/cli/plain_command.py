"""PlainCommand: a command whose help says what goes where, and nothing of types."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_TYPE = re.compile(r" <[^<>]*>$")


class PlainCommand(TyperCommand):
    """A command; typer writes a type behind each argument's name, which this leaves out."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what the command takes: arguments, then options."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
                rows[param.param_type_name].append(row)
        told = [(_TYPE.sub("", name), text) for name, text in rows["argument"]]
        for title, lines in (("Arguments", told), ("Options", rows["option"])):
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
