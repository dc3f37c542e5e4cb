"""plan: find and check everything that a recipe names, before anything of it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.core.errors import RecipeError
from mergepoint.streams.form_error import FormError
from mergepoint.streams.library import LIBRARY, Library
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.planning import Handed, Planning
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.registry import REGISTRY, Registry


def plan(
    recipe: Recipe | str,
    knobs: Mapping[str, Any] | None = None,
    *,
    registry: Registry = REGISTRY,
    library: Library = LIBRARY,
    at: str | None = None,
    model: str | BaseChatModel | None = None,
) -> PlannedRecipe:
    """Give a recipe with its knobs turned and every stage of it found and checked.

    `recipe` is one, or its name in the library. A stage's type is a block of the registry, else a
    recipe of the library. `at` begins its stage ids, by default its name; `model` is for stages
    that name none.

    Raises RecipeError that lists every fault with its stage, and file and line where there are
    any, in the order of the file: unknown types, params and knobs, values that do not fit, props
    that a stage needs and nothing before it adds, a recipe that comes to hold itself; and what is
    wrong with the form of the files of recipes that are looked up.
    """
    planning = Planning(registry, library)
    if isinstance(recipe, str):
        try:
            recipe = library.find(recipe)
        except FormError as error:
            raise with_plan(error, knobs, registry=registry, library=library) from None
    return planning.whole(recipe, knobs or {}, at or recipe.name, Handed(model))


def with_plan(
    error: RecipeError,
    knobs: Mapping[str, Any] | None = None,
    *,
    registry: Registry = REGISTRY,
    library: Library = LIBRARY,
) -> RecipeError:
    """Give the error of a recipe's file with what else is wrong with its plan, as far as is known.

    An error that is not of the file's form, or leaves nothing to plan, is given as it is.
    """
    if not isinstance(error, FormError) or error.draft is None:
        return error
    planning = Planning(registry, library)
    planning.faults.take(error)
    try:
        planning.whole(error.draft, knobs or {}, error.draft.name, Handed())
    except RecipeError as more:
        return more
    return error
