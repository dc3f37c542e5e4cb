"""Streams on thousands of simulated schedules: waits, failures, hangs, cancellations anywhere."""

from __future__ import annotations

import pytest
from tests.aio.planted import PLANTED, Planted
from tests.aio.play import play
from tests.mutants.mutate import apply

SHORT = 500
"""So many schedules are played each time, and have to find every planted bug."""

CHUNK = 1_000
ALL = 20_000


def problems(*, first: int, count: int) -> list[str]:
    """Play schedules and give what broke a law, with the seed to play again."""
    played = (play(seed) for seed in range(first, first + count))
    return [f"play({one.seed}): {law}: {told}" for one in played for law, told in one.problems]


def test_no_law_is_broken() -> None:
    """Bounds, order, errors, closing and landing hold on the first schedules."""
    assert problems(first=0, count=SHORT) == []


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, ALL, CHUNK))
def test_no_law_is_broken_on_many_schedules(first: int) -> None:
    """The same holds on 20,000 schedules."""
    assert problems(first=first, count=CHUNK) == []


@pytest.mark.parametrize("seed", range(0, SHORT, 8))
def test_one_seed_is_one_run(seed: int) -> None:
    """A schedule that is played again takes the same steps at the same times."""
    assert play(seed) == play(seed)


def test_another_seed_is_another_run() -> None:
    """Schedules differ."""
    assert len({play(seed).transcript for seed in range(50)}) > 40


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_planted_bugs_are_found(bug: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that is put into the primitive breaks its law on one of the first schedules."""
    apply(bug, monkeypatch)
    assert any(law == bug.law for seed in range(SHORT) for law, _ in play(seed).problems)
