"""Recipes are lazy: what is not wanted is not made, and little is held at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import SimulatedLoop

STAGES = 4


def model(seconds: float) -> ScriptedModel:
    """Return a model that takes its time."""
    return ScriptedModel(default=lambda messages: Answer("so", delay=seconds))


def recipe(concurrency: int, *, stages: int = STAGES) -> Recipe:
    """Return stages that each ask once for a Thing."""
    return Recipe(
        "r", (Stage("apply", params={"prompt": "{{ content }}"}),) * stages, concurrency=concurrency
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("concurrency", "most"), [(1, 2), (2, 4), (5, 7)])
def test_two_wanted_of_ten(concurrency: int, most: int, seed: int) -> None:
    """Two are made one by one, else at most two and the width; then no task is left."""
    asked = model(1.0)
    run = RecipeRun.of(
        recipe(concurrency, stages=1), list("abcdefghij"), RecipeOptions(runs=None, model=asked)
    )

    async def main() -> None:
        stream = run.stream()
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    SimulatedLoop(seed=seed).run(main)
    assert 2 <= len(asked.calls) <= most


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("widths", [(1, 4), (4, 1), (1, 1, 4), (1, 4, 4), (4, 1, 16)])
def test_samples_that_are_not_wanted_end_while_they_wait(
    widths: tuple[int, ...], seed: int
) -> None:
    """A wide generate pulls from narrow stages; who stops at its first result ends all of it."""
    stages = [Stage("generate", params={"n": 3}, concurrency=width) for width in widths]
    run = RecipeRun.of(
        Recipe("r", tuple(stages)), list("abcd"), RecipeOptions(runs=None, model=model(1.0))
    )

    async def main() -> None:
        stream = run.stream()
        await anext(stream)
        await stream.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    SimulatedLoop(seed=seed).run(main)


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_the_first_thing_comes_as_soon_as_it_can(concurrency: int) -> None:
    """Four stages of 20 ms give it after 80 ms, however many items wait behind it."""
    run = RecipeRun.of(
        recipe(concurrency), list(map(str, range(40))), RecipeOptions(runs=None, model=model(0.02))
    )

    async def main() -> float:
        stream = run.stream()
        await anext(stream)
        seconds = asyncio.get_running_loop().time()
        await stream.aclose()
        return seconds

    assert SimulatedLoop().run(main) == pytest.approx(0.08)


def thinking(messages: tuple[BaseMessage, ...]) -> Answer:
    """Break each task into three parts, score all alike, and take a second for everything."""
    said = messages[-1].text
    made: Any = "so"
    if said.startswith("Break the"):
        made = {"parts": ["one", "two", "three"]}
    elif "Score" in said:
        made = {"score": 50, "feedback": ""}
    return Answer(made, delay=1.0)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("concurrency", "begun", "soonest", "whole"),
    [(1, 29, 29, 264), (4, 63, 8, 40), (16, 126, 6, 17)],
)
def test_what_is_begun_ahead_is_what_the_page_says(
    concurrency: int, begun: int, soonest: int, whole: int
) -> None:
    """Wider stages are sooner and begin more for the first of twelve; all twelve cost the same."""
    stages = (
        Stage("decompose", params={"most": 3}),
        Stage("generate", params={"n": 3, "prompt": "Do this part: {{ content }}"}),
        Stage("critique"),
        Stage("synthesize", params={"strategy": "top_k", "by": "score"}),
        Stage("synthesize", params={"strategy": "combine"}),
        Stage("critique"),
        Stage("apply"),
    )
    thoughts = Recipe("thoughts", stages, concurrency=concurrency)

    def counted(wanted: int) -> tuple[int, float]:
        asked = ScriptedModel(default=thinking)
        items = [f"task {number}" for number in range(12)]
        run = RecipeRun.of(thoughts, items, RecipeOptions(runs=None, model=asked))

        async def main() -> float:
            stream = run.stream()
            for _ in range(wanted):
                await anext(stream)
            seconds = asyncio.get_running_loop().time()
            await stream.aclose()
            return seconds

        seconds = SimulatedLoop().run(main)
        return len(asked.calls), round(seconds, 6)

    assert counted(1) == (begun, soonest)
    assert counted(12) == (12 * 22, whole)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("seconds", [0.0, 1.0, 50.0])
def test_little_is_held(concurrency: int, seed: int, seconds: float) -> None:
    """At most stages x width Things and one more are pulled and not given, slow reader or not."""
    pulled, most = 0, 0

    async def items() -> AsyncIterator[Any]:
        nonlocal pulled
        for number in range(30):
            pulled += 1
            yield number

    run = RecipeRun.of(recipe(concurrency), items(), RecipeOptions(runs=None, model=model(1.0)))

    async def main() -> int:
        nonlocal most
        given = 0
        async for _ in run.stream():
            given += 1
            await asyncio.sleep(seconds)
            most = max(most, pulled - given)
        return given

    assert SimulatedLoop(seed=seed).run(main) == 30
    assert most <= STAGES * concurrency + 1
