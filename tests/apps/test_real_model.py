"""Real models: the announcement, a server of one's own, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.apps.command import command, only_transcript, paths

from mergepoint.testing.server import ModelServer, Reply

TOPIC = ("--input", "topic=rivers")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """Give a server on loopback that answers every request."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with ModelServer(lambda body: f"Answer to {len(body['messages'])} messages.") as serving:
        yield serving


def real(server: ModelServer) -> tuple[str, ...]:
    """Give the options that name the server's model."""
    return ("--model", "openai:test", "--base-url", server.url)


def test_a_model_behind_a_base_url_answers(server: ModelServer) -> None:
    """Every step is a request to the server, and the transcript names the model."""
    run = command("run", "essay.py", *TOPIC, *real(server))
    assert run.code == 0, run.err
    assert len(server.log) == 4
    assert {step["model"] for step in only_transcript()["steps"]} == {"openai:test"}
    assert "not a language model" not in run.err
    assert only_transcript()["usage"]["total_tokens"] > 0


def test_coming_calls_are_announced_before_the_first(server: ModelServer) -> None:
    """The count and the model are the first thing said; without a terminal nobody is asked."""
    run = command("run", "essay.py", *TOPIC, *real(server))
    assert run.err.splitlines()[0] == "4 model calls coming: all to openai:test."


def test_calls_that_steps_send_elsewhere_are_counted_apart(server: ModelServer) -> None:
    """Only real models are announced, those of single steps too."""
    run = command("run", "essay.py", *TOPIC, *real(server), "--set", "**/first:model=offline")
    assert run.err.splitlines()[0] == "3 model calls coming: all to openai:test."
    models = [step["model"] for step in only_transcript()["steps"]]
    assert models.count("mergepoint:offline") == 1


def test_the_offline_model_is_not_announced() -> None:
    """Nothing is paid, so nothing is announced."""
    assert "coming" not in command("run", "essay.py", *TOPIC).err


def test_quiet_and_yes_say_nothing(server: ModelServer) -> None:
    """Who said yes beforehand, and wants quiet, gets it."""
    run = command("run", "essay.py", *TOPIC, *real(server), "--quiet", "--yes")
    assert (run.code, run.err) == (0, "")
    loud = command("run", "essay.py", *TOPIC, *real(server), "--quiet")
    assert loud.err == "4 model calls coming: all to openai:test.\n"


def test_a_provider_that_refuses_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 401 in the middle is a failure at its path; what was answered before is on disk."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with ModelServer(["Fine.", Reply("wrong key", status=401)]) as server:
        run = command("run", "essay.py", *TOPIC, *real(server))
    assert run.code == 1
    assert re.search(r"failed at essay/threads/first: \w*AuthenticationError: .*wrong key", run.err)
    transcript = only_transcript()
    assert paths(transcript) == ["essay/draft"]
    assert transcript["failures"][0]["path"] == "essay/threads/first"


def test_a_model_without_its_key_is_refused() -> None:
    """The provider's package says what is missing before anything is written."""
    run = command("run", "essay.py", *TOPIC, "--model", "openai:test")
    assert run.code == 2
    assert "model 'openai:test' cannot be had" in run.err
    assert "OPENAI_API_KEY" in run.err
    assert not Path("runs").exists()


@pytest.mark.skipif(find_spec("langchain_anthropic") is not None, reason="it is installed here")
@pytest.mark.parametrize("by_step", [False, True])
def test_a_provider_that_is_not_installed_says_which_extra(by_step: bool) -> None:  # noqa: FBT001
    """The way out is the line that installs it, for the run's model and for a step's."""
    name = "anthropic:claude"
    options = ("--set", f"draft:model={name}") if by_step else ("--model", name)
    run = command("run", "essay.py", *TOPIC, *options)
    assert run.code == 2
    assert "pip install 'mergepoint[anthropic]'" in run.err
    assert ("essay/draft: " in run.err) is by_step
    assert not Path("runs").exists()
