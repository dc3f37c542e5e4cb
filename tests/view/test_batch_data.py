"""A batch as the data of a page: every result has a row, and every error is there once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.view.contract import fields

from mergepoint.view.batch_data import BatchFacts, BatchRow, RunOpening, batch_data
from mergepoint.view.page import page_json
from mergepoint.view.pages import batch_page

ENDED = "2026-11-23T20:54:07.500+00:00"


def line(input_id: str, **more: Any) -> dict[str, Any]:
    """Return the data of a line of results."""
    usage = {"input_tokens": 40, "output_tokens": 10, "cost": 0.01}
    plain = {"id": input_id, "status": "done", "text": "Wide.", "outputs": {}, "calls": 2}
    rest = {"usage": usage, "error": None, "run_id": f"b.{input_id}", "attempts": 1}
    return {**plain, **rest, "input": "0" * 16, "ended_at": ENDED, **more}


def failed(input_id: str, message: str, *, path: str | None = "t/a") -> dict[str, Any]:
    """Return the data of a line of a failure."""
    error = {"type": "ValueError", "message": message, "path": path}
    return line(input_id, status="failed", text="", error=error)


def data(*lines: dict[str, Any], opening: RunOpening | None = None, **facts: Any) -> dict[str, Any]:
    """Return a batch with these results."""
    given = BatchFacts(file="results.jsonl", commands={"view": "mergepoint view x"}, **facts)
    return batch_data(given, map(BatchRow.of, lines), opening)


def test_a_page_has_the_fields_of_its_contract() -> None:
    """Batch, rows and failures have the fields that page.d.ts declares, and no others."""
    opening = RunOpening(before="v ", after="", run_ids=frozenset({"b.a"}))
    found = data(line("a"), failed("b", "no"), opening=opening, starts=[ENDED])
    assert found.keys() == fields("Batch")
    assert {frozenset(row) for row in found["rows"]} == {fields("BatchRow")}
    assert {frozenset(one) for one in found["failures"]} == {fields("BatchFailure")}
    page = batch_page(BatchFacts(file="r.jsonl", target="t.yaml", commands={}), [], version="1")
    assert (page["screen"], page["title"]) == ("batch", "t.yaml: r.jsonl")


def test_a_row_has_what_its_line_says() -> None:
    """Calls, tokens, cost, attempts and time are those of the line."""
    (row,) = data(line("a", attempts=2))["rows"]
    assert (row["id"], row["status"], row["text"]) == ("a", "done", "Wide.")
    assert (row["calls"], row["input_tokens"], row["output_tokens"]) == (2, 40, 10)
    assert (row["cost"], row["attempts"], row["ended"]) == (0.01, 2, 1795467247.5)


def test_equal_errors_are_there_once() -> None:
    """Rows refer to their error: by type, path and message."""
    found = data(failed("a", "no"), line("b"), failed("c", "no"), failed("d", "no", path=None))
    assert [row["failure"] for row in found["rows"]] == [0, -1, 0, 1]
    assert [(one["path"], one["message"]) for one in found["failures"]] == [
        ("t/a", "no"),
        ("", "no"),
    ]


def test_long_texts_are_cut_and_named_outputs_are_text() -> None:
    """A text is cut to its first words on one line; outputs stand for a missing text."""
    long = data(line("a", text="word\n" * 100_000), failed("b", "no " * 9_000))
    assert long["rows"][0]["text"].startswith("word word")
    assert len(long["rows"][0]["text"]) <= 200
    assert long["rows"][0]["text"].endswith("…")
    assert len(long["failures"][0]["message"]) <= 500
    (row,) = data(line("a", text="", outputs={"title": "Wide"}))["rows"]
    assert row["text"] == '{"title": "Wide"}'


@pytest.mark.parametrize(
    ("facts", "status", "inputs"),
    [
        ({}, "failed", None),
        ({"inputs": 2}, "failed", 2),
        ({"inputs": 5}, "unfinished", 5),
        ({"inputs": 5, "running": True}, "running", 5),
        # A later call with --limit 1 doesn't take results away.
        ({"inputs": 1}, "failed", 2),
    ],
)
def test_the_status_says_how_far_a_batch_is(
    facts: dict[str, Any], status: str, inputs: int | None
) -> None:
    """A batch is running, unfinished with inputs left, or failed if an input did."""
    found = data(line("a"), failed("b", "no"), **facts)
    assert (found["status"], found["inputs"]) == (status, inputs)
    assert data(line("a"), inputs=1)["status"] == "done"


def test_only_stored_runs_can_be_opened() -> None:
    """A result whose run isn't stored has no page; without journals none has one."""
    opening = RunOpening(before="v ", after=" --out r", run_ids=frozenset({"b.a"}), href="/run/")
    found = data(line("a"), line("b"), opening=opening)
    assert [row["run"] for row in found["rows"]] == ["b.a", ""]
    assert found["opening"] == {"before": "v ", "after": " --out r", "href": "/run/"}
    found = data(line("a"))
    assert (found["rows"][0]["run"], found["opening"]) == ("", None)


def test_unknown_costs_and_times_stay_unknown() -> None:
    """What a line doesn't know is null, and no zero; a start that is no time is left out."""
    found = data(line("a", usage={"cost": None}, ended_at=None), starts=["then", ENDED])
    assert (found["rows"][0]["cost"], found["rows"][0]["ended"]) == (None, None)
    assert found["starts"] == [1795467247.5]


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": "many"},
        {"calls": -1},
        {"calls": 2**60},
        {"usage": [1]},
        {"usage": {"cost": "much"}},
        {"text": 5},
        {"outputs": {"a": 2**70}, "text": "", "ended_at": "soon"},
        {"status": "failed", "error": "no"},
    ],
)
def test_a_line_of_another_program_is_refused(wrong: dict[str, Any]) -> None:
    """A value that the page can't show as what it says is an error, which the caller names."""
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        BatchRow.of(line("a", **wrong))


def test_half_a_surrogate_pair_gets_into_the_page() -> None:
    """Texts that UTF-8 can't write are replaced."""
    found = data(line("\ud800", text="a\ud800", run_id="\udfff"), failed("b", "\udc00"))
    assert b"\xef\xbf\xbd" in page_json(found)
