"""The campaigns would notice: what is lost, paid again, asked twice or swapped is counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.crash.campaign import Killed, gone, repeated
from tests.crash.command import main
from tests.crash.doomed import AskingModel, ended
from tests.crash.expected import calm, differences
from tests.crash.person import Person
from tests.crash.served import Served, answer_to
from tests.crash.survey import Asked, Survey, bars
from tests.crash.trees import turning

from mergepoint import CallRecord, RunContext, run_generation
from mergepoint.journal.call_records import CallKey
from mergepoint.journal.file_journal import FileStore


def record(path: str, key: str = "") -> CallRecord:
    """Return the record of a call that was answered to what has this key."""
    return CallRecord(key=CallKey("r1", "", path), prompt="", response=f"answer {key} so")


def killed(came: Sequence[str], *records: CallRecord) -> Killed:
    """Return a process that was killed when this had come in and been recorded."""
    return Killed(frozenset(came), records)


def served(**asked: list[int]) -> Served:
    """Return the log of a server that was asked for these keys by these processes."""
    log = Served(0.0)
    log.asked.update(asked)
    return log


def test_a_call_in_flight_is_told_from_one_that_had_come_in() -> None:
    """Only an answer that had reached the process counts as paid again."""
    survey = Survey()
    repeated([killed(["a"]), killed([])], served(a=[0, 1], b=[0, 2], c=[0]), survey)
    assert (survey.again, survey.in_flight, survey.lost) == (1, 1, 0)


def test_a_call_on_record_that_is_asked_again_is_lost() -> None:
    """A record that is not used is as bad as one that is gone."""
    survey = Survey()
    repeated([killed(["a"], record("x", "a"))], served(a=[0, 1]), survey)
    assert survey.lost == 1


def test_a_record_that_is_gone_is_counted_once() -> None:
    """What two kills had seen and the end lacks is one record."""
    seen = [killed([], record("x")), killed([], record("x"), record("y"))]
    assert gone(seen, [record("y")]) == 1


def test_a_survey_holds_below_its_limit_only() -> None:
    """One of five hundred answered calls may be made again; nothing may be wrong or lost."""
    assert Survey(came=500, again=1).holds
    assert not Survey(came=499, again=1).holds
    assert not Survey(lost=1).holds
    assert not Survey(wrong=["x"]).holds
    assert not Asked(twice=1).holds


def person(*, all_listed: bool = True) -> tuple[Person, Asked]:
    """Return a person, and what is counted of them."""
    survey = Asked()
    chance = random.Random(1)  # noqa: S311  (no secrets)
    return Person(chance, survey, all_listed=all_listed), survey


def test_a_person_notices_a_question_whose_answer_was_taken() -> None:
    """In the same process, and in a later one, where only the record tells of it."""
    somebody, survey = person()
    somebody.hear([("open", ("a",)), ("kept", "a"), ("open", ("a",))])
    assert (survey.asked, survey.twice, survey.second) == (2, 1, 0)
    somebody.goes_on(["a", "b"])
    somebody.hear([("open", ("b",))])
    assert survey.twice == 2


def test_a_person_tells_a_second_question_from_a_repeated_one() -> None:
    """An answer that went off and was not taken is asked for a second time once."""
    somebody, survey = person()
    somebody.hear([("open", ("a",))])
    assert list(somebody.answers()) == ["a"]
    assert somebody.situation(()) == "an answer on its way"
    somebody.goes_on(())
    told: list[tuple[str, Any]] = [("open", ("a",))]
    assert somebody.hear(told)
    somebody.hear([*told, ("open", ("a",))])
    assert (survey.twice, survey.second, survey.on_their_way) == (0, 1, 1)


def test_another_end_is_told_in_each_way(tmp_path: Path) -> None:
    """An end that is not that of the journal, the interpreter and the calm run has three faults."""
    tree = turning(answer_to)
    done = run_generation(
        tree, model=AskingModel(ask=answer_to), ctx=RunContext(run_id="r1"), runs=tmp_path
    )
    end, undisturbed = ended(done.messages, done.outputs), calm(turning, "r1")
    store = FileStore(tmp_path)
    assert list(differences(turning, store, "r1", end, undisturbed)) == []
    end["outputs"]["a"] = "another"
    assert len(list(differences(turning, store, "r1", end, undisturbed))) == 3


def test_bars_are_as_long_as_there_are_kills() -> None:
    """A row that would be too long for a line shortens all of them."""
    assert list(bars([("a", 2), ("bb", 1)])) == ["a   ## 2", "bb  # 1"]
    assert list(bars([("a", 400), ("b", 1)])) == [f"a  {'#' * 40} 400", "b  # 1"]


def test_the_command_tells_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Its help names the campaigns, and lines that can be copied."""
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert "python -m tests.crash calls --kills 200" in said
    assert "python -m tests.crash recipe --kills 200 --form graph --saver sqlite" in said
    assert "nested, parallel and looping" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["recipe", "--form", "fused"], "--form of recipe is one of run, graph, not fused"),
        (["calls", "--form", "run"], "--form of calls is one of subgraphs, fused, not run"),
        (["recipe", "--form", "run", "--saver", "sqlite"], "give --saver none, or --form graph"),
    ],
)
def test_the_command_refuses_what_does_not_go_together(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A form of another campaign, or a saver where there is none, is told before any kill."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err


@pytest.mark.campaign
def test_the_command_prints_a_row_for_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a recipe: a run, a graph, and a graph with a saver, each with what came of one kill."""
    status = main(["recipe", "--kills", "1", "--latency", "0.01"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line[:2] == "| "]
    assert [row[:3] for row in rows[1:]] == [
        ["| run", "none", "1"],
        ["| graph", "none", "1"],
        ["| graph", "sqlite", "1"],
    ]
    assert [row[5:7] for row in rows[1:]] == [["0", "0"]] * 3
    assert status == (0 if all(row[-1] == "yes |" for row in rows[1:]) else 1)
