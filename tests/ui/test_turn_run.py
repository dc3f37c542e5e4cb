"""What the record of a turn's run comes to: calls, tokens, cost, and the time that was worked."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from mergepoint.apps.chainlit.turn_data import TurnRun
from mergepoint.journal.call_records import CallKey, CallRecord


def call(
    path: str, *, at: float, takes: float, cost: float | None = 0.25, **more: Any
) -> CallRecord:
    """Return the record of a model call of 10 tokens in and 2 out."""
    usage = UsageMetadata(input_tokens=10, output_tokens=2, total_tokens=12)
    given: dict[str, Any] = {"message": AIMessage("x", usage_metadata=usage), "model": "m", **more}
    key = CallKey("r", "", path)
    return CallRecord(key=key, prompt="", started=at, ended=at + takes, cost=cost, **given)


def test_a_run_in_a_line() -> None:
    """Calls at the same time count once as time, and a wait between them not at all."""
    run_data = TurnRun.of(
        [call("t/a", at=0, takes=2), call("t/b", at=1, takes=2), call("t/c", at=60, takes=1)]
    )
    assert run_data.line == "3 calls · 36 tokens · $0.7500 · 4.00s"
    assert run_data.table.splitlines()[2:4] == [
        "| t/a | m | 10 | 2 | $0.2500 | 2.00s |",
        "| t/b | m | 10 | 2 | $0.2500 | 2.00s |",
    ]


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ([None, None], "cost unknown"),
        ([0.25, None], "at least $0.2500"),
        ([0.0, 0.0], "$0"),
        ([0.00001, 0.0], "$0.000010"),
    ],
)
def test_a_cost_that_is_not_known_is_not_nothing(costs: list[float | None], said: str) -> None:
    """Where a price is missing it says so, and free is free."""
    run_data = TurnRun.of(call("t/a", at=0, takes=1, cost=cost) for cost in costs)
    assert run_data.line.split(" · ")[2] == said


def test_what_ran_is_known_by_its_path() -> None:
    """Of programs time and limit are kept; failed calls count, replayed ones do not."""
    stopped = call("t/x", at=0, takes=3, kind="call", value={"stopped": "wall"}, message=None)
    failed = call("t/a|b", at=3, takes=1, error={"type": "E"}, message=None)
    replayed = call("t/c", at=9, takes=9, source="replayed")
    run_data = TurnRun.of([stopped, failed, replayed])
    assert (run_data.executions["t/x"].stopped, run_data.executions["t/x"].seconds) == ("wall", 3)
    assert run_data.line == "1 call · 0 tokens · $0.2500 · 4.00s"
    assert "| t/a/b (failed) |" in run_data.table


def test_a_refused_answer_is_shown_whole_with_its_place() -> None:
    """Below the costs stands what the model said, though a later attempt was accepted."""
    error = {"type": "AnswerError", "message": "no JSON", "position": {"line": 2, "column": 7}}
    said = AIMessage('{"steps": [\n  ```look``` :rocket')
    refused = call("t/plan", at=0, takes=1, error=error, message=said, response=str(said.text))
    table = TurnRun.of([refused, call("t/plan", at=1, takes=1)]).table
    rows, _, below = table.partition("\n\n")
    assert rows.splitlines()[2].startswith("| t/plan (failed) |")
    assert rows.splitlines()[3].startswith("| t/plan |")
    assert below == (
        "**t/plan** failed: AnswerError: no JSON (line 2, column 7)\n\n"
        '````text\n{"steps": [\n  ```look``` :rocket\n````'
    )


def test_a_call_that_failed_without_an_answer_says_why() -> None:
    """There is no empty block below it, and an error without a message is its type."""
    silent = call("t/a", at=0, takes=1, error={"type": "CallTimeout"}, message=None)
    assert TurnRun.of([silent]).table.endswith("**t/a** failed: CallTimeout")
