"""A session's page: the conversation, and what happened in each turn, in order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of
from tests.view.contract import fields
from tests.view.talks import CHAT, PLAN, said, shown, talk

from mergepoint import StepError, cancel_turn
from mergepoint.session.session_memory import Sessions
from mergepoint.session.session_store import repair_session, sessions_at


@pytest.fixture(params=["files", "sqlite", "postgresql"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    """Yield an empty store of sessions of each kind."""
    with place_of(request.param, tmp_path) as place:
        yield sessions_at(place.address)


def events(turn: dict[str, Any]) -> list[tuple[str, str, str, bool | None]]:
    """Return kind, title, author and success of a turn's entries."""
    return [(one["kind"], one["title"], one["who"], one["ok"]) for one in turn["entries"]]


def test_shows_a_turn_with_a_failed_program_in_order(sessions: Sessions) -> None:
    """Plan, decision, program, decision and output, the program again, answer: as it happened."""
    memory, turns = talk(sessions)
    said(memory, turns, "Sum the sales.", "approve", "approve", "approve")
    data, texts, runs = shown(memory)
    [turn] = data["turns"]
    assert events(turn) == [
        ("plan", "Plan", "model", None),
        ("decision", "Plan approved", "user", True),
        ("program", "Program", "model", None),
        ("decision", "Program approved", "user", True),
        ("output", "Output, exit code 1", "sandbox scripted", False),
        ("program", "Program, attempt 2", "model", None),
        ("decision", "Program approved, attempt 2", "user", True),
        ("output", "Output, attempt 2, exit code 0", "sandbox scripted", True),
        ("answer", "Answer", "model", None),
    ]
    assert (texts[turn["user"]], texts[turn["answer"]]) == ("Sum the sales.", "The sales are 42.")
    assert (turn["status"], runs[turn["run"]]) == ("done", "trip.1")
    moments = [one["at"] for one in turn["entries"]]
    assert moments == sorted(moments)
    plan, *_ = turn["entries"]
    assert texts[plan["text"]].splitlines() == [
        "Sum the sales.",
        "action: execute_skill",
        "skill: sales_report",
        "1. Read sales.csv.",
        "2. Sum the amounts.",
    ]
    assert plan["path"] == "agent/planning/iteration_01/propose"


def test_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    """Session, turns, entries and facts have exactly the fields that page.d.ts requires."""
    memory, turns = talk(tmp_path)
    said(memory, turns, "Sum the sales.", "approve", "approve", "approve")
    memory.add_fact("The year is 2026.")
    data, _, _ = shown(memory, commands={"show": "mergepoint sessions show trip"})
    assert data.keys() == fields("Session")
    assert data["turns"][0].keys() == fields("Turn")
    assert data["turns"][0]["entries"][0].keys() == fields("SessionEntry")
    assert data["facts"][0]["source"] == "turn 1"
    assert data["title"] == "Sum the sales."


def test_says_who_decided(tmp_path: Path) -> None:
    """A rejection with its reason is the user's; what needs no question is the policy's."""
    memory, turns = talk(tmp_path, plans=(PLAN, CHAT), programs=(), runs=())
    said(memory, turns, "Hi.", {"decision": "reject", "feedback": "No program, please."})
    [turn] = shown(memory)[0]["turns"]
    texts = shown(memory)[1]
    decided = [one for one in turn["entries"] if one["kind"] == "decision"]
    assert [(one["title"], one["who"], texts[one["text"]]) for one in decided] == [
        ("Plan rejected", "user", "No program, please."),
        ("Plan approved, attempt 2", "policy", "nothing is run"),
    ]


def test_shows_the_edited_text(tmp_path: Path) -> None:
    """A person's edit of a program is part of the decision."""
    memory, turns = talk(tmp_path, programs=("print(1)",), runs=("2\n",))
    said(memory, turns, "Go.", "approve", {"decision": "edit", "text": "print(2)"})
    data, texts, _ = shown(memory)
    [edited] = [one for one in data["turns"][0]["entries"] if "edited" in one["title"]]
    assert (edited["title"], texts[edited["text"]]) == ("Program edited", "print(2)")


def test_shows_the_question_that_a_turn_waits_for(tmp_path: Path) -> None:
    """A waiting turn ends with its open question, about the program above it."""
    memory, turns = talk(tmp_path)
    said(memory, turns, "Sum the sales.", "approve")
    data, _, _ = shown(memory)
    [turn] = data["turns"]
    assert turn["status"] == "waiting"
    assert events(turn)[-1] == (
        "decision",
        "Waiting for a decision: Run this program?",
        "",
        None,
    )
    kinds = [one["kind"] for one in turn["entries"]]
    assert kinds[:3] == ["plan", "decision", "program"]
    assert turn["entries"][-1]["path"] == "agent/work/iteration_01/approval"


def test_shows_a_cancelled_turn(tmp_path: Path) -> None:
    """A cancelled turn keeps its message and its steps, and ends with the reason."""
    memory, turns = talk(tmp_path)
    said(memory, turns, "Sum the sales.")
    cancel_turn(memory, "I changed my mind.")
    data, texts, _ = shown(memory)
    [turn] = data["turns"]
    assert (turn["status"], turn["answer"]) == ("interrupted", None)
    last = turn["entries"][-1]
    assert (last["kind"], last["title"], last["who"]) == ("error", "Canceled", "user")
    assert texts[last["text"]] == "I changed my mind."


