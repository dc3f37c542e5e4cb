"""`mergepoint recipe draw`: a recipe as a drawing."""

from __future__ import annotations

from mergepoint.apps.cli.options import TracebackOption
from mergepoint.apps.cli.recipe.found import RecipeArgument

EXAMPLES = ("mergepoint recipe draw self_refine", "mergepoint recipe draw my.yaml > my.mmd")


def draw(recipe: RecipeArgument, *, traceback: TracebackOption = False) -> None:
    """Draw a recipe as Mermaid text, the recipes inside of it too. Nothing is run."""
    from mergepoint.apps.cli.output import put
    from mergepoint.apps.cli.recipe.found import found
    from mergepoint.streams.drawn import to_mermaid
    from mergepoint.streams.plan import plan

    wanted, library = found(recipe)
    put(to_mermaid(plan(wanted, library=library)).rstrip("\n"))
