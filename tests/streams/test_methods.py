"""How the stages of a recipe ask for structured output can be chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel
from tests.apps.command import command
from tests.provider import client

from mergepoint.core.errors import AnswerError, MergepointError
from mergepoint.models.responses import json_of
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import recipe_from_yaml, recipe_to_yaml
from mergepoint.testing.server import Body, ModelServer, ServerReply
from mergepoint.tree.leaves import Method


def answer(body: Body) -> str | ServerReply:
    """Answer as a server that knows nothing of structured output: it takes no such request."""
    if "response_format" in body or "tools" in body:
        return ServerReply(status=400)
    system = body["messages"][0]["content"] if body["messages"][0]["role"] == "system" else ""
    if "tone" in system:
        return 'Here it is:\n```json\n{"tone": "calm"}\n```'
    return '{"score": 50, "feedback": "It rains."}' if "JSON schema" in system else "Rain."


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """Yield a server without structured output."""
    with ModelServer(answer) as serving:
        yield serving


def recipe(method: Method | None = None) -> Recipe:
    """Return a recipe that judges an answer and annotates it."""
    return Recipe(
        "judged",
        (
            Stage("generate"),
            Stage("critique", method=method),
            Stage("annotate", params={"fields": {"tone": "text"}}, method=method),
        ),
    )


@pytest.mark.parametrize("whole", [False, True])
def test_a_prompt_asks_servers_without_structured_output(
    server: ModelServer, *, whole: bool
) -> None:
    """A stage says so, or the whole run; scores and annotations come from the text."""
    own: Method | None = None if whole else "prompt"
    runs: Method | None = "prompt" if whole else None
    model = client(server.url)
    done = run_recipe(recipe(own), ["rain"], model=model, runs=None, method=runs)
    (thing,) = done.things
    assert (thing.props["score"], thing.props["reason"]) == (50, "It rains.")
    assert thing.props["tone"] == "calm"


def test_a_compiled_recipe_takes_a_method(server: ModelServer) -> None:
    """The graph asks as the run does."""
    graph = compile_recipe(recipe(), model=client(server.url), method="prompt")
    (thing,) = graph.invoke({"items": ["rain"]})["things"]
    assert thing["props"]["score"] == 50


def test_an_answer_that_is_no_json_names_the_way_out() -> None:
    """What does not fit says where, and which methods there are."""
    with ModelServer(lambda _: "No JSON.") as server:
        done = run_recipe(recipe(), ["rain"], model=client(server.url), runs=None)
    (thing,) = done.failed
    assert "choose another method" in thing.props["reason"]


@pytest.mark.parametrize("method", ["function_calling", "json_mode", "prompt"])
def test_the_way_out_leaves_out_the_method_in_use(method: Method) -> None:
    """The methods that are named are others than the step's own."""

    class Score(BaseModel):
        score: int

    with pytest.raises(AnswerError) as caught:
        json_of(Score, method)(AIMessage("No JSON."))
    named = str(caught.value).rpartition("(")[2]
    assert method not in named
    assert " or " in named


def test_a_method_stays_in_the_text_of_a_recipe() -> None:
    """It is written and read, and one that there is not is told."""
    text = recipe_to_yaml(recipe("json_mode"))
    assert "method: json_mode" in text
    assert recipe_from_yaml(text).stages[1].method == "json_mode"
    with pytest.raises(MergepointError, match="method is one of"):
        recipe_from_yaml(text.replace("json_mode", "json_mod"))


def test_the_command_takes_a_method_and_a_resume_keeps_it(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run behind a limit goes on by the printed command, since the method is recorded."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.chdir(tmp_path)
    Path("judged.yaml").write_text(recipe_to_yaml(recipe()), encoding="utf-8")
    real = ("--model", "openai:test", "--base-url", server.url, "--method", "prompt", "--yes")
    first = command("run", "judged.yaml", "rain", *real, "--budget", "calls=1")
    assert "resume       mergepoint resume" in first.err
    (run,) = (path.name for path in Path("runs").iterdir())
    again = command("resume", run, "--budget", "calls=9", "--yes", "--json")
    assert again.code == 0
    assert json.loads(again.out.splitlines()[0])["props"]["score"] == 50
