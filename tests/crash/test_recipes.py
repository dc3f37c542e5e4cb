"""kill -9 while a recipe's stages are at work: the run goes on, and nothing is paid twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.recipes import STAGES, THINGS, RecipeCampaign
from tests.crash.survey import LIMIT, Survey

Record = Callable[[str, object], None]


def surveyed(kills: int, folder: Path, latency: float, record: Record) -> Survey:
    """Kill so often, and print what came of it."""
    survey = RecipeCampaign(str(folder), "fused", latency).of(kills)
    record("kills", str(survey))
    print(f"{survey}\n{survey.histogram()}", *survey.wrong, sep="\n")
    assert survey.wrong == []
    assert survey.lost == 0
    return survey


def test_every_call_of_the_recipe_asks_something_of_its_own() -> None:
    """The counts by what was said are those of calls: four for each Thing."""
    undisturbed = RecipeCampaign("runs", "fused", 0.0).calm("r1")
    assert len(undisturbed.asked) == len(set(undisturbed.asked)) == STAGES * THINGS
    assert len(undisturbed.paths) == STAGES * THINGS + 1  # and the end


def test_a_killed_recipe_ends_as_if_it_had_not_been(
    tmp_path: Path, record_property: Record
) -> None:
    """Whenever it is killed, a resumed run has the same Things, and no record is lost."""
    surveyed(3, tmp_path, 0.01, record_property)


@pytest.mark.campaign
def test_many_killed_recipes_pay_next_to_nothing_twice(
    tmp_path: Path, record_property: Record
) -> None:
    """In 20 kills nothing is lost, and at most 0.2 % of answered calls are made again."""
    survey = surveyed(20, tmp_path, 0.1, record_property)
    assert survey.again <= max(2, LIMIT * survey.came)  # of few calls, chance may hit two
