"""kill -9 at random moments: a run is resumed until it is done, and nothing is paid twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.campaign import Campaign
from tests.crash.expected import calm
from tests.crash.survey import BESIDE_OTHERS, Survey
from tests.crash.trees import ROUNDS, turning

from mergepoint.engine.compiler import Form

Record = Callable[[str, object], None]


def surveyed(kills: int, folder: Path, form: Form, latency: float, record: Record) -> Survey:
    """Kill so often, and print what came of it."""
    survey = Campaign(str(folder), form, latency).of(kills)
    record("kills", str(survey))
    print(f"{survey}\n{survey.histogram()}", *survey.wrong, sep="\n")
    assert survey.wrong == []
    assert survey.lost == 0
    return survey


def test_every_call_of_the_tree_asks_something_of_its_own() -> None:
    """The counts by what was said are those of calls, and the loop turns as often as it says."""
    undisturbed = calm(turning, "r1")
    assert len(undisturbed.asked) == len(set(undisturbed.asked)) == 25
    assert sum(path.endswith("/revise") for path in undisturbed.paths) == ROUNDS


@pytest.mark.first_case
def test_a_killed_run_ends_as_if_it_had_not_been(
    tmp_path: Path, form: Form, record_property: Record
) -> None:
    """Whenever it is killed, a resumed run comes to the same end, and no record is lost."""
    surveyed(8, tmp_path, form, 0.01, record_property)


@pytest.mark.campaign
def test_many_killed_runs_pay_next_to_nothing_twice(
    tmp_path: Path, form: Form, record_property: Record
) -> None:
    """In 30 kills nothing is lost, and at most 2 % of answered calls are made again."""
    survey = surveyed(30, tmp_path, form, 0.2, record_property)
    assert survey.again <= max(2, BESIDE_OTHERS * survey.came)  # of few calls, chance may hit two
