"""Ten requests in the terminal, by a scripted model, through real runs in a sandbox."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tests.agent.ten_requests import ANSWERED, TALK, setup

from mergepoint import open_session
from mergepoint.apps.cli.chat_loop import converse
from mergepoint.session.session_store import check_session, sessions_at

RAN = {2: [0], 3: [1, 0], 6: [0], 7: [0], 8: [0], 9: [0], 10: [0, 0]}
"""Exit codes of the programs of each turn, in order."""


def test_ten_requests_are_answered_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each answer is there once, and each plan, program and run is a step with path and attempt."""
    said = "\n".join(line for request in TALK for line in request)
    monkeypatch.setattr("sys.stdin", io.StringIO(said + "\n"))
    assert converse(setup(str(tmp_path))) == 0
    printed = capsys.readouterr()

    place = sessions_at(tmp_path)
    [brief] = place.sessions()
    memory = open_session(brief.session_id, sessions=tmp_path)
    answers = {one.turn: one.content for one in memory.get_messages() if one.role == "assistant"}
    assert tuple(answers) == ANSWERED
    snapshot = (tmp_path / brief.session_id / "session.yaml").read_text(encoding="utf-8")
    for turn in ANSWERED:
        assert snapshot.count(f"Answer {turn}:") == 1
        assert printed.out.count(f"Answer {turn}:") == 1
    assert [one.content for one in memory.get_messages() if one.role == "user"] == [
        request[0] for request in TALK
    ]
    assert answers[3] == "Answer 3: 3"
    assert answers[7] == "Answer 7: 73"
    assert answers[8] == "Answer 8: 59"
    assert answers[2].removeprefix("Answer 2") == answers[9].removeprefix("Answer 9")
    assert answers[10].endswith("\n6")
    assert "customer" in answers[10]

    for turn in range(1, 11):
        steps = memory.get_working_steps(turn=turn)
        runs = [one for one in steps if one.type == "execute"]
        assert [one.exit_code for one in runs] == RAN.get(turn, [])
        assert all(one.path and one.attempt for one in steps if one.category == "working")
        if turn != 9:  # its first program was sent back
            assert [one.attempt for one in runs] == list(range(1, len(runs) + 1))
        programs = [one for one in steps if one.type == "codegen" and not one.decision]
        assert len(programs) == len([one for one in steps if one.path.endswith("/approval/code")])
    _, told = memory.get_working_steps(turn=3, type="execute")[0].printed
    assert told.rstrip().replace("'", "").endswith("KeyError: state")  # some runners quote it
    [cancelled] = memory.get_steps(turn=4, type="response")
    assert cancelled.cancelled
    decided = [one for one in memory.get_working_steps(turn=6) if one.decides == "plan"]
    assert [one.decision for one in decided] == ["reject", "approve"]
    assert {one.type for one in decided} == {"decision"}
    assert len(memory.get_working_steps(turn=6, type="plan")) == 2
    assert check_session(brief.session_id, sessions=tmp_path) == []
