"""Arguments: what the commands name by position, with their help."""

from __future__ import annotations

from typing import Annotated

import typer

from mergepoint.apps.cli.complete import graphs, journals, runs

TargetArgument = Annotated[
    str,
    typer.Argument(
        help="A graph's name (see 'mergepoint list'), file.py:object, or a YAML tree.",
        metavar="TARGET",
        autocompletion=graphs,
        show_default=False,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        help="A run's id, 'last', a run's folder, or a transcript file.",
        metavar="RUN",
        autocompletion=runs,
        show_default=False,
    ),
]
JournalArgument = Annotated[
    str,
    typer.Argument(
        help="A run's id, 'last', or a run's folder.",
        metavar="RUN",
        autocompletion=journals,
        show_default=False,
    ),
]
