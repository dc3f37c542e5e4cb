"""Budgets and prices on the command line, and what a run used as a tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.apps.command import command, only_transcript, paths

from mergepoint import Usage
from mergepoint.apps.cli.summary import cost_of, usage_rows
from mergepoint.testing.server import ModelServer, ServerReply

TOPIC = ("--input", "topic=rivers")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """Yield a server on loopback whose answers use 1,000 and 100 tokens."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with ModelServer(lambda body: ServerReply("Answer.", usage=(1_000, 100))) as serving:
        yield serving


def real(server: ModelServer) -> tuple[str, ...]:
    """Return the options that name the server's model."""
    return ("--model", "openai:test", "--base-url", server.url)


def test_the_summary_is_a_tree_whose_parents_add_up(server: ModelServer) -> None:
    """Calls, tokens and cost of each node stand below those of its parent, and in the JSON."""
    priced = ("--price", "openai:*=1,10")
    run = command("run", "essay.py", *TOPIC, *real(server), *priced)
    rows = [line.split() for line in run.err.splitlines()]
    start = next(number for number, row in enumerate(rows) if row[:1] == ["usage"])
    assert rows[start : start + 6] == [
        ["usage", "calls", "tokens", "cost"],
        ["essay", "4", "4,400", "$0.0080"],
        ["draft", "1", "1,100", "$0.0020"],
        ["threads", "2", "2,200", "$0.0040"],
        ["first", "1", "1,100", "$0.0020"],
        ["second", "1", "1,100", "$0.0020"],
    ]
    transcript = only_transcript()
    assert transcript["usage"]["cost"] == 0.008
    assert transcript["usage_by_path"]["essay/threads"]["cost"] == 0.004
    assert [step["cost"] for step in transcript["steps"]] == [0.002] * 4


def test_a_run_without_tokens_shows_no_tree() -> None:
    """Replayed answers used nothing, so there is nothing to show."""
    assert "usage" in command("run", "essay.py", *TOPIC).err
    assert "usage" not in command("run", "essay.py", *TOPIC, "--replay", "last").err


def test_a_budget_stops_the_run_and_a_larger_one_goes_on(server: ModelServer) -> None:
    """What is exceeded is told in one sentence, and a resumed run has what is left."""
    run = command("run", "essay.py", *TOPIC, *real(server), "--budget", "calls=2")
    assert run.code == 1
    assert "the budget of essay, 2 calls, is not enough" in run.err
    assert paths(only_transcript()) == ["essay/draft", "essay/threads/first"]
    more = command("resume", "last", *real(server), "--budget", "calls=4")
    assert more.code == 0, more.err
    assert len(server.log) == 4


def test_a_budget_may_keep_what_there_is(server: ModelServer) -> None:
    """With on_exhausted=keep the run ends well with what was made."""
    limits = ("--budget", "calls=1", "--budget", "on_exhausted=keep")
    run = command("run", "essay.py", *TOPIC, *real(server), *limits)
    assert (run.code, run.out) == (0, "Answer.\n")


def test_a_budget_in_usd_needs_prices(server: ModelServer) -> None:
    """Every step and its model are listed, nothing is asked, and the way out is told."""
    run = command("run", "essay.py", *TOPIC, *real(server), "--budget", "usd=0.50")
    assert run.code != 0
    assert run.err.count("no price of 'openai:test' is known") == 4
    assert server.log == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--budget", "usd"), "Use KIND=LIMIT"),
        (("--budget", "euro=1"), "no 'euro'"),
        (("--budget", "calls=1.5"), "calls is an integer"),
        (("--budget", "usd=nan"), "usd is a finite number"),
        (("--budget", "calls=1", "--budget", "calls=2"), "calls is set twice"),
        (("--price", "openai:test"), "Use PROVIDER:NAME=IN,OUT"),
        (("--price", "openai:test=1"), "Use PROVIDER:NAME=IN,OUT"),
        (("--price", "openai:test=1,-2"), "output_per_million must be a finite number"),
    ],
)
def test_an_option_that_is_none_is_refused(options: tuple[str, ...], problem: str) -> None:
    """The option is named, with what it takes, before anything runs."""
    run = command("run", "essay.py", *TOPIC, *options)
    assert run.code == 2
    assert problem in run.err


def test_a_large_tree_is_shown_to_its_second_level() -> None:
    """What is below is counted, and said to be in the transcript."""
    one = Usage(calls=1, total_tokens=5, cost=0.1)
    leaves = {f"p/b{n}/s{m}": one for n in range(3) for m in range(5)}
    blocks = {f"p/b{n}": Usage(calls=5, total_tokens=25, cost=0.5) for n in range(3)}
    whole = {"p": Usage(calls=15, total_tokens=75, cost=1.5), **blocks, **leaves}
    rows = usage_rows(whole)
    assert [row.split()[0] for row in rows] == ["calls", "p", "b0", "b1", "b2", "(15"]
    assert rows[-1] == "(15 more in the transcript)"


@pytest.mark.parametrize(
    ("used", "text"),
    [
        (Usage(calls=1), "$0.0000"),
        (Usage(calls=1, cost=0.1), "$0.1000"),
        (Usage(calls=1, cost=12), "$12.0000"),
        (Usage(calls=1, cost=0.0000012), "$0.0000012"),
        (Usage(calls=1, unknown_cost_calls=1), "unknown"),
        (
            Usage(calls=3, cost=0.25, estimated=1, unknown_cost_calls=1),
            "$0.2500 (1 estimated, 1 unknown)",
        ),
    ],
)
def test_a_cost_is_told_with_what_is_not_known_of_it(used: Usage, text: str) -> None:
    """At least four decimals, more for a small sum, and a word for what is missing."""
    assert cost_of(used) == text


def test_a_resume_keeps_the_budget_unless_another_is_given(server: ModelServer) -> None:
    """The options are written down with the command, and those of the resume stand over them."""
    priced = ("--price", "openai:*=1,10")
    command("run", "essay.py", *TOPIC, *real(server), *priced, "--budget", "calls=2")
    again = command("resume", "last")
    assert again.code == 1
    assert "2 calls spent" in again.err
    done = command("resume", "last", "--budget", "calls=4")
    assert done.code == 0, done.err
    assert len(server.log) == 4
    assert only_transcript()["usage"]["cost"] == 0.008
