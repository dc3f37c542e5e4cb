"""Conditional stages: what a condition does not hold for passes by, unchanged, in order, lazily."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepoint.core.errors import BlockError, RecipeError
from mergepoint.streams.executor import RecipeExecutor
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.model_calls import ModelAnswer, ModelRequest
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_drawing import stage_lines
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import recipe_from_yaml, recipe_to_yaml
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import Source
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.simulated_time import simulate

TOLD = Stage("apply", params={"prompt": "Say {{ content }}"}, where={"x": 1})
VOTED = Stage("vote", params={"per": "all"}, where={"x": 1})
GROUPED = Stage("accumulate", params={"count": 2}, where={"x": 1})
SEVERAL = Stage("generate", params={"n": 2}, where={"x": 1})
ALONE = Stage(
    Recipe("inner", (Stage("generate", params={"n": 2}), Stage("vote")), each=True, concurrency=4),
    where={"x": 1},
)
ROUND = Stage(
    Recipe("again", (Stage("apply", params={"prompt": "{{ content }}!"}),), recurrent=True),
    where={"x": 1},
)
STAGES = (TOLD, VOTED, GROUPED, SEVERAL, ALONE, ROUND)


async def slowly(ask: ModelRequest) -> ModelAnswer:
    """Answer after as long as the Thing's id says, so that later ones are often first."""
    await asyncio.sleep(crc32(ask.thing_id.encode()) % 7 / 10)
    return ModelAnswer(text=f"to {ask.prompt}", call=f"{ask.thing_id}/{ask.number}")


def work(recipe: Recipe) -> RecipeExecutor:
    """Return a recipe at work."""
    return RecipeExecutor(plan(recipe), lambda _: slowly, clock=lambda: 0.0)


def made(stages: tuple[Stage, ...], marks: list[int], *, width: int, seed: int = 0) -> list[Thing]:
    """Run stages on items with the prop x, in virtual time."""
    recipe = Recipe("r", stages, concurrency=width, needs=("x",), rails={"max_iterations": 2})

    async def all_of_it() -> list[Thing]:
        source = Source([Thing(str(number), {"x": x}) for number, x in enumerate(marks)])
        async with aclosing(work(recipe).stream(source)) as stream:
            found = [thing async for thing in stream]
        assert source.closed
        assert len(asyncio.all_tasks()) == 1
        return found

    return simulate(all_of_it, seed=seed)


@settings(max_examples=60, deadline=None)
@given(
    stages=st.lists(st.sampled_from(STAGES), min_size=1, max_size=3),
    marks=st.lists(st.integers(0, 1), max_size=8),
    seed=st.integers(0, 99),
)
def test_what_passes_by_does_not_depend_on_concurrency(
    stages: list[Stage], marks: list[int], seed: int
) -> None:
    """The same Things come in the same order at concurrency 1 and 16; the others are unchanged."""
    one = made(tuple(stages), marks, width=1)
    many = made(tuple(stages), marks, width=16, seed=seed)
    assert one == many
    others = [thing for thing in one if thing.props.get("x") == 0]
    assert [thing.content for thing in others] == [str(n) for n, x in enumerate(marks) if x == 0]
    assert all(len(thing.history) == 1 for thing in others)


def test_what_passes_by_keeps_its_place() -> None:
    """A stage that takes Things one by one leaves all of them in the order in which they came."""
    things = made((TOLD,), [0, 1, 0, 0, 1], width=16)
    assert [thing.id for thing in things] == ["0", "1", "2", "3", "4"]
    assert [thing.content for thing in things] == ["0", "to Say 1", "2", "3", "to Say 4"]
    children = made((SEVERAL,), [0, 1, 0], width=16)
    assert [thing.id for thing in children] == ["0", "1.0", "1.1", "2"]


def test_what_passes_a_vote_by_waits_for_what_came_before() -> None:
    """A group leaves where its last member stood; what came later comes later."""
    groups = made((GROUPED,), [0, 1, 0, 1, 0, 1, 0], width=1)
    assert [thing.id for thing in groups] == ["0", "1", "2", "3", "4", "5", "6"]
    voted = made((VOTED,), [0, 1, 0, 1, 0], width=1)
    assert [thing.id for thing in voted] == ["0", "2", "r.stage_1.vote#0", "4"]


