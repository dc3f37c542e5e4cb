"""What the terminal and the page let one say about the agent, in the same words."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Ask(StrEnum):
    """What waits for a person."""

    EVERYTHING = "everything"
    PLANS = "plans"
    PROGRAMS = "programs"
    NOTHING = "nothing"


class Runner(StrEnum):
    """What runs programs, by the names that `code_runner` knows."""

    BUBBLEWRAP = "bubblewrap"
    MONTY = "monty"
    UNSAFE_SUBPROCESS = "unsafe_subprocess"


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
    typer.Option(
        metavar="FILE", help="A file that programs may read. Repeatable.", show_default=False
    ),
]

AskOption = Annotated[Ask, typer.Option(help="What waits for you before it goes on.")]

RunnerOption = Annotated[
    Runner | None,
    typer.Option(
        help="What runs programs; 'unsafe_subprocess' confines nothing.",
        show_default="what is safe",
    ),
]
