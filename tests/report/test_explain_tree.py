"""Explanations of single trees: ranges, lengths, captures, warnings, and invalid input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import mergepoint
from mergepoint import Block, Call, Gate, Input, Loop, Price, Step, Template, TreeError, explain
from mergepoint.core.errors import StepError
from mergepoint.models.pricing import context_window
from mergepoint.report.explain_text import (
    captures_line,
    explanation_text,
    step_text,
    summary_line,
)
from mergepoint.report.explanation import Explanation
from mergepoint.report.token_estimate import estimate_tokens
from mergepoint.targets import find_target
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.nodes import Node

MODEL = "openai:gpt-5-mini"
LONG = "A dull word. " * 30


def messages_of(explained: Explanation) -> list[str]:
    """Return all warnings of an explanation, with their paths."""
    return [f"{one.path}: {one.message}" for one in explained.warnings]


def looping(**fields: Any) -> Node:
    """Return a tree with a loop of up to three iterations, and a step after it."""
    body = [Step("Say more.", name="say", capture_key="said")]
    return Block(
        [
            Loop(body, until="said", name="loop", max_iterations=3, **fields),
            Step("End.", name="end"),
        ],
        name="t",
    )


def test_calls_of_a_loop_are_a_range() -> None:
    """A loop gives the range of its iterations, and the prompts inside grow with each."""
    explained = explain(looping(), model=MODEL)
    assert explained.calls == (2, 4)
    say, end = explained.steps
    assert (say.path, say.calls) == ("t/loop/iteration_01/say", (1, 3))
    assert say.tokens == say.input_tokens[0] < (say.input_tokens[1] or 0)
    assert end.calls == (1, 1)
    assert explain(looping(may_skip=True), model=MODEL).calls == (1, 4)


def test_iterations_that_are_set_are_listed() -> None:
    """With a number of iterations, each is a step of its own that sees the ones before."""
    explained = explain(looping(), model=MODEL, iterations={"t/loop": 2})
    assert explained.calls == (3, 3)
    second = next(one for one in explained.steps if "iteration_02" in one.path)
    assert [one.path for one in second.sees] == [
        "t/loop/iteration_01/say",
        "t/loop/iteration_01/say",
        None,
    ]
    with pytest.raises(StepError, match="1 to 3 iterations, not 4"):
        explain(looping(), iterations={"t/loop": 4})
    with pytest.raises(StepError, match=r"no loop at 't/lop' \(did you mean 't/loop'"):
        explain(looping(), iterations={"t/lop": 1})


def test_a_rejection_may_end_the_run() -> None:
    """A gate that stops the run on rejection makes later calls optional; others don't."""

    def gated(act: Any) -> Node:
        inside = Step("Draft.", name="draft")
        return Block([Gate(inside, name="ok", on_reject=act), Step("End.", name="end")], name="t")

    assert explain(gated("stop")).calls == (1, 2)
    assert explain(gated("continue")).calls == (2, 2)
    rejected = explain(gated("continue"), decisions={"t/ok": "reject"})
    assert [one.origin for one in rejected.steps[1].sees] == ["prompt"]
    assert rejected.steps[1].input_tokens[0] < (explain(gated("continue")).steps[1].tokens or 0)


def test_rounds_of_tools_are_a_range() -> None:
    """A step with tools makes one call, up to one more than its rounds."""

    def look(word: str) -> str:
        """Look a word up."""
        return word

    explained = explain(Step("Look.", name="s", tools=[look], max_tool_rounds=2), model=MODEL)
    assert explained.calls == (1, 3)
    assert explained.input_tokens[0] < (explained.input_tokens[1] or 0)


def test_a_budget_may_end_a_block() -> None:
    """A block that keeps its result when its budget is used up may make no call at all."""
    inside = [Step("One.", name="one"), Step("Two.", name="two")]
    tree = Block([Block(inside, name="b", budget={"calls": 1, "on_exhausted": "keep"})], name="t")
    assert explain(tree).calls == (0, 2)


def test_functions_that_may_call_models_have_no_limit() -> None:
    """A Call whose function gets at the context's models is named, and the calls have no end."""

    def asks(ctx: Any) -> str:
        return str(ctx.model().invoke("Hello."))

    def passes(ctx: Any) -> str:
        return helper(ctx)

    def reads(ctx: Any) -> int:
        return len(ctx.messages)

    def helper(ctx: Any) -> str:
        return str(ctx)

    step = Step("Hello.", name="s")
    for function, most in ((asks, None), (passes, None), (reads, 1)):
        explained = explain(Block([step, Call(function, name="c")], name="t"), model=MODEL)
        assert explained.calls == (1, most)
        assert any("may call models" in one for one in messages_of(explained)) == (most is None)


