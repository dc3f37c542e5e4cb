"""kill -9 while a recipe's stages are at work: the run goes on, and nothing is paid twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.crash.attended import Kind
from tests.crash.checkpoints import checkpoints_at
from tests.crash.graphed import GraphCampaign
from tests.crash.recipes import STAGES, THINGS, RecipeCampaign
from tests.crash.served import Served
from tests.crash.survey import BESIDE_OTHERS, Survey

from mergepoint.testing.server import ModelServer

Record = Callable[[str, object], None]
Made = Callable[[float], RecipeCampaign]

WAYS: tuple[Kind | None, ...] = (None, "none", "sqlite")


@pytest.fixture(params=WAYS, ids=["run", "graph", "graph with a saver"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    """Give who makes the campaign of each form, for a latency: a run, a graph without and with."""
    saver: Kind | None = request.param
    runs = str(tmp_path / "runs")
    if saver is None:
        yield lambda latency: RecipeCampaign(runs, "fused", latency)
        return
    with checkpoints_at(saver, tmp_path) as place:
        yield lambda latency: GraphCampaign(runs, "fused", latency, saver=saver, checkpoints=place)


def surveyed(campaign: RecipeCampaign, kills: int, record: Record) -> Survey:
    """Kill so often, and print what came of it."""
    survey = campaign.of(kills)
    record("kills", str(survey))
    print(f"{survey}\n{survey.histogram()}", *survey.wrong, sep="\n")
    assert survey.wrong == []
    assert survey.lost == 0
    return survey


def test_every_call_of_the_recipe_asks_something_of_its_own(made: Made) -> None:
    """The counts by what was said are those of calls: four for each Thing."""
    campaign = made(0.0)
    undisturbed = campaign.calm("r1")
    assert len(undisturbed.asked) == len(set(undisturbed.asked)) == STAGES * THINGS
    calls = [path for path in undisturbed.paths if path.rpartition("/")[2].startswith("call_")]
    assert len(set(calls)) == STAGES * THINGS
    assert "stages/end" in undisturbed.paths


@pytest.mark.first_case
def test_a_recipe_tells_of_each_call_on_record(made: Made) -> None:
    """What may be lost is counted: every call is told as kept, and had come in."""
    campaign, served = made(0.0), Served(0.0)
    with ModelServer(served.answer) as server, campaign.start(server.url, "r1", 0) as process:
        campaign.spare(process)
    undisturbed = campaign.calm("r1")
    calls = [path for path in undisturbed.paths if "/call_" in path]
    assert sorted(process.all("kept")) == calls
    assert len(process.all("came")) == len(calls)
    [end] = process.all("end")
    assert list(campaign.wrong("r1", end, undisturbed)) == []
    for other in (replace(undisturbed, paths=()), replace(undisturbed, end={"things": []})):
        assert len(list(campaign.wrong("r1", end, other))) == 1


@pytest.mark.first_case
def test_a_killed_recipe_ends_as_if_it_had_not_been(made: Made, record_property: Record) -> None:
    """Whenever it is killed, a resumed run has the same Things, and no record is lost."""
    surveyed(made(0.01), 3, record_property)


@pytest.mark.campaign
def test_many_killed_recipes_pay_next_to_nothing_twice(made: Made, record_property: Record) -> None:
    """In 20 kills nothing is lost, and at most 2 % of answered calls are made again."""
    survey = surveyed(made(0.1), 20, record_property)
    assert survey.again <= max(2, BESIDE_OTHERS * survey.came)  # of few calls, chance may hit two
