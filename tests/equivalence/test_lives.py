"""A run is the same left alone, killed and resumed, and replayed: its state and its record."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.equivalence.lives import (
    WAYS,
    Left,
    Lives,
    left_alone,
    replayed,
    unattended,
)

from mergepoint.testing.case import Case, seeded_case
from mergepoint.tree.gate import Gate
from mergepoint.tree.node import walk

Record = Callable[[str, object], None]

SAMPLE = 40
CHUNK = 125
CHUNKS = 8
OPEN_SAMPLE = 12
OPEN_CHUNK = 60
OPEN_CHUNKS = 4

# An async function that is called in a thread gives a coroutine that a killed loop leaves behind.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'Counted._later' was never awaited")


def unlike(who: str, found: Left, expected: Left) -> Iterator[str]:
    """Give what a run left otherwise than another."""
    if found.end != expected.end:
        yield f"{who} ended with\n  {found.end}\n  and not\n  {expected.end}"
    for path in sorted(found.answered.keys() | expected.answered.keys()):
        one, other = found.answered.get(path), expected.answered.get(path)
        if one != other:
            yield f"{who}, the record of {path}:\n  {one}\n  and not\n  {other}"


def faults(seed: int, case: Case, folder: Path, counts: Counter[str]) -> list[str]:
    """Give what is wrong with the lives of a case; nothing when all is as it should be."""
    way, other = WAYS[seed % 4], WAYS[(seed + 1) % 4]
    live = left_alone(case, way, folder / "live")
    lives = Lives(case, way, folder / "lives", random.Random(seed), len(live.answered))  # noqa: S311
    resumed = lives.lived()
    strict = replayed(case, other, folder / "strict", of=folder / "lives")
    found = [*live.odd, *resumed.odd, *strict.odd, *unlike("resumed", resumed, live)]
    found += [f"{path} was paid again" for path in lives.again]
    found += [f"{path} was paid in a replay" for path in strict.called]
    if live.end.error is None:
        found += unlike("replayed", strict, live)
    elif strict.end.error is None or strict.end.error[1] != live.end.error[1]:
        found.append(f"the replay ended with {strict.end}, and not at {live.end.error[1]}")
    counts += Counter({"trees": 1, "that fail": live.end.error is not None, str(way): 1})
    counts += Counter({f"kills {when}": number for when, number in lives.kills.items()})
    counts += Counter({"records": len(live.answered), "calls": len(live.called)})
    return [f"seed {seed}, {way}: {one}" for one in found]


def hold(first: int, number: int, folder: Path, record: Record) -> None:
    """Hold the lives of some cases to each other."""
    counts: Counter[str] = Counter()
    found: list[str] = []
    for seed in range(first, first + number):
        case = seeded_case(seed, faulty=seed // 4 % 4 == 0)
        found += faults(seed, case, folder / str(seed), counts)
    record("lives", dict(counts))
    assert not found, f"{len(found)} faults, the first: {found[0]}"
    assert sum(counts[f"kills {when}"] for when in ("before", "torn", "after")) > number


def test_a_killed_run_is_the_same_as_one_that_was_left_alone(
    tmp_path: Path, record_property: Record
) -> None:
    """Of 40 random trees each is resumed after several kills, and replayed, to the same end."""
    hold(0, SAMPLE, tmp_path, record_property)


@pytest.mark.campaign
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_runs_in_a_campaign(chunk: int, tmp_path: Path, record_property: Record) -> None:
    """1,000 other random trees are the same live, resumed after kills, and replayed."""
    hold(SAMPLE + chunk * CHUNK, CHUNK, tmp_path, record_property)


def open_faults(seed: int, case: Case, folder: Path, counts: Counter[str]) -> list[str]:
    """Give what is wrong with the lives of a case at whose gates nobody is."""
    way, other = WAYS[seed % 4], WAYS[(seed + 1) % 4]
    live = left_alone(case, way, folder / "live")
    tree, deciders = unattended(case.tree)
    case = replace(case, tree=tree)
    chance = random.Random(seed)  # noqa: S311
    lives = Lives(case, way, folder / "lives", chance, len(live.answered), deciders)
    resumed = lives.lived()
    strict = replayed(case, other, folder / "strict", of=folder / "lives")
    found = [*live.odd, *resumed.odd, *strict.odd]
    found += [*unlike("resumed", resumed, live), *unlike("replayed", strict, live)]
    found += [f"{path} was paid again" for path in lives.again]
    decided = sorted(path for path, one in live.answered.items() if one.kind == "gate")
    if sorted(lives.asked) != decided:
        found.append(f"asked at {lives.asked}, decided at {decided}")
    counts += Counter({"open trees": 1, "answers": len(decided), "open kills": lives.kills.total()})
    return [f"seed {seed}, {way}: {one}" for one in found]


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
    tmp_path: Path, record_property: Record
) -> None:
    """Killed, and resumed with the answers to its open gates, it asks once and ends the same."""
    hold_open(0, OPEN_SAMPLE, tmp_path, record_property)


@pytest.mark.campaign
@pytest.mark.parametrize("chunk", range(OPEN_CHUNKS))
def test_runs_with_open_gates_in_a_campaign(
    chunk: int, tmp_path: Path, record_property: Record
) -> None:
    """240 other random trees with gates are asked about once, and are as if somebody was there."""
    hold_open(1_000 * (chunk + 1), OPEN_CHUNK, tmp_path, record_property)
