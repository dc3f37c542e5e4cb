"""Recipe reference: the part of a page that tells what recipes there are, from the library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mergepoint.streams.library import LIBRARY, Library
from mergepoint.streams.plan import plan
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.sealed import plain

TITLE: Final = "## Recipes that come along"

_WIDE = 70  # of a knob's default; longer ones are in the file


def recipe_reference(library: Library = LIBRARY) -> str:
    """Give the reference of all recipes as Markdown: what for, paper, blocks, calls, knobs.

    Raises RecipeError for recipes that cannot be planned.
    """
    parts = [part for name in library.names() for part in _recipe(library.find(name), library)]
    return "\n\n".join([TITLE, *parts]) + "\n"


def _recipe(recipe: Recipe, library: Library) -> Iterator[str]:
    yield f"### {recipe.name}"
    paper = f" ([paper]({recipe.paper}))" if recipe.paper else ""
    yield f"{recipe.about}{paper}"
    told = [f"Calls: `{recipe.calls}`."]
    if recipe.needs:
        told.append(f"Its items bring {', '.join(f'`{name}`' for name in recipe.needs)}.")
    yield f"{' '.join(told)} Stages: {_row(plan(recipe, library=library))}"
    if recipe.knobs:
        yield "\n".join(["| knob | default |", "|---|---|", *_knobs(plain(recipe.knobs))])


def _row(planned: PlannedRecipe) -> str:
    round_ = ", and round again" if planned.recipe.recurrent else ""
    return f"{', '.join(map(_stage, planned.stages))}{round_}."


def _stage(stage: PlannedStage | PlannedRecipe) -> str:
    if isinstance(stage, PlannedRecipe):
        return f"`{stage.recipe.name}`"
    only = " for some" if stage.where is not None else ""
    inside = "; ".join(
        f"{one.recipe.name}: {', '.join(map(_stage, one.stages))}" for one in stage.inside
    )
    return f"`{stage.kind.name}`{only}{f' ({inside})' if inside else ''}"


def _knobs(knobs: Mapping[str, Any]) -> Iterator[str]:
    for name, value in knobs.items():
        text = json.dumps(value, ensure_ascii=False).replace("|", "\\|")
        yield f"| `{name}` | `{text if len(text) <= _WIDE else f'{text[: _WIDE - 3]}...'}` |"
