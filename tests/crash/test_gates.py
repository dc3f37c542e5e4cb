"""kill -9 before, between and after answers at gates: nobody is asked twice, nothing is swapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.attended import WAYS, Kind, Way
from tests.crash.checkpoints import checkpoints_at
from tests.crash.expected import calm
from tests.crash.gates import GateCampaign
from tests.crash.person import decision_at
from tests.crash.survey import Asked
from tests.crash.trees import gated

from mergepoint import Gate, Question, walk
from mergepoint.engine.compiler import Form

Record = Callable[[str, object], None]


def surveyed(kills: int, folder: Path, saver: Kind, way: Way, form: Form, record: Record) -> Asked:
    """Kill so often, and print what came of it."""
    with checkpoints_at(saver, folder) as checkpoints:
        campaign = GateCampaign(
            str(folder / "runs"), form, 0.005, saver=saver, checkpoints=checkpoints, way=way
        )
        campaign.of(kills)
    survey = campaign.survey
    record("kills", str(survey))
    print(f"{survey}\n{survey.histogram()}", *survey.wrong, sep="\n")
    assert survey.wrong == []
    assert (survey.lost, survey.twice, survey.swapped) == (0, 0, 0)
    return survey


def test_the_tree_asks_six_questions_at_five_gates() -> None:
    """One gate is in a loop, whose first round is rejected; each decision says where it belongs."""
    gates = [path for path, node in walk(gated(lambda said: "")) if isinstance(node, Gate)]
    assert len(gates) == 5
    asked: list[str] = []

    def decide(question: Question) -> Any:
        asked.append(question.path)
        return decision_at(question.path)

    calm(gated, "r1", decide)
    assert len(asked) == len(set(asked)) == 6
    assert all(decision_at(path)["feedback"] == f"for {path}" for path in asked)


@pytest.mark.first_case
@pytest.mark.parametrize(("saver", "way"), [("sqlite", "journal"), ("none", "told")])
def test_a_killed_run_asks_nobody_twice(
    tmp_path: Path, saver: Kind, way: Way, form: Form, record_property: Record
) -> None:
    """Whenever it is killed, an answer that was taken is used once, and at its own gate."""
    surveyed(4, tmp_path, saver, way, form, record_property)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("saver", "way"), [(saver, way) for saver, ways in WAYS.items() for way in ways]
)
def test_many_killed_runs_ask_nobody_twice(
    tmp_path: Path, saver: Kind, way: Way, form: Form, record_property: Record
) -> None:
    """With each saver and none, in each way an answer can come in, the same holds for 3 kills."""
    survey = surveyed(3, tmp_path, saver, way, form, record_property)
    assert survey.second <= (0 if way == "journal" else survey.on_their_way)
