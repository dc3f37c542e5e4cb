"""Found: the recipe that a command names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.errors import CommandError

if TYPE_CHECKING:
    from mergepoint.streams.library import Library
    from mergepoint.streams.recipe import Recipe


def names() -> list[str]:
    """Give the recipes that come along, for the shell's completion."""
    from mergepoint.streams.library import LIBRARY
    from mergepoint.tree.target import recipe_graphs

    return [*LIBRARY.names(), *recipe_graphs()]


RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A recipe's name (see 'mergepoint recipe list'), a YAML file, or graphs/NAME.",
        metavar="RECIPE",
        autocompletion=names,
        show_default=False,
    ),
]
KnobOption = Annotated[
    list[str],
    typer.Option(
        "--knob",
        "-k",
        metavar="NAME=VALUE",
        help="Another value for a knob; JSON, else text. Repeatable.",
        show_default=False,
    ),
]


def found(name: str) -> tuple[Recipe, Library]:
    """Give a recipe, and the library in which the recipes that it names are looked up.

    A file's neighbours are in it too; a folder is the recipe.yaml in it. Raises CommandError for a
    file that is not there, and RecipeError for one that is no recipe, with all that is wrong in it.
    """
    from mergepoint.core.errors import RecipeError
    from mergepoint.streams.library import LIBRARY, Library
    from mergepoint.streams.plan import with_plan
    from mergepoint.streams.recipe_yaml import load_recipe
    from mergepoint.tree.target import RECIPE_FILE, recipe_graphs

    path = Path(name)
    if (path / RECIPE_FILE).is_file():
        path /= RECIPE_FILE
    elif example := recipe_graphs().get(name.rstrip("/")):
        path = example
    if path.suffix not in (".yaml", ".yml"):
        return LIBRARY.find(name), LIBRARY
    if not path.is_file():
        raise CommandError(f"there is no file {name}; 'mergepoint recipe list' tells of recipes")
    library = Library([path.parent])
    try:
        return load_recipe(path), library
    except RecipeError as error:
        raise with_plan(error, library=library) from None


def read_knobs(pairs: Sequence[str]) -> dict[str, Any]:
    """Give the knobs of `name=value` pairs. Raises CommandError for what is no pair."""
    knobs: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise CommandError(f"--knob {pair!r}: write it as name=value")
        try:
            knobs[name] = json.loads(value)
        except ValueError:
            knobs[name] = value
    return knobs
