"""`mergepoint recipe show`: what a recipe does, stage by stage."""

from __future__ import annotations

from mergepoint.apps.cli.options import TracebackOption
from mergepoint.apps.cli.recipe.found import KnobOption, RecipeArgument

EXAMPLES = ("mergepoint recipe show best_of_n", "mergepoint recipe show best_of_n -k n=8")


def show(
    recipe: RecipeArgument,
    *,
    knob: KnobOption = [],  # noqa: B006  (typer makes a new list for each call)
    traceback: TracebackOption = False,
) -> None:
    """Show what a recipe is for, its knobs, and every stage with its params. Nothing is run."""
    from mergepoint.apps.cli.output import put
    from mergepoint.apps.cli.recipe.found import found, read_knobs
    from mergepoint.streams.drawn import stage_lines
    from mergepoint.streams.plan import plan

    wanted, library = found(recipe)
    planned = plan(wanted, read_knobs(knob), library=library)
    facts = {
        "recipe": wanted.name,
        "about": wanted.about,
        "calls": wanted.calls,
        "paper": wanted.paper,
        "knobs": ", ".join(f"{name}={value!r}" for name, value in wanted.knobs.items()),
        "needs": ", ".join(wanted.needs),
    }
    for label, text in facts.items():
        if text:
            put(f"{label:<8}{text}")
    put("")
    for line in stage_lines(planned):
        put(line)
