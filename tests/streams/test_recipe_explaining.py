"""Explanations of recipes: ranges that hold what runs do."""

from __future__ import annotations

import pytest

import mergepoint
from mergepoint import Block, Call, Recipe, Stage, Step, explain
from mergepoint.core.errors import MergepointError, RecipeError
from mergepoint.streams.recipe_yaml import LIBRARY

ITEM = "Write a title for a poster of a night market by the harbour."


@pytest.mark.parametrize("name", LIBRARY.names())
def test_the_calls_of_a_run_are_within_the_range(name: str) -> None:
    """Every recipe of the library makes as many calls as its explanation says."""
    recipe = LIBRARY.find(name)
    least, most = explain(recipe, model="offline").calls
    try:
        result = mergepoint.run(recipe, ITEM, model="offline")
    except MergepointError as error:
        pytest.skip(f"needs more than a text: {error}")
    assert least <= result.usage.calls
    assert most is None or result.usage.calls <= most


def test_stages_of_a_recipe_are_steps() -> None:
    """Each stage has its calls and a cost; items multiply them."""
    recipe = LIBRARY.find("best_of_n")
    explained = explain(recipe, model="openai:gpt-5-mini", knobs={"n": 8}, items=3)
    assert [one.calls for one in explained.steps] == [(3, 24), (0, 24), (0, 0)]
    assert explained.calls == (3, 48)
    assert explained.cost is not None
    assert 0 < explained.cost[0] < (explained.cost[1] or 0)
    with pytest.raises(RecipeError, match="nothing"):
        explain(recipe, knobs={"nothing": 1})


def test_steps_of_a_pipeline_are_explained() -> None:
    """A tree in a stage is explained step by step, below the stage."""
    tree = Block([Step("Draft.", name="draft"), Step("Revise.", name="revise")], name="t")
    recipe = Recipe("titles", (Stage("pipeline", params={"tree": tree}),))
    explained = explain(recipe, model="openai:gpt-5-mini", items=2)
    assert explained.calls == (4, 4)
    paths = [one.path.rpartition("pipeline")[2] for one in explained.steps]
    assert paths == ["", "/t/draft", "/t/revise"]
    assert [one.origin for one in explained.steps[2].sees] == ["call", "call", "prompt"]


def test_a_recipe_in_a_tree_counts() -> None:
    """A Call of a recipe adds the calls of the recipe to the range of the tree."""
    recipe = LIBRARY.find("best_of_n")
    tree = Block([Step("Draft.", name="draft"), Call(recipe, name="best")], name="t")
    assert explain(tree, model="offline").calls == (1, 9)


def test_a_limit_on_calls_bounds_a_search() -> None:
    """What a search does isn't known, but the recipe's limit on calls is."""
    least, most = explain(LIBRARY.find("tree_of_thoughts"), model="offline").calls
    assert (least, most) == (0, 1_000)