def test_shows_the_error_of_a_failed_turn(tmp_path: Path) -> None:
    """A turn whose model never returns a plan ends with the error and its path."""
    memory, turns = talk(tmp_path, plans=(["Prose.", "More prose."],))
    with pytest.raises(StepError):
        said(memory, turns, "Hi.")
    data, texts, _ = shown(memory)
    [turn] = data["turns"]
    assert turn["status"] == "failed"
    [error] = turn["entries"]
    assert (error["kind"], error["ok"], error["path"]) == (
        "error",
        False,
        "agent/planning/iteration_01/propose",
    )
    assert "Plan" in texts[error["text"]]


def test_shows_records_that_a_killed_turn_has_not_told(tmp_path: Path) -> None:
    """After a kill, only the run's journal has the steps; they are shown as unfinished."""
    memory, turns = talk(tmp_path)
    said(memory, turns, "Sum the sales.", "approve")
    # A kill before the turn has told its steps leaves the message and the journal of the run.
    log = tmp_path / "trip" / "journal.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(line for line in lines if b'"kind":"step"' not in line))
    data, _, _ = shown(sessions_at(tmp_path).open("trip"))
    kinds = [(one["kind"], one["title"]) for one in data["turns"][0]["entries"]]
    assert ("other", "propose") in kinds
    assert ("decision", "approval approved") in kinds
    assert kinds[-1] == ("decision", "Waiting for a decision: Run this program?")


def test_masked_secrets_stay_masked(tmp_path: Path) -> None:
    """A key in a message is nowhere in the page, which says that it was masked."""
    key = "sk-" + "a1B2c3D4" * 6
    memory, turns = talk(tmp_path, plans=(CHAT,), respond=f"Your key is {key}.")
    said(memory, turns, f"My key is {key}.")
    data, texts, _ = shown(memory)
    assert not any(key in text for text in texts)
    assert key not in str(data)
    assert any("masked" in note for note in data["notes"])


def test_a_run_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    """A damaged or lost journal of one turn doesn't hide the conversation."""
    memory, turns = talk(tmp_path, plans=([CHAT, CHAT],), respond=["Hello.", "Bye."])
    said(memory, turns, "Hi.")
    said(memory, turns, "Bye.")
    journal = tmp_path / "trip" / "runs" / "trip.1" / "journal.jsonl"
    journal.write_bytes(b"not a journal\n" + journal.read_bytes())
    (tmp_path / "trip" / "runs" / "trip.2" / "journal.jsonl").unlink()
    data, texts, runs = shown(sessions_at(tmp_path).open("trip"))
    assert ([one["run"] for one in data["turns"]], runs) == ([-1, -1], [])
    assert [texts[one["answer"]] for one in data["turns"]] == ["Hello.", "Bye."]
    assert [note.partition(":")[0] for note in data["notes"]] == ["Turn 1", "Turn 2"]


def test_a_torn_tail_is_left_out(tmp_path: Path) -> None:
    """An unfinished write at the end of a session's log doesn't count."""
    memory, turns = talk(tmp_path, plans=(CHAT,), respond="Hello.")
    said(memory, turns, "Hi.")
    log = tmp_path / "trip" / "journal.jsonl"
    log.write_bytes(log.read_bytes() + b'{"kind":"mess')
    before = log.read_bytes()
    data, texts, _ = shown(sessions_at(tmp_path).open("trip"))
    assert texts[data["turns"][0]["answer"]] == "Hello."
    assert log.read_bytes() == before


def test_says_that_a_session_was_repaired_or_cleared(tmp_path: Path) -> None:
    """Lines that a repair dropped, and turns that were cleared, are notes."""
    memory, turns = talk(tmp_path, plans=([CHAT, CHAT],), respond=["Hello.", "Bye."])
    said(memory, turns, "Hi.")
    memory.clear()
    said(memory, turns, "Bye.")
    log = tmp_path / "trip" / "journal.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], lines[2].replace(b"plan", b"plam"), *lines[3:]]))
    repair_session("trip", sessions=tmp_path)
    data, _, _ = shown(sessions_at(tmp_path).open("trip"))
    assert [one["number"] for one in data["turns"]] == [2]
    assert data["notes"][0] == "The record was repaired once: damaged lines were left out."
    assert data["notes"][1] == "Earlier turns were cleared: 1 of 2 aren't shown."


def test_messages_without_a_run_are_shown(tmp_path: Path) -> None:
    """A program's own messages and steps make a turn without a run."""
    memory = sessions_at(tmp_path).create("own")
    memory.add_response("system", "Be short.")
    memory.add_response("user", "Hi <script>alert(1)</script>\x1b[31m")
    memory.add_working_step("execute", "done", exit_code=3)
    memory.add_response("assistant", "Hello.")
    data, texts, _ = shown(memory)
    first, second = data["turns"]
    assert (first["number"], texts[first["user"]], first["status"]) == (0, "", "done")
    assert [texts[one["text"]] for one in first["entries"]] == ["Be short."]
    assert texts[second["user"]] == "Hi <script>alert(1)</script>\x1b[31m"
    assert events(second) == [
        ("output", "Output, exit code 3", "sandbox", False),
        ("answer", "Answer", "", None),
    ]
    assert second["run"] == -1


def test_reads_no_langgraph(tmp_path: Path) -> None:
    """Looking at a session doesn't load LangGraph, which takes a quarter of a second."""
    memory, turns = talk(tmp_path, plans=(CHAT,), respond="Hello.")
    said(memory, turns, "Hi.")
    code = (
        "import sys\n"
        "from mergepoint.session.session_store import sessions_at\n"
        "from mergepoint.view.session_data import session_data\n"
        f"memory = sessions_at({str(tmp_path)!r}).open('trip')\n"
        "session_data(memory, text=lambda text: 0, run=lambda run: 0)\n"
        "sys.exit(any(name.startswith('langgraph') for name in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
