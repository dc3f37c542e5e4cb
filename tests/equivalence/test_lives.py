"""A run is the same left alone, killed and resumed, and replayed: its state and its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.equivalence.lives import WHENS, faults, leaves, open_faults

from mergepoint.testing.random_trees import WITH_TOOLS, seeded_case
from mergepoint.tree.nodes import Gate, walk

Record = Callable[[str, object], None]

SAMPLE = 40
CHUNK = 125
CHUNKS = 3
OPEN_SAMPLE = 6
OPEN_CHUNK = 60
OPEN_CHUNKS = 2
APART = 1_000
"""Between the seeds of two chunks: not every seed gives a tree that is big enough."""

# An async function that is called in a thread gives a coroutine that a killed loop leaves behind.
# So is a loop of tools: when it is collected it would write its end, and its store is killed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine 'DataFunction._later' was never awaited"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <coroutine object ToolLoop._messages"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]


def hold(first: int, number: int, folder: Path, record: Record) -> None:
    """Hold the lives of some cases to each other."""
    counts: Counter[str] = Counter()
    found: list[str] = []
    seed = first
    while counts["trees"] < number:
        case = seeded_case(seed, faulty=seed // 4 % 4 == 0, kinds=WITH_TOOLS)
        if leaves(case) > 2:
            found += faults(seed, case, folder / str(seed), counts)
        seed += 1
    record("lives", dict(counts))
    assert not found, f"{len(found)} faults, the first: {found[0]}"
    assert sum(counts[f"kills {when}"] for when in WHENS) > number


@pytest.mark.campaign
def test_a_killed_run_is_the_same_as_one_that_was_left_alone(
    memory: Path, record_property: Record
) -> None:
    """Of 40 random trees each is resumed after several kills, and replayed, to the same end."""
    hold(0, SAMPLE, memory, record_property)


@pytest.mark.campaign
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_runs_in_a_campaign(chunk: int, memory: Path, record_property: Record) -> None:
    """375 other random trees are the same live, resumed after kills, and replayed."""
    hold(APART * (chunk + 1), CHUNK, memory, record_property)


def hold_open(first: int, number: int, folder: Path, record: Record) -> None:
    """Hold the lives of some cases with gates to each other."""
    counts: Counter[str] = Counter()
    found: list[str] = []
    seed = first
    while counts["open trees"] < number:
        case = seeded_case(seed, faulty=False)
        if any(isinstance(node, Gate) for _, node in walk(case.tree)):
            found += open_faults(seed, case, folder / str(seed), counts)
        seed += 1
    record("lives", dict(counts))
    assert not found, f"{len(found)} faults, the first: {found[0]}"
    assert counts["answers"] > number


def test_a_run_with_open_gates_is_the_same_as_one_that_was_attended(
    memory: Path, record_property: Record
) -> None:
    """Killed, and resumed with the answers to its open gates, it asks once and ends the same."""
    hold_open(0, OPEN_SAMPLE, memory, record_property)


@pytest.mark.campaign
@pytest.mark.parametrize("chunk", range(OPEN_CHUNKS))
def test_runs_with_open_gates_in_a_campaign(
    chunk: int, memory: Path, record_property: Record
) -> None:
    """240 other random trees with gates are asked about once, and are as if somebody was there."""
    hold_open(APART * (chunk + 1), OPEN_CHUNK, memory, record_property)
