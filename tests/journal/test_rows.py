"""Results as plain dicts and data frames."""

from __future__ import annotations

import sys
from datetime import UTC

import pytest

from mergepoint import Block, Call, Policy, Step, run
from mergepoint.core.errors import MergepointError
from mergepoint.testing import Answer, ScriptedModel

TREE = Block(
    [
        Step("One.", name="one", policy=Policy(retry=2)),
        Call(lambda ctx: {"n": 1}, name="two", capture_key="n"),
    ],
    name="w",
)
SCRIPT = [Answer(" ", usage=(5, 1)), Answer("Fine.", usage=(5, 2))]


def test_a_tree_has_a_row_for_each_call() -> None:
    """Rows are flat dicts of every call, failed ones included, whose sums are the usage."""
    result = run(TREE, {}, model=ScriptedModel(SCRIPT))
    rows = result.rows()
    assert rows == result.transcript.rows()
    assert [(row["path"], row["attempt"], row["error"]) for row in rows] == [
        ("w/one", 1, "AnswerError"),
        ("w/one", 2, None),
        ("w/two", 1, None),
    ]
    assert sum(row["output_tokens"] or 0 for row in rows) == result.usage.output_tokens
    assert (rows[1]["prompt"], rows[1]["answer"], rows[2]["value"]) == ("One.", "Fine.", {"n": 1})
    assert rows[0]["started"].tzinfo is UTC
    assert len({tuple(row) for row in rows}) == 1


def test_a_recipe_has_a_row_for_each_thing() -> None:
    """Rows of a recipe are its Things with their props, and the calls are in its transcript."""
    result = run("best_of_n", ["A title."], model="offline")
    (row,) = result.rows()
    (thing,) = result.things
    assert (row["id"], row["content"]) == (thing.id, thing.content)
    assert row["winner"] == thing.props["winner"]
    assert sum(one["model"] != "note" for one in result.transcript.rows()) == 8


def test_a_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas the error says what to install, and what works without it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = run(TREE, {}, model=ScriptedModel(SCRIPT))
    with pytest.raises(MergepointError, match=r"pip install pandas.*rows\(\)"):
        result.to_dataframe()


def test_a_data_frame_has_the_rows() -> None:
    """With pandas, results and transcripts are data frames, one line per row."""
    pytest.importorskip("pandas")
    result = run(TREE, {}, model=ScriptedModel(SCRIPT))
    frame = result.to_dataframe()
    assert list(frame["path"]) == ["w/one", "w/one", "w/two"]
    assert list(frame.columns) == list(result.rows()[0])
    assert len(run("best_of_n", ["A."], model="offline").to_dataframe()) == 1
