"""The recipes that come along: each runs without a key, and makes the calls that it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import LIBRARY, recipe_from_yaml, recipe_to_yaml
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.thing import Thing

ITEM = "A title for a poster of a night market by the harbour."

OF_THE_FIELD = (
    *("self_consistency", "best_of_n", "adaptive_consistency", "early_stopping_sc"),
    *("universal_sc", "self_refine", "reflexion", "tree_of_thoughts", "graph_of_thoughts"),
    *("multi_agent_debate", "mixture_of_agents", "chain_of_verification", "least_to_most"),
    *("plan_and_solve", "step_back", "skeleton_of_thought", "self_discover", "pairwise_rank"),
    *("knockout", "ab_mcts", "lats", "evolve", "self_ask", "critic_with_tools"),
)

COUNTED: Mapping[str, int] = {
    "adaptive_consistency": 4,
    "ask_rounds": 3,
    "critic_with_tools": 2,
    "debate_rounds": 2,
    "early_stopping_sc": 5,
    "refine_rounds": 1,
    "reflexion": 5,
    "retry_until_verified": 2,
    "self_ask": 4,
    "self_refine": 4,
    "tool_rounds": 1,
    "ab_mcts": 4,
    "evolve": 10,
    "lats": 8,
}
"""Calls of recipes that end by what they find, on the offline model."""


def things_for(name: str) -> list[Thing]:
    """Return an item with the props that a recipe needs."""
    return [Thing(ITEM, dict.fromkeys(LIBRARY.find(name).needs, ITEM))]


def test_the_recipes_of_the_field_are_here() -> None:
    """All of the list, each with what it is for, its paper, and how many calls it makes."""
    assert set(OF_THE_FIELD) <= set(LIBRARY.names())
    assert len(OF_THE_FIELD) == 24
    for name in LIBRARY.names():
        recipe = LIBRARY.find(name)
        assert recipe.about.endswith("."), name
        assert recipe.calls, name
        assert name not in OF_THE_FIELD or recipe.paper.startswith("https://"), name


@pytest.mark.parametrize("name", LIBRARY.names())
def test_a_recipe_runs_and_makes_as_many_calls_as_it_says(name: str) -> None:
    """Something comes out that has not failed, by calls of the formula, at any concurrency."""
    recipe = LIBRARY.find(name)
    other = replace(recipe, concurrency=16 if recipe.concurrency == 1 else 1)
    done, again = (
        run_recipe(one, things_for(name), model="offline", runs=None) for one in (recipe, other)
    )
    assert done.things == again.things
    assert done.things
    assert all(str(one.content).strip() for one in done.things)
    assert all(one.props.get("status") not in ("failed", "stuck") for one in done.things)
    assert done.stopped == "done"
    knobs = {key: value for key, value in recipe.knobs.items() if isinstance(value, int)}
    known = {**knobs, "parts": 3, "points": 3}
    if name in COUNTED:
        assert done.usage.calls == COUNTED[name]
    else:
        assert done.usage.calls == eval(recipe.calls, {"__builtins__": {}}, known)  # noqa: S307


@pytest.mark.parametrize("name", LIBRARY.names())
def test_a_recipe_is_the_same_written_anew(name: str) -> None:
    """From its own text an equal one is read, and it plans to the same stages."""
    recipe = LIBRARY.find(name)
    again = recipe_from_yaml(recipe_to_yaml(recipe))
    assert again == recipe
    stages = [one.stage_id for one in plan(again).walk()]
    assert stages == [one.stage_id for one in plan(recipe).walk()]


def test_a_debate_is_over_before_the_last_begins() -> None:
    """Of twelve questions one is wanted: at most four are debated, which are those at once."""
    done = run_recipe(
        "multi_agent_debate", list("abcdefghijkl"), model="offline", runs=None, wanted=1
    )
    assert (len(done.things), done.usage.calls <= 4 * 9) == (1, True)
    more = run_recipe("multi_agent_debate", ["a"], model="offline", runs=None, knobs={"rounds": 4})
    assert more.usage.calls == 3 + 4 * 3
