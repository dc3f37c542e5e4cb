"""`mergepoint recipe show`: what a recipe does, stage by stage."""

from __future__ import annotations

import json

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
    given = read_knobs(knob)
    planned = plan(wanted, given, library=library)
    knobs = {**wanted.knobs, **given}
    facts = {
        "recipe": wanted.name,
        "about": wanted.about,
        "calls": wanted.calls,
        "paper": wanted.paper,
        "needs": ", ".join(wanted.needs),
    }
    for label, text in facts.items():
        if text:
            put(f"{label:<8}{text}")
    wide = max(map(len, knobs), default=0)
    for number, (name, value) in enumerate(knobs.items()):
        first, *others = _told(value).splitlines() or [""]
        put(f"{'' if number else 'knobs':<8}{name:<{wide}}  {first}")
        for line in others:
            put(f"{'':<{wide + 10}}{line}")
    put("")
    for line in stage_lines(planned):
        put(line)


def _told(value: object) -> str:
    """Give a knob's value: a text as it is, without its blank lines."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return "\n".join(line for line in value.splitlines() if line.strip())
