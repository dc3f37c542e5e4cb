"""Memory stays flat, however many Things pass."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from mergepoint.streams.block_context import MISSING
from mergepoint.streams.executor import RecipeExecutor
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.stage_run import entered
from mergepoint.streams.thing import Thing

STAGES: list[tuple[str, dict[str, Any]]] = [
    ("filter", {"where": {"content": {"at_least": 0}}}),
    ("route", {"cases": [{"where": {"content": {"below": 100}}, "to": "small"}]}),
    ("accumulate", {"count": 10}),
    ("select", {"take": 10**9}),
    ("vote", {}),
    ("tee", {"branches": ["a", "b"]}),
    ("merge", {}),
    ("checkpoint", {"name": "end"}),
]


class Forgetful:
    """Notes that are kept elsewhere."""

    def find(self, stage_id: str, key: str) -> Any:
        """Return nothing."""
        return MISSING

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Forget it."""


async def _counted(count: int, few: int) -> int:
    async def items() -> AsyncGenerator[Thing, None]:
        for thing in entered(range(count)):
            yield thing

    stages = tuple(Stage(name, params=params) for name, params in STAGES[:few])
    work = RecipeExecutor(plan(Recipe("flat", stages)), lambda stage: None, notes=Forgetful())
    found = 0
    async with aclosing(work.stream(items())) as stream:
        async for _ in stream:
            found += 1
    return found


def most_memory() -> int:
    """Return the most memory that this process had so far, in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.campaign
@pytest.mark.parametrize(("count", "few"), [(250_000, 2), (30_000, len(STAGES))])
def test_many_things_pass_in_flat_memory(count: int, few: int) -> None:
    """After a warm-up, 250,000 Things through a recipe take no 8 MB more."""
    asyncio.run(_counted(20_000, few))
    before = most_memory()
    assert asyncio.run(_counted(count, few)) == count / (1 if few == 2 else 10)
    assert most_memory() - before < 8_000
