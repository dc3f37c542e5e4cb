"""Streams of Things: lazy async streams through blocks that are composed by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names
from mergepoint.report.explanation import Explanation
from mergepoint.streams.recipe import (
    RecipeRunner,
    register_recipe_explainer,
    register_recipe_runner,
)

if TYPE_CHECKING:
    from mergepoint.streams.block_context import BlockContext as BlockContext
    from mergepoint.streams.conditions import failed as failed
    from mergepoint.streams.model_calls import ModelAnswer as ModelAnswer
    from mergepoint.streams.params import Params as Params
    from mergepoint.streams.prompting import PromptParams as PromptParams
    from mergepoint.streams.prompting import asked as asked
    from mergepoint.streams.prompting import failing as failing
    from mergepoint.streams.prompting import places as places
    from mergepoint.streams.provenance import add_words as add_words
    from mergepoint.streams.provenance import lineage as lineage
    from mergepoint.streams.recipe import Recipe as Recipe
    from mergepoint.streams.recipe import Stage as Stage
    from mergepoint.streams.recipe_drawing import to_mermaid as to_mermaid
    from mergepoint.streams.recipe_runs import run_recipe as run_recipe
    from mergepoint.streams.recipe_yaml import load_recipe as load_recipe
    from mergepoint.streams.registry import block as block
    from mergepoint.streams.resolved_recipe import plan as plan
    from mergepoint.streams.thing import Thing as Thing

__all__ = [
    "BlockContext",
    "ModelAnswer",
    "Params",
    "PromptParams",
    "Recipe",
    "Stage",
    "Thing",
    "add_words",
    "asked",
    "block",
    "failed",
    "failing",
    "lineage",
    "load_recipe",
    "places",
    "plan",
    "run_recipe",
    "to_mermaid",
]

_HOMES = {
    "mergepoint.streams.conditions": "failed",
    "mergepoint.streams.block_context": "BlockContext",
    "mergepoint.streams.recipe_drawing": "to_mermaid",
    "mergepoint.streams.params": "Params",
    "mergepoint.streams.resolved_recipe": "plan",
    "mergepoint.streams.prompting": "PromptParams asked failing places",
    "mergepoint.streams.model_calls": "ModelAnswer",
    "mergepoint.streams.provenance": "add_words lineage",
    "mergepoint.streams.recipe": "Recipe Stage",
    "mergepoint.streams.recipe_yaml": "load_recipe",
    "mergepoint.streams.registry": "block",
    "mergepoint.streams.recipe_runs": "run_recipe",
    "mergepoint.streams.thing": "Thing",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)


def _runner() -> RecipeRunner:
    # Imported late, because it imports the engine, which most recipes do without.
    from mergepoint.streams import recipe_runs

    return recipe_runs


def _explainer() -> Callable[..., Explanation]:
    # Imported late, because it reads trees, which most recipes do without.
    from mergepoint.streams.recipe_explaining import explain_recipe

    return explain_recipe


register_recipe_runner(_runner)
register_recipe_explainer(_explainer)