def test_a_prompt_function_gets_placeholders() -> None:
    """A prompt function is called; one that needs a real answer is unknown, and said to be."""

    def fine(ctx: Any) -> str:
        return f"Read: {ctx.read('plan')}"

    def number(ctx: Any) -> str:
        return "x" * int(ctx.read("plan"))

    plan = Step("Plan.", name="plan", capture_key="plan")
    known = explain(Block([plan, Step(fine, name="s")], name="t"), model=MODEL, answer_tokens=500)
    prompt = known.steps[1].sees[-1]
    assert prompt.tokens == pytest.approx(500, rel=0.05)
    assert prompt.text.startswith("Read: [answer of t/plan, about 500 tokens]")
    assert known.captures[0].read_by == ("t/s",)
    unknown = explain(Block([plan, Step(number, name="s")], name="t"), model=MODEL)
    assert unknown.steps[1].tokens is None
    assert unknown.input_tokens[1] is None
    assert "t/s: its prompt isn't known before the run: ValueError" in messages_of(unknown)[0]
    assert [one.path for one in unknown.steps[1].sees] == ["t/plan", "t/plan", None]


class Plan(BaseModel):
    """A structured answer."""

    title: str
    parts: list[str]


def test_a_schema_gets_an_answer_that_fits() -> None:
    """The capture of a structured answer has the schema's fields, so that prompts can use them."""

    def titled(ctx: Any) -> str:
        return f"Draw {ctx.read('plan')['title']} {ctx.read('plan')['parts'][0]}"

    plan = Step("Plan.", name="plan", schema=Plan, capture_key="plan")
    explained = explain(Block([plan, Step(titled, name="draw")], name="t"))
    assert explained.steps[1].problem == ""


def test_unread_captures_and_missing_inputs_are_named() -> None:
    """What nothing reads is listed, and so is an input that isn't given."""
    step = Step(Template("About {{ topic }}."), name="s", capture_key="text")
    explained = explain(Block([step], name="t", inputs=[Input("topic")]), model=MODEL)
    assert [one.key for one in explained.unread] == ["text"]
    assert messages_of(explained) == [
        ": the input 'topic' isn't given; a placeholder stands for it"
    ]
    assert explained.steps[0].reads[0].source == "input"
    given = explain(
        Block([step], name="t", inputs=[Input("topic")]), model=MODEL, inputs={"topic": "rain"}
    )
    assert given.steps[0].sees[-1].text == "About rain."
    with pytest.raises(TreeError, match="input 'topc' is not declared"):
        explain(Block([step], name="t", inputs=[Input("topic")]), inputs={"topc": "rain"})


def test_a_prompt_beyond_the_window_is_a_warning() -> None:
    """A prompt that passes the model's context window is named with both numbers."""
    window = context_window(MODEL)
    assert window is not None
    tree = Block([Step("Draft.", name="a"), Step("Go on.", name="b")], name="t")
    explained = explain(tree, model=MODEL, answer_tokens={"a": window, "": 10})
    warned = [one for one in messages_of(explained) if "context window" in one]
    assert [one.partition(":")[0] for one in warned] == ["t/a", "t/b"]
    assert f"{window:,}" in warned[1]


def test_an_unknown_model_has_no_price() -> None:
    """Without a price the cost is unknown, and a declared price makes it known."""
    step = Step("Hello.", name="s")
    explained = explain(step, model="acme:nothing")
    assert explained.cost is None
    assert messages_of(explained) == [
        ": no price and no context window is known for model 'acme:nothing'"
    ]
    priced = explain(step, model="acme:nothing", prices={"acme:*": Price(1, 2)}, answer_tokens=100)
    tokens = priced.steps[0].tokens or 0
    assert priced.cost is not None
    assert list(priced.cost) == pytest.approx([(tokens + 200) / 1e6] * 2)
    assert explain(step, model="offline").cost == (0, 0)
    assert "no model is given" in messages_of(explain(step))[0]


def test_all_faults_of_a_tree_are_reported() -> None:
    """A tree that can't run isn't explained; every problem is named."""
    tree = Block([Step(Template("{{ a }} {{ b }}"), name="s")], name="t")
    with pytest.raises(TreeError) as raised:
        explain(tree)
    assert len(raised.value.faults) == 2
    with pytest.raises(StepError, match="answer_tokens is a number of tokens"):
        explain(Step("Hello."), answer_tokens=0)
    with pytest.raises(StepError, match="no path matches"):
        explain(Step("Hello."), answer_tokens={"nowhere": 3})


