"""The live view of a recipe: what left each stage, what is asked just now, what it came to."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from mergepoint.apps.cli.live import StagesView
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun
from mergepoint.streams.recipe_yaml import LIBRARY
from mergepoint.testing.fakes import StochasticModel


def drawn(live: StagesView, height: int = 40) -> list[str]:
    """Return the lines of the view."""
    console = Console(file=io.StringIO(), width=80, height=height)
    console.print(live.drawn(height))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_view_tells_of_stages_calls_and_the_best() -> None:
    """In mid run calls are in flight, at the end none are; stages that do not fit are counted."""
    seen: list[list[str]] = []

    def answered(rng: Any, prompt: str) -> str | Mapping[str, Any]:
        seen.append(drawn(live))
        return {"score": 70, "feedback": "more"} if "Score" in prompt else "an answer"

    wanted = RecipeOptions(
        model=StochasticModel(chance=answered),
        runs=None,
        knobs={"n": 2},
        watch=lambda stage_id, thing: live.note(stage_id, thing),
    )
    run = RecipeRun.of(LIBRARY.find("best_of_n"), ["a"], wanted)
    live: StagesView = StagesView(run, quiet=True)

    async def all_of_it() -> int:
        return len([thing async for thing in run.stream()])

    assert asyncio.run(all_of_it()) == 1
    assert any("in flight" in line for line in seen[0] if line.startswith("1.generate"))
    lines = drawn(live)
    assert [line.split() for line in lines[:3]] == [
        ["1.generate", "2", "out"],
        ["2.critique", "2", "out"],
        ["3.synthesize", "1", "out"],
    ]
    assert "best score 70" in lines[3]
    assert "and 2 stages more" in drawn(live, height=4)
    assert (live.share, lines[4]) == (1.0, "━" * 40)


def test_the_view_tells_of_failed_things() -> None:
    """A stage in which Things failed says how many, and the bar is not full before the end."""
    shares: list[float] = []

    def answered(rng: Any, prompt: str) -> str:
        shares.append(live.share)
        return "no title"

    recipe = Recipe("poll", (Stage("generate", params={"answer": "^Title"}), Stage("vote")))
    wanted = RecipeOptions(model=StochasticModel(chance=answered), runs=None)
    run = RecipeRun.of(recipe, ["a", "b"], wanted)
    live = StagesView(run, quiet=True)

    async def all_of_it() -> int:
        return len([thing async for thing in run.stream()])

    asyncio.run(all_of_it())
    assert "2 failed" in drawn(live)[0]
    assert shares[0] == 0.0
