"""What the terminal and the page let one say about the agent, in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SkillsOption = Annotated[
    list[Path],
    typer.Option(
        metavar="DIR",
        help="A folder of skills, in place of those that come along. Repeatable.",
        show_default=False,
    ),
]

FilesOption = Annotated[
    list[Path],
    typer.Option(help="A file that programs may read. Repeatable.", show_default=False),
]

RunnerOption = Annotated[
    str | None,
    typer.Option(help="What runs programs: bubblewrap, monty, ...", show_default="what is safe"),
]
