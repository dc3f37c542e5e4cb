"""The live view of a recipe: what left each stage, what is asked just now, what it came to."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from mergepoint.apps.cli.recipe.stages_live import StagesLive
from mergepoint.streams.library import LIBRARY
from mergepoint.streams.recipe_run import RecipeRun, Wanted
from mergepoint.testing.stochastic import StochasticModel


def drawn(live: StagesLive, height: int = 40) -> list[str]:
    """Give the lines of the view."""
    console = Console(file=io.StringIO(), width=80, height=height)
    console.print(live.drawn(height))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_view_tells_of_stages_calls_and_the_best() -> None:
    """In mid run calls are in flight, at the end none are; stages that do not fit are counted."""
    seen: list[list[str]] = []

    def answered(rng: Any, prompt: str) -> str | Mapping[str, Any]:
        seen.append(drawn(live))
        return {"score": 70, "feedback": "more"} if "Score" in prompt else "an answer"

    wanted = Wanted(
        model=StochasticModel(chance=answered),
        runs=None,
        knobs={"n": 2},
        watch=lambda stage_id, thing: live.note(stage_id, thing),
    )
    run = RecipeRun.of(LIBRARY.find("best_of_n"), ["a"], wanted)
    live = StagesLive(run, quiet=True)

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
