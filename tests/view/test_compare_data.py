"""The data of the page of two runs: as page.d.ts has them, and what the comparison says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.view.contract import fields

from mergepoint import Block, Step, run_generation, with_overrides
from mergepoint.journal.file_journal import FileStore
from mergepoint.report.comparison import compare
from mergepoint.report.run_state import RunState, read_state
from mergepoint.testing import ScriptedModel
from mergepoint.view.compare_data import comparison_data, setting_text
from mergepoint.view.run_data import run_data
from mergepoint.view.texts import Texts

TREE = Block(
    [Step("Draft.", name="draft"), Step("Judge.", name="judge"), Step("End.", name="end")],
    name="work",
)


@pytest.fixture
def states(tmp_path: Path) -> list[RunState]:
    """Return two runs, of which the second has another judge and ends without its last step."""
    other = with_overrides(TREE, {"judge": {"prompt": "Judge strictly."}})
    run_generation(TREE, model=ScriptedModel(["one", "two", "three"]), runs=tmp_path, run_id="a")
    with pytest.raises(TimeoutError):
        run_generation(
            other,
            model=ScriptedModel(["one", "bad", TimeoutError("late")]),
            runs=tmp_path,
            run_id="b",
        )
    return [read_state(FileStore(tmp_path), name) for name in "ab"]


def test_a_comparison_has_the_fields_of_its_contract(states: list[RunState]) -> None:
    """Every field of Comparison and ComparedCall is there, and nothing that JSON lacks."""
    texts = Texts()
    runs = [run_data(state, texts) for state in states]
    data = comparison_data(compare(*states), runs)
    assert fields("Comparison") <= data.keys()
    for row in data["rows"]:
        assert fields("ComparedCall") <= row.keys()
    assert json.loads(json.dumps(data)) == data


def test_rows_point_to_the_calls_of_both_runs(states: list[RunState]) -> None:
    """A row has the index of its call in each run, and -1 where there is none."""
    texts = Texts()
    runs = [run_data(state, texts) for state in states]
    data = comparison_data(compare(*states), runs)
    assert data["first_divergence"] == "work/judge"
    assert data["reason"] == "prompt"
    kinds = {row["path"]: row["kind"] for row in data["rows"]}
    assert kinds == {"work/draft": "same", "work/judge": "changed", "work/end": "freed"}
    for row in data["rows"]:
        for run, side in zip(runs, "ab", strict=True):
            assert row[side] == -1 or run["calls"][row[side]]["path"] == row["path"]
    assert data["rows"][2]["because"] == "work/judge"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("offline", "offline"),
        (["a:n=1", "b:n=2"], "a:n=1\nb:n=2"),
        (0.5, "0.5"),
        ([{"content": "x"}], '[{"content": "x"}]'),
    ],
)
def test_settings_are_texts(value: object, text: str) -> None:
    """Of lists of texts, each has a line; what isn't text is JSON."""
    assert setting_text(value) == text
