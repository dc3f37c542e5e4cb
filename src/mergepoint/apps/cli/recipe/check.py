"""`mergepoint recipe check`: everything that is wrong with recipes."""

from __future__ import annotations

from typing import Annotated

import typer

from mergepoint.apps.cli.errors import WRONG
from mergepoint.apps.cli.options import TracebackOption

EXAMPLES = ("mergepoint recipe check my.yaml", "mergepoint recipe check recipes/*.yaml")


def check(
    recipes: Annotated[
        list[str],
        typer.Argument(help="Names, or YAML files.", metavar="RECIPE", show_default=False),
    ],
    *,
    traceback: TracebackOption = False,
) -> None:
    """Say what is wrong with recipes, with file and line, all at once; nothing is run."""
    from mergepoint.apps.cli.output import put, tell
    from mergepoint.apps.cli.recipe.found import found
    from mergepoint.core.errors import RecipeError
    from mergepoint.streams.plan import plan

    wrong = False
    for name in recipes:
        try:
            wanted, library = found(name)
            planned = plan(wanted, library=library)
        except RecipeError as error:
            wrong = True
            tell(str(error))
            continue
        put(f"{name}: {sum(1 for _ in planned.blocks())} stages, nothing wrong")
    if wrong:
        raise typer.Exit(WRONG)