def test_a_run_of_another_tree_is_said_to_be_one() -> None:
    """Lengths of a run that has none of the steps are its mean, with a warning."""
    other = mergepoint.run(Step("Hello.", name="other"), model="offline").transcript
    explained = explain(Step("Hello.", name="s"), model="offline", like=other)
    assert "has none of these steps; it is of another tree" in messages_of(explained)[0]


def test_hostile_names_are_shown_as_escapes() -> None:
    """Terminal escapes in paths and prompts never reach the terminal."""
    hostile = "a\x1b[31m\u202eb"
    try:
        tree = Block([Step(f"Say {hostile}", name=hostile)], name="t")
    except TreeError:
        tree = Block([Step(f"Say {hostile}", name="s")], name="t")
    explained = explain(tree, model=hostile)
    shown = explanation_text(explained) + step_text(explained, explained.steps[0].path)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert r"\x1b" in shown


def test_tokens_of_image_prompt_are_within_15_percent_like_an_earlier_run() -> None:
    """Tokens are near what a run reports: of every prompt, and of all for another brief."""
    tree = find_target("image_prompt").tree
    assert tree is not None
    brief = "A poster for a night market in Hanoi, with lanterns, rain and a noodle stall."
    other = "A cover for a book about lighthouses on the coast of Norway in winter, calm and blue."
    earlier = mergepoint.run(tree, {"brief": brief}, model="offline").transcript
    explained = explain(tree, inputs={"brief": other}, model="offline", like=earlier)
    later = mergepoint.run(tree, {"brief": other}, model="offline").transcript
    assert explained.input_tokens[0] == pytest.approx(later.usage["input_tokens"], rel=0.15)
    again = explain(tree, inputs={"brief": brief}, model="offline", like=earlier)
    used = {one.path: (one.usage or {})["input_tokens"] for one in earlier.records}
    assert len(again.steps) == 42
    for step in again.steps:
        assert step.tokens == pytest.approx(used[step.path], rel=0.15), step.path


def test_an_earlier_run_is_named_by_its_id_and_folder(tmp_path: Path) -> None:
    """A run in a folder gives the lengths of its answers, by id, by folder and by transcript."""
    model = ScriptedModel([LONG])
    result = mergepoint.run(Step("Hello.", name="s"), model=model, runs=tmp_path)
    assert result.path_of_run is not None
    ways = (result.run_id, result.path_of_run, result.path_of_run / "transcript.json")
    for way in ways:
        explained = explain(Step("Hello.", name="s"), like=way, runs=tmp_path)
        assert explained.basis == f"answers as long as in run {result.run_id}"
        assert explained.output_tokens[0] > 50


def test_the_estimate_knows_scripts() -> None:
    """English has four characters for a token, Greek two, and Chinese one."""
    assert estimate_tokens("") == 0
    assert estimate_tokens("abcdefgh") == 2
    assert estimate_tokens("αβγδ") == 2
    assert estimate_tokens("天地玄黄") == 4


def test_the_last_line_sums_up() -> None:
    """The text ends with calls, tokens and cost."""
    explained = explain(looping(), model=MODEL)
    assert explanation_text(explained).splitlines()[-1] == summary_line(explained)
    assert summary_line(explained).startswith("Predicted: 2 to 4 model calls, about ")
    assert all(len(line) <= 60 for line in explanation_text(explained, width=60).splitlines()[:5])


def test_the_representation_of_an_explanation_is_short() -> None:
    """It is one line with the workflow, the steps, the calls and the cost."""
    explained = explain(looping(), model=MODEL)
    assert repr(explained).startswith("Explanation('t', steps=2, calls=(2, 4), ")
    assert len(repr(explained)) < 120


@pytest.mark.parametrize("name", ["title.yaml", Path("title.yaml")])
def test_a_name_is_no_tree_and_the_error_says_how_to_load_it(name: Any) -> None:
    """A name or file, which `run` takes, must be loaded first."""
    with pytest.raises(TreeError, match=r"'title\.yaml'.*load_yaml\(path\).*find_target"):
        explain(name)


def test_captures_say_how_many_are_read() -> None:
    """One line says how many captures there are, and how many are never read."""
    lines = [captures_line(*counts) for counts in ((1, 0), (3, 0), (31, 1), (4, 2))]
    assert lines == [
        "Captures: 1, read.",
        "Captures: 3, all read.",
        "Captures: 31; 1 is never read:",
        "Captures: 4; 2 are never read:",
    ]
    assert "--like RUN" in explanation_text(explain(looping(), model=MODEL))
