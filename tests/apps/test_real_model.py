"""Real models: the announcement, a server of one's own, and what is missing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.apps.command import Outcome, command, only_transcript, paths

from mergepoint.core.errors import install_command
from mergepoint.testing.server import ModelServer, ServerReply

TOPIC = ("--input", "topic=rivers")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """Yield a server on loopback that answers every request."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with ModelServer(lambda body: f"Answer to {len(body['messages'])} messages.") as serving:
        yield serving


def real(server: ModelServer) -> tuple[str, ...]:
    """Return the options that name the server's model."""
    return ("--model", "openai:test", "--base-url", server.url)


def at(server: ModelServer) -> str:
    """Return how the announcement names the server's model."""
    return f"openai:test at {server.url.removesuffix('/v1')}"


def test_an_address_of_the_environment_is_kept_for_a_resume(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that it led to a server of one's own never goes on at the provider's."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    about = ("--model", "openai:test", "--budget", "calls=2", "--run-id", "r")
    stopped = command("run", "essay.py", *TOPIC, *about)
    assert stopped.err.splitlines()[1] == f"4 model calls coming: all to {at(server)}."
    assert f"--base-url 'openai:*={server.url}'" in stopped.err
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert command("resume", "r", "--budget", "calls=4").code == 0
    assert len(server.log) == 4


def test_a_model_behind_a_base_url_answers(server: ModelServer) -> None:
    """Every step is a request to the server, and the transcript names the model."""
    run = command("run", "essay.py", *TOPIC, *real(server))
    assert run.code == 0, run.err
    assert len(server.log) == 4
    assert {step["model"] for step in only_transcript()["steps"]} == {"openai:test"}
    assert "not a language model" not in run.err
    assert only_transcript()["usage"]["total_tokens"] > 0


def test_coming_calls_are_announced_before_the_first(server: ModelServer) -> None:
    """The prediction, the count and the model come first; without a terminal nobody is asked."""
    run = command("run", "essay.py", *TOPIC, *real(server))
    explained = command("explain", "essay.py", *TOPIC, *real(server))
    assert run.err.splitlines()[0] == explained.out.splitlines()[-1]
    assert "Predicted: 4 model calls, about " in run.err
    assert run.err.splitlines()[1] == f"4 model calls coming: all to {at(server)}."


def test_calls_that_steps_send_elsewhere_are_counted_apart(server: ModelServer) -> None:
    """Only real models are announced, those of single steps too."""
    run = command("run", "essay.py", *TOPIC, *real(server), "--set", "**/first:model=offline")
    assert run.err.splitlines()[1] == f"3 model calls coming: all to {at(server)}."
    models = [step["model"] for step in only_transcript()["steps"]]
    assert models.count("mergepoint:offline") == 1


def test_the_offline_model_is_not_announced() -> None:
    """Nothing is paid, so nothing is announced."""
    run = command("run", "essay.py", *TOPIC)
    assert "coming" not in run.err
    assert "Predicted" not in run.err


def test_quiet_and_yes_say_nothing(server: ModelServer) -> None:
    """Who said yes beforehand, and wants quiet, gets it."""
    run = command("run", "essay.py", *TOPIC, *real(server), "--quiet", "--yes")
    assert (run.code, run.err) == (0, "")
    loud = command("run", "essay.py", *TOPIC, *real(server), "--quiet")
    assert loud.err == f"4 model calls coming: all to {at(server)}.\n"


def test_a_provider_that_refuses_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 401 in the middle is a failure at its path; what was answered before is on disk."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with ModelServer(["Fine.", ServerReply("wrong key", status=401)]) as server:
        run = command("run", "essay.py", *TOPIC, *real(server))
    assert run.code == 1
    assert re.search(r"failed at essay/threads/first: \w*AuthenticationError: .*wrong key", run.err)
    transcript = only_transcript()
    assert paths(transcript) == ["essay/draft"]
    assert transcript["failures"][0]["path"] == "essay/threads/first"


SETTINGS = ("--temperature", "0.3", "--max-tokens", "40", "--timeout", "90")


@pytest.fixture
def keyless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def sent(server: ModelServer) -> list[tuple[object, object]]:
    """Return temperature and limit of each request."""
    return [
        (one.body.get("temperature"), one.body.get("max_completion_tokens")) for one in server.log
    ]


def test_settings_reach_every_call_and_a_resume_keeps_them(
    server: ModelServer, keyless: None
) -> None:
    """A run sends them to steps that do not set their own, and so does its resume."""
    own = ("--set", "**/draft:temperature=0.9", "--budget", "calls=2")
    run = command("run", "essay.py", *TOPIC, *real(server), *SETTINGS, *own, "--run-id", "r")
    assert run.code == 1
    assert sent(server) == [(0.9, 40), (0.3, 40)]
    run = command("resume", "r", "--budget", "calls=9")
    assert run.code == 0, run.err
    assert sent(server) == [(0.9, 40), *[(0.3, 40)] * 3]


def test_recipes_and_the_chat_send_settings(server: ModelServer, keyless: None) -> None:
    """The commands that call models in other ways send the same."""
    run = command("run", "step_back", "Why?", *real(server), *SETTINGS)
    assert run.code == 0, run.err
    assert sent(server) == [(0.3, 40)] * len(server.log)
    before = len(server.log)
    command("chat", "-m", "Hello.", *real(server), *SETTINGS)
    assert len(server.log) > before
    assert {limit for _, limit in sent(server)} == {40}


def test_each_model_has_an_address(server: ModelServer, keyless: None) -> None:
    """An address may name its model; a step's model is asked at its own."""
    with ModelServer(lambda body: "other") as other:
        run = command(
            "run", "essay.py", *TOPIC, *real(server), "--set", "**/first:model=openai:own",
            "--base-url", f"openai:o*={other.url}",
        )  # fmt: skip
    assert run.code == 0, run.err
    assert (len(server.log), len(other.log)) == (3, 1)


def test_settings_that_cannot_be_are_refused(keyless: None) -> None:
    """What is wrong with an option is said before anything is written."""
    for option in (("--timeout", "0"), ("--base-url", "localhost:8080")):
        run = command("run", "essay.py", *TOPIC, "--model", "openai:test", *option)
        assert run.code == 2
        assert option[0].strip("-").replace("-", "_") in run.err
    assert not Path("runs").exists()


def test_a_model_without_its_key_is_refused() -> None:
    """The provider's package says what is missing before anything is written."""
    run = command("run", "essay.py", *TOPIC, "--model", "openai:test")
    assert run.code == 2
    assert "Can't create model 'openai:test'" in run.err
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
    assert install_command("anthropic") in run.err
    assert ("essay/draft: " in run.err) is by_step
    assert not Path("runs").exists()


def printed(run: Outcome) -> list[str]:
    """Return the words of the command that a run printed last, to go on."""
    return shlex.split(run.err.splitlines()[-1].partition("resume: mergepoint ")[2])


def test_the_printed_command_goes_on_behind_a_budget(server: ModelServer) -> None:
    """It names model, address and a larger limit; what is left is asked for, what was paid told."""
    run = command("run", "essay.py", *TOPIC, *real(server), "--budget", "calls=2", "--run-id", "r")
    assert run.code == 1
    words = printed(run)
    assert words == ["resume", "r", *real(server), "--budget", "calls=4"]
    done = command(*words)
    assert (done.code, len(server.log)) == (0, 4)
    assert done.err.splitlines()[0] == f"2 model calls left: all to {at(server)} (2 recorded)."
    paid = next(line for line in done.err.splitlines() if line.startswith("paid"))
    assert re.fullmatch(r"paid +2 calls paid now, [\d,]+ tokens, unknown; 2 recorded", paid)


def test_the_printed_command_raises_a_limit_inside_of_the_tree(server: ModelServer) -> None:
    """A budget of a block is set for that block; what was answered is not paid again."""
    limited = ("--set", 'threads:budget={"calls": 1}')
    run = command("run", "essay.py", *TOPIC, *real(server), *limited, "--run-id", "r")
    assert run.code == 1
    assert command(*printed(run)).code == 0
    assert len(server.log) == 4


def test_a_run_that_has_all_on_record_asks_for_nothing(server: ModelServer) -> None:
    """A replay, and a reuse of the same, announce no call, make none, and say so at the end."""
    assert command("run", "essay.py", *TOPIC, *real(server), "--run-id", "r").code == 0
    for way in ("--replay", "--reuse"):
        again = command("run", "essay.py", *TOPIC, *real(server), way, "r")
        assert (again.code, len(server.log)) == (0, 4)
        assert "model call" not in again.err
        assert "0 calls paid now; 4 recorded" in again.err
    data = command("run", "essay.py", *TOPIC, *real(server), "--replay", "r", "--json").data
    assert (data["spent"]["now"]["calls"], data["spent"]["calls_from_record"]) == (0, 4)


def test_a_failed_resume_says_what_it_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops again knows what this attempt cost."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    broken = ServerReply("no", status=401)
    with ModelServer(["Fine.", broken, "Good.", broken]) as server:
        run = command("run", "essay.py", *TOPIC, *real(server), "--run-id", "r")
        again = command(*printed(run))
    assert (run.code, again.code) == (1, 1)
    assert re.search(r"^  2 calls paid now, .*; 1 recorded$", again.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--model", "openai:other"), "its model differs"),
        (("--set", "draft:prompt=Else."), "its prompt differs"),
        (("--set", "draft:temperature=0.5"), "its params differs"),
        (("--set", "draft:system=Be kind."), "its system differs"),
    ],
)
def test_a_difference_names_its_field(
    server: ModelServer, change: tuple[str, ...], said: str
) -> None:
    """A resume of something else says at each path which part of the step it is."""
    command("run", "essay.py", *TOPIC, *real(server), "--budget", "calls=1", "--run-id", "r")
    refused = command("resume", "r", *real(server), *change)
    assert refused.code == 2
    assert f"essay/draft: is another step than the run began with: {said}" in refused.err
