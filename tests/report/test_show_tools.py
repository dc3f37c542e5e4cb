"""What a reader sees of steps with tools."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from mergepoint.core.errors import AnswerError
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import run_generation
from mergepoint.journal.transcript import Transcript, read_transcript
from mergepoint.report.call_text import call_view, to_json, to_text
from mergepoint.report.views import ToolCallView, ToolRound
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node
from mergepoint.tree.prompts import Template


def population(city: str) -> int:
    """Look up how many people live in a city."""
    return {"Oslo": 717710, "Bergen": 291940}[city]


def calls(*asked: tuple[str, dict[str, Any]], said: str = "") -> Answer:
    """Return an answer that calls tools."""
    return Answer(said, tool_calls=[{"name": name, "args": args} for name, args in asked])


FIRST = calls(
    ("population", {"city": "Oslo"}),
    ("population", {"city": "Atlantis"}),
    ("popul", {}),
    said="Let me look.",
)
ASK = Step(
    Template("How many people live in {{ city }}?"),
    name="ask",
    system="Be brief.",
    tools=[population],
    max_tool_rounds=2,
)


def ran(folder: Path, model: ScriptedModel, tree: Node) -> Transcript:
    """Run a tree, which may fail, and give its transcript as it is read from disk."""
    with contextlib.suppress(AnswerError):
        run_generation(
            tree, model=model, runs=folder, inputs={"city": "Oslo"}, ctx=RunContext(run_id="r")
        )
    return read_transcript(folder / "r" / "transcript.json")


TREE = Block([ASK, Step("Sure?", name="next")], inputs=["city"], name="q")


def test_a_step_shows_rounds_calls_and_results(tmp_path: Path) -> None:
    """Each answer that called tools is shown with arguments, results, errors, and where."""
    second = calls(("population", {"city": "Bergen"}))
    transcript = ran(tmp_path, ScriptedModel([FIRST, second, "717,710.", "Yes."]), TREE)
    view = call_view(transcript, "ask")
    assert view.rounds == (
        ToolRound(
            said="Let me look.",
            calls=(
                ToolCallView(
                    name="population", args={"city": "Oslo"}, path="q/ask/tool_01", result="717710"
                ),
                ToolCallView(
                    name="population",
                    args={"city": "Atlantis"},
                    path="q/ask/tool_02",
                    result="KeyError: 'Atlantis'",
                    failed=True,
                ),
                ToolCallView(
                    name="popul",
                    args={},
                    path=None,
                    result="Error: there is no tool 'popul'; there are: population",
                    failed=True,
                ),
            ),
        ),
        ToolRound(
            said="",
            calls=(
                ToolCallView(
                    name="population",
                    args={"city": "Bergen"},
                    path="q/ask/tool_04",
                    result="291940",
                ),
            ),
        ),
    )
    assert [(one.role, one.text) for one in view.seen] == [
        ("system", "Be brief."),
        ("user", "How many people live in Oslo?"),
    ]
    assert (view.kind, view.answer, view.inside) == ("step", "717,710.", ())
    assert view.usage is not None
    assert view.usage["output_tokens"] > 1
    assert to_json(view)["rounds"][0]["calls"][0]["result"] == "717710"
    shown = to_text(view)
    assert (
        """\
It called tools in 2 rounds
  1  Let me look.
     population(city="Oslo")  q/ask/tool_01
       717710
     population(city="Atlantis")  q/ask/tool_02, failed
       KeyError: 'Atlantis'
     popul()  failed
       Error: there is no tool 'popul'; there are: population
  2  (no text)
     population(city="Bergen")  q/ask/tool_04
       291940
"""
        in shown
    )
    seen = [one.role for one in call_view(transcript, "next").seen]
    assert seen == [
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


def test_an_execution_shows_what_the_model_read(tmp_path: Path) -> None:
    """A result is the answer of a tool, a failure an error that was told."""
    transcript = ran(tmp_path, ScriptedModel([FIRST, "717,710.", "Yes."]), TREE)
    good, bad = (call_view(transcript, f"ask/tool_{number:02}") for number in (1, 2))
    assert (good.kind, good.model, good.params, good.answer) == (
        "tool",
        "population",
        {"city": "Oslo"},
        "717710",
    )
    assert (bad.answer, bad.error) == (
        None,
        {"type": "told to the model", "message": "KeyError: 'Atlantis'"},
    )
    assert "tool      q/ask/tool_01\n" in to_text(good)
    assert "read by  the model of q/ask" in to_text(bad)


def test_a_step_that_failed_shows_how_far_it_came(tmp_path: Path) -> None:
    """After too many rounds the calls are there, and those that nobody executed too."""
    more = calls(("population", {"city": "Bergen"}))
    transcript = ran(tmp_path, ScriptedModel([more, more, more]), TREE)
    view = call_view(transcript, "ask")
    assert view.error is not None
    assert view.seen[-1].text == "How many people live in Oslo?"
    results = [call.result for one in view.rounds for call in one.calls]
    assert results == ["291940", "291940", None]
    assert "no result" in to_text(view)


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_a_graph_as_a_tool_shows_its_calls(tmp_path: Path, form: Any) -> None:
    """Its calls are listed below the execution, and each can be opened."""
    inner = Block([Step(Template("About {{ topic }}."), name="draft")], name="w", inputs=["topic"])
    tool = compile_graph(inner, model=ScriptedModel(default="Rain falls."), form=form).as_tool()
    model = ScriptedModel([calls(("w", {"topic": "rain"})), "Done."])
    transcript = ran(
        tmp_path, model, Block([Step("Go.", name="ask", tools=[tool])], inputs=["city"])
    )
    view = call_view(transcript, "pipeline/ask/tool_01/w/draft")
    assert (view.answer, view.seen[0].text) == ("Rain falls.", "About rain.")
    assert call_view(transcript, "ask").rounds[0].calls[0].result == "Rain falls."


def test_a_step_whose_first_request_failed_shows_its_prompt(tmp_path: Path) -> None:
    """The prompt is that of the failed request, since no answer has it."""
    tree = Block([ASK], name="q", inputs=("city",))
    with pytest.raises(TimeoutError):
        run_generation(
            tree,
            model=ScriptedModel([TimeoutError("late")]),
            inputs={"city": "Oslo"},
            runs=tmp_path,
            run_id="r",
        )
    view = call_view(read_transcript(tmp_path / "r" / "transcript.json"), "ask")
    assert view.seen[-1].text == "How many people live in Oslo?"