@pytest.mark.parametrize(("width", "most"), [(1, 2), (4, 6)])
def test_passing_by_is_lazy(width: int, most: int) -> None:
    """Two wanted of ten that pass by: two are pulled one by one, a window more side by side."""
    source = Source([Thing(str(number), {"x": 0}) for number in range(10)])

    async def two() -> int:
        recipe = Recipe("r", (TOLD,), concurrency=width, needs=("x",))
        async with aclosing(work(recipe).stream(source)) as stream:
            await anext(stream)
            await anext(stream)
        return len(asyncio.all_tasks())

    assert simulate(two) == 1
    assert source.closed
    assert 2 <= source.pulled <= most


def test_a_stage_that_ends_early_ends_nothing_beside_it() -> None:
    """What a select takes no more of is gone; those that pass by go on."""
    taken = Stage("select", params={"take": 1}, where={"x": 1})
    things = made((taken,), [1, 0, 1, 0, 1, 0], width=1)
    assert [thing.id for thing in things] == ["0", "1", "3", "5"]


def test_branches_are_worked_on_apart() -> None:
    """A Thing goes two ways, each has its own stages, and merge makes it one again."""
    text = """
name: two_ways
stages:
  - type: tee
    params: {branches: [loud, plain]}
  - type: apply
    where: {branch: loud}
    params: {prompt: "{{ content }}!", to: said}
  - type: merge
    params: {content: plain}
"""
    recipe = recipe_from_yaml(text)
    assert recipe_from_yaml(recipe_to_yaml(recipe)) == recipe
    assert 'where branch is "loud"' in "\n".join(stage_lines(plan(recipe)))

    async def all_of_it() -> list[Thing]:
        async with aclosing(work(recipe).stream(Source(["a", "b"]))) as stream:
            return [thing async for thing in stream]

    assert [(t.content, t.props["said"]) for t in simulate(all_of_it)] == [
        ("a", "to a!"),
        ("b", "to b!"),
    ]


def test_conditions_of_stages_are_checked() -> None:
    """A prop that nothing adds is named with its line, and so is what is no condition."""
    text = "name: r\nstages:\n  - type: vote\n    where: {scor: {at_least: 1}}\n"
    with pytest.raises(RecipeError, match=r":4: .*needs the prop 'scor'"):
        plan(recipe_from_yaml(text))
    with pytest.raises(RecipeError, match="the regular expression is invalid"):
        Stage("vote", where={"content": {"matches": "("}})
    plan(Recipe("r", (Stage("vote", where={"status": "failed"}),)))


def test_conditions_take_knobs() -> None:
    """A knob is put into a condition; one that does not fit, or is none, is told with its line."""
    text = """
name: r
knobs: {good: 60, branch: loud}
needs: [score, branch]
stages:
  - type: vote
    where: {score: {below: "{{ good }}"}, branch: "{{ branch }}"}
"""
    recipe = recipe_from_yaml(text)
    assert recipe_from_yaml(recipe_to_yaml(recipe)) == recipe
    lines = "\n".join(stage_lines(plan(recipe, {"good": 70})))
    assert 'where score below 70.0, branch is "loud"' in lines
    with pytest.raises(RecipeError, match=r":7: .*where\.score\.below: .* valid number, not 'x'"):
        plan(recipe_from_yaml(text.replace("good: 60", "good: x")))
    with pytest.raises(RecipeError, match=r":7: .*no knob is named 'god' \(did you mean 'good'"):
        plan(recipe_from_yaml(text.replace("{{ good }}", "{{ god }}")))


def test_a_condition_that_cannot_be_asked_says_where() -> None:
    """A text where a number is compared is told with stage and item."""
    recipe = Recipe("r", (Stage("vote", where={"x": {"above": 1}}),), needs=("x",))

    async def all_of_it() -> Any:
        async with aclosing(work(recipe).stream(Source([Thing("a", {"x": "b"})]))) as stream:
            return [thing async for thing in stream]

    with pytest.raises(
        BlockError, match=r'r\.stage_1\.vote \(where\), item 0: x must be a number, not "b"'
    ):
        simulate(all_of_it)


def test_a_compiled_recipe_lets_them_pass_too() -> None:
    """As a graph it gives what the executor gives: conditions on blocks, recipes and barriers."""
    inner = Recipe("inner", (TOLD, Stage("accumulate")), needs=("x",))
    recipe = Recipe("r", (TOLD, Stage(inner, where={"x": 0}), GROUPED, VOTED), needs=("x",))
    items = [Thing(str(number), {"x": number % 2}) for number in range(5)]
    model = ScriptedModel(default=lambda messages: f"to {messages[-1].text}")
    lazy = run_recipe(recipe, items, model=model, runs=None)
    out = compile_recipe(recipe, model=model).invoke({"items": items})
    assert [Thing.from_plain(one) for one in out["things"]] == list(lazy.things)
