"""Memory stays flat, however many Things pass."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from mergepoint.streams.context import BlockContext
from mergepoint.streams.notes import MISSING
from mergepoint.streams.registry import REGISTRY
from mergepoint.streams.stage import entered, run_stage
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
        """Give nothing."""
        return MISSING

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Forget it."""


async def _counted(count: int) -> int:
    async def items() -> AsyncGenerator[Thing, None]:
        for thing in entered(range(count)):
            yield thing

    stream: Any = items()
    for number, (name, params) in enumerate(STAGES):
        kind = REGISTRY.find(name)
        ctx = BlockContext(f"stage_{number}.{name}", notes=Forgetful())
        stream = run_stage(kind, stream, kind.given(params), ctx)
    found = 0
    async with stream:
        async for _ in stream:
            found += 1
    return found


def most_memory() -> int:
    """Give the most memory that this process had so far, in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.campaign
def test_a_million_things_pass_in_flat_memory() -> None:
    """After a warm-up, a million Things through eight stages take no 8 MB more."""
    assert asyncio.run(_counted(50_000)) == 5_000
    before = most_memory()
    assert asyncio.run(_counted(1_000_000)) == 100_000
    assert most_memory() - before < 8_000
