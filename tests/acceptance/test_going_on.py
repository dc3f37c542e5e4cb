"""Every command to continue that the program prints is run as printed, and continues the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from tests.acceptance.shell import Ran, killed, on_terminal, piped
from tests.apps.command import ESSAY, command

from mergepoint.testing.server import Body, ModelServer, ServerReply

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]
ENV = {"OPENAI_API_KEY": "x"}
DELAY = 0.6  # seconds for an answer, so that a run can be stopped in the midst of it
ANSWERS = ((r"Continue\? \[y/N\]: ", "y\n"), (r"\[l\]ater: ", "a\n"), (r"(^|\n)> ", "\x04"))

TITLES = """\
name: titles
concurrency: 2
stages:
  - type: apply
    params: {prompt: "A title about {{ content }}."}
  - type: apply
    params: {prompt: "Make it shorter: {{ content }}"}
"""
GATED = '''\
"""An outline that a person approves, and a text."""

from mergepoint import Block, Gate, Step

outline = Gate(Step("Outline it.", name="outline"), name="approval")
tree = Block([outline, Step("Write it.", name="text")], name="talk")
'''
PLAN = {"intent": "Say hello.", "action": "chat", "skill": "", "steps": []}


@dataclass(frozen=True)
class Work:
    """A command without its model, and how many calls it makes."""

    command: str
    calls: int


WORKS = {
    "tree": Work("mergepoint run essay.py --input topic=rivers", 4),
    "recipe": Work("mergepoint run titles.yaml rain snow fog", 6),
}


@pytest.fixture(params=WORKS)
def work(request: pytest.FixtureRequest) -> Work:
    """Return what is run."""
    return WORKS[request.param]


@pytest.fixture(params=[False, True], ids=["piped", "terminal"])
def terminal(request: pytest.FixtureRequest) -> bool:
    """Return whether there is a terminal where the run is continued."""
    return bool(request.param)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in a folder with two trees and a recipe."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("essay.py", ESSAY), ("titles.yaml", TITLES), ("gated.py", GATED)):
        (tmp_path / name).write_text(text, encoding="utf-8")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """Yield a provider that takes its time, and gives every answer once."""
    numbers = count(1)
    with ModelServer(lambda body: ServerReply(f"Answer {next(numbers)}.", delay=DELAY)) as serving:
        yield serving


def failing(at: int, reply: ServerReply) -> Callable[[Body], ServerReply]:
    """Return the script of a provider whose answer to one request is another."""
    numbers = count(1)
    return lambda body: (
        reply if (number := next(numbers)) == at else ServerReply(f"Answer {number}.")
    )


def started(work: Work, server: ModelServer, *more: str) -> str:
    """Return the command that runs it on the server, as the run `r`."""
    words = ["--model", "openai:test", "--base-url", server.url, "--run-id", "r", *more]
    return f"{work.command} {' '.join(words)}"


def continued(ran: Ran, *, terminal: bool) -> Ran:
    """Run the printed command to continue."""
    line = ran.to_continue()
    return on_terminal(line, ENV, ANSWERS) if terminal else piped(line, ENV)


def recorded() -> int:
    """Return how many answers of the run are on record."""
    calls = command("show", "r", "--json").data["calls"]
    return sum(one["state"] == "answered" and one["kind"] == "step" for one in calls)


def check_continued(ran: Ran, work: Work, server: ModelServer, *, terminal: bool) -> None:
    """Check that the printed command asks for what has no answer on record, and for nothing else.

    In a recipe too, whose calls at the same time are in flight when it ends.
    """
    answered, asked = recorded(), len(server.log)
    assert 0 < answered < work.calls
    done = continued(ran, terminal=terminal)
    assert done.code == 0, done.shown
    assert len(server.log) - asked == work.calls - answered
    assert recorded() == work.calls


def test_behind_ctrl_c(work: Work, server: ModelServer, *, terminal: bool) -> None:
    """What landed is on record, and the rest is asked for."""
    line = started(work, server, "--yes")
    ran = on_terminal(line, ENV, interrupt=lambda shown: len(server.log) >= 2)
    assert ran.code == 130, ran.shown
    check_continued(ran, work, server, terminal=terminal)


def test_behind_a_kill(work: Work, server: ModelServer, *, terminal: bool) -> None:
    """`show` prints the line for a run that could print nothing any more."""
    killed(started(work, server, "--yes"), ENV, lambda: len(server.log) >= 4)
    show = "mergepoint show r"
    ran = on_terminal(show, ENV) if terminal else piped(show, ENV)
    check_continued(ran, work, server, terminal=terminal)


def test_behind_a_failure(work: Work, *, terminal: bool) -> None:
    """A provider that refused once is asked for what is left, by the line that was printed."""
    with ModelServer(failing(3, ServerReply("wrong key", status=401))) as server:
        ran = piped(started(work, server), ENV)
        assert ran.code == 1, ran.shown
        check_continued(ran, work, server, terminal=terminal)


def test_behind_a_truncated_answer(*, terminal: bool) -> None:
    """An answer that was cut off is no answer: it is asked for again."""
    with ModelServer(failing(3, ServerReply("An ans", finish_reason="length"))) as server:
        ran = piped(started(WORKS["tree"], server), ENV)
        assert ran.code == 1, ran.shown
        check_continued(ran, WORKS["tree"], server, terminal=terminal)


def test_behind_a_limit_of_calls(work: Work, server: ModelServer, *, terminal: bool) -> None:
    """The printed limit is one that suffices, however often it has to be raised."""
    ran = piped(started(work, server, "--budget", "calls=2"), ENV)
    assert recorded() == len(server.log) == 2
    for _ in range(3):
        if len(server.log) == work.calls:
            break
        ran = continued(ran, terminal=terminal)
    assert (ran.code, len(server.log), recorded()) == (0, work.calls, work.calls), ran.shown


@pytest.mark.parametrize("graph", ["plan_approve", "plan_code_execute"])
def test_behind_open_gates(graph: str) -> None:
    """The printed answers lead from gate to gate to the end."""
    inputs = {
        "plan_approve": "topic=rain",
        "plan_code_execute": "request='Sum the sales by month.'",
    }
    ran = piped(f"mergepoint run {graph} --input {inputs[graph]}", ENV)
    assert ran.code == 4
    for _ in range(5):
        if ran.code != 4:
            break
        ran = continued(ran, terminal=False)
    assert ran.code == 0, ran.shown


def test_behind_an_open_gate_of_a_real_model(server: ModelServer, *, terminal: bool) -> None:
    """Who decides later is given the line that approves; the call before it is not made again."""
    line = started(Work("mergepoint run gated.py", 2), server, "--yes")
    later = ((r"\[l\]ater: ", "l\n"),)
    ran = on_terminal(line, ENV, later) if terminal else piped(line, ENV)
    assert (ran.code, len(server.log)) == (4, 1), ran.shown
    shown = piped("mergepoint show r", ENV)
    assert shown.to_continue() == ran.to_continue()
    done = continued(ran, terminal=terminal)
    assert (done.code, len(server.log)) == (0, 2), done.shown


def chat(server: ModelServer, *more: str) -> str:
    """Return the command that talks with the model of the server."""
    return " ".join(["mergepoint chat --model openai:test --base-url", server.url, *more])


def test_behind_a_turn_that_failed(*, terminal: bool) -> None:
    """The session goes on with its model, and the plan is not asked for again."""
    with ModelServer([PLAN, ServerReply("wrong key", status=401), "Hello."]) as server:
        ran = piped(chat(server, "-m Hi"), ENV)
        assert (ran.code, len(server.log)) == (1, 2), ran.shown
        done = continued(ran, terminal=terminal)
        assert (done.code, len(server.log)) == (0, 3), done.shown
        assert "Hello." in done.shown


def test_behind_a_turn_that_is_left_for_later(*, terminal: bool) -> None:
    """The question is asked again, and what was approved goes on to the answer."""
    line = 'mergepoint chat -m "Sum the sales by region."'
    ran = on_terminal(line, ENV, ((r"\[l\]ater: ", "l\n"),)) if terminal else piped(line, ENV)
    assert ran.code == 4, ran.shown
    line = ran.to_continue()
    if terminal:
        done = on_terminal(line, ENV, ANSWERS)
    else:
        done = piped(f"printf 'a\\na\\n' | {line}", ENV)
    assert done.code == 0, done.shown
    assert "Total: 40546.40" in done.shown


def test_behind_a_turn_that_was_killed() -> None:
    """The line that the talk began with is enough: the answered plan is not asked for again."""
    replies = iter([ServerReply(PLAN), ServerReply("Never read.", delay=60)])
    with ModelServer(lambda body: next(replies, ServerReply("Hello."))) as server:
        killed(chat(server, "-m Hi"), ENV, lambda: len(server.log) == 2)
        ran = piped("mergepoint sessions show last", ENV)
        done = continued(ran, terminal=False)
        assert (done.code, len(server.log)) == (0, 3), done.shown
        assert "Hello." in done.shown


def test_behind_ctrl_c_in_a_turn() -> None:
    """It says what is waited for, cancels the turn, and leaves a talk with the same model."""
    replies = iter([ServerReply(PLAN), ServerReply("Never read.", delay=4)])
    with ModelServer(lambda body: next(replies, ServerReply(PLAN))) as server:
        ran = on_terminal(chat(server, "-m Hi"), ENV, interrupt=lambda shown: len(server.log) == 2)
        assert "Ctrl-C again" in ran.shown
        assert "Canceled" in ran.shown
        done = continued(ran, terminal=True)
        assert (done.code, len(server.log)) == (0, 2), done.shown
        assert "session" in done.shown
