"""How the calls of a stage are made: tried again, timed, within the stage's own policy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mergepoint import CallTimeout, Policy, Retry
from mergepoint.core.errors import RecipeError
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import arun_recipe, run_recipe
from mergepoint.streams.recipe_yaml import recipe_from_yaml, recipe_to_yaml
from mergepoint.streams.resolved_recipe import plan
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import FakeClock

SAY = {"prompt": "Say {{ content }}"}


def recipe(policy: Any = None) -> Recipe:
    """Return a recipe of one stage that asks."""
    return Recipe("one", (Stage("generate", params=SAY, policy=policy),))


def test_a_failed_call_is_tried_again() -> None:
    """As often as the policy of the stage says, with its waits; the Thing has the answer."""
    model = ScriptedModel([ConnectionError("down"), ConnectionError("down"), "yes"])
    with FakeClock() as clock:
        done = run_recipe(
            recipe({"retry": {"attempts": 3, "wait": 2}}), ["a"], model=model, runs=None
        )
    assert (done.things[0].content, clock.waits) == ("yes", [2, 4])


def test_without_a_policy_a_call_is_tried_once() -> None:
    """As a step without one is."""
    model = ScriptedModel([ConnectionError("down"), "yes"])
    with pytest.raises(ConnectionError, match="down"):
        run_recipe(recipe(), ["a"], model=model, runs=None)
    assert len(model.calls) == 1


def test_a_late_answer_is_a_timeout() -> None:
    """Each attempt has the seconds of the policy."""
    model = ScriptedModel([Answer("late", delay=30)])
    with pytest.raises(CallTimeout):
        run_recipe(recipe(Policy(timeout=0.01)), ["a"], model=model, runs=None)


def test_a_recipe_hands_its_policy_to_its_stages() -> None:
    """Those that have one of their own keep it."""
    inner = Recipe("inner", (Stage("critique"), Stage("critique", policy={"retry": 9})))
    outer = Recipe("outer", (Stage(inner, policy={"retry": 2, "timeout": 5}), Stage("critique")))
    assert [stage.policy for stage in plan(outer).blocks()] == [
        Policy(retry=2, timeout=5),
        Policy(retry=9),
        Policy(),
    ]


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"retry": 0}, "retry is a Retry or a number of attempts, at least 1, not 0"),
        ({"retri": 2}, r"policy has no 'retri' \(did you mean 'retry'\?\)"),
        ({"timeout": -1}, "timeout is a number of seconds above 0, not -1"),
        ({"budget": {"calls": 2}}, "a stage has its own field for the budget"),
        (3, "policy is a Policy or a mapping of its fields, not 3"),
    ],
)
def test_a_policy_that_is_none_is_told(policy: Any, problem: str) -> None:
    """When the stage is made."""
    with pytest.raises(RecipeError, match=problem):
        recipe(policy)


def test_a_policy_in_a_file_has_its_line() -> None:
    """Faults are told with the line; what is written is read again."""
    text = "name: one\nstages:\n  - type: critique\n    policy: {retry: 0}\n"
    with pytest.raises(RecipeError, match=r"<text>:4: .*retry is a Retry or a number"):
        recipe_from_yaml(text)
    with pytest.raises(RecipeError, match=r"<text>:4: stages\.0\.policy\.retri: no such param"):
        recipe_from_yaml(text.replace("retry: 0", "retri: 2"))
    for policy in ({"retry": 3}, {"retry": Retry(3, wait=0.5), "timeout": 9}, {"timeout": 2.5}):
        made = recipe(policy)
        assert recipe_from_yaml(recipe_to_yaml(made)) == made


def test_waits_do_not_hold_up_others() -> None:
    """Things side by side go on while one waits for its next attempt."""

    async def run() -> Any:
        answers: list[Any] = [ConnectionError("down"), "b", "a"]
        wide = Recipe("one", recipe({"retry": 2}).stages, concurrency=2)
        with FakeClock():
            return await arun_recipe(wide, ["a", "b"], model=ScriptedModel(answers), runs=None)

    assert [thing.content for thing in asyncio.run(run()).things] == ["a", "b"]
