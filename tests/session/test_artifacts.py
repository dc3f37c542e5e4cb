"""Artifacts: which records become steps, and what these say."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint import Block, Call, CallRecord, Gate, Loop, Node, Step
from mergepoint.journal.call_records import CallKey
from mergepoint.session.turn_runner import Artifacts

PLAN = {"step_type": "plan"}


def record(path: str, **fields: Any) -> CallRecord:
    """Return the record of an answered call."""
    return CallRecord(key=CallKey("r", "", path), prompt="p", ended=5.0, **fields)


def tree() -> Node:
    """Return a tree with nodes of every kind that are artifacts, and one that is none."""
    tries = Loop(
        [Step("x", name="iteration_07", meta={"step_type": "codegen"}, capture_key="k")],
        until="k",
        name="tries",
    )
    return Block(
        [
            Step("x", name="plan", meta=PLAN),
            Gate(Step("x", name="inside"), name="gate", meta=PLAN),
            Call(print, name="call", meta={"step_type": "execute"}),
            Loop([tries], until=lambda ctx: True, name="outer"),
            Step("x", name="other"),
        ],
        name="t",
    )


@pytest.mark.parametrize(
    ("one", "content", "about"),
    [
        (record("t/plan", response="text"), "text", {"attempt": 1}),
        (record("t/plan", response="[1]", attempt=3), "[1]", {"attempt": 3}),
        (
            record("t/plan", response='{"intent":"i","action":"a","n":1}'),
            '{"intent":"i","action":"a","n":1}',
            {"attempt": 1, "intent": "i", "action": "a"},
        ),
        (record("t/plan", response='{"intent":[1]}'), '{"intent":[1]}', {"attempt": 1}),
        (
            record("t/gate", kind="gate", value={"decision": "reject", "feedback": "f"}),
            "",
            {"attempt": 1, "decision": "reject", "feedback": "f", "decides": "plan"},
        ),
        (
            record("t/gate", kind="gate", value={"decision": "edit", "feedback": "", "text": "T"}),
            "T",
            {"attempt": 1, "decision": "edit", "feedback": "", "decides": "plan"},
        ),
        (record("t/call", kind="call", value=None), "", {"attempt": 1}),
        (record("t/call", kind="call", value="out"), "out", {"attempt": 1}),
        (
            record(
                "t/call",
                kind="call",
                value={"exit_code": 2, "output": "no", "stdout": "", "stderr": "no"},
            ),
            '{"stdout": "", "stderr": "no"}',
            {"attempt": 1, "exit_code": 2},
        ),
        (
            record("t/call", kind="call", value={"exit_code": 2, "output": "no"}),
            "no",
            {"attempt": 1, "exit_code": 2},
        ),
        (
            record("t/call", kind="call", value={"exit_code": True}),
            '{"exit_code": true}',
            {"attempt": 1},
        ),
        (
            record("t/outer/iteration_02/tries/iteration_03/iteration_07", response="c"),
            "c",
            {"attempt": 3},
        ),
    ],
)
def test_a_record_of_a_marked_node_is_an_artifact(
    one: CallRecord, content: str, about: dict[str, Any]
) -> None:
    """Its content is what was made, its attempt the round of the nearest loop or the try."""
    [found] = Artifacts(tree()).of("r", [one])
    assert (found.content, found.path, dict(found.about)) == (content, one.path, about)
    assert found.made_at.timestamp() == 5.0


def test_other_records_are_none() -> None:
    """Unmarked nodes, failed attempts, inner calls, other runs and unknown paths are left out."""
    records = [
        record("t/other", response="x"),
        record("t/plan", error={"type": "E", "message": "m"}),
        record("t/call", kind="inner", response="x"),
        record("t/elsewhere", response="x"),
    ]
    assert list(Artifacts(tree()).of("r", records)) == []
    assert list(Artifacts(tree()).of("q", [record("t/plan", response="x")])) == []


def test_what_is_made_again_at_a_path_has_an_id_of_its_own() -> None:
    """Two answers on record at one path are two steps."""
    made = Artifacts(tree()).of("r", [record("t/plan", response=text) for text in "ab"])
    assert [one.id for one in made] == ["r/t/plan/step-1", "r/t/plan/step-2"]
