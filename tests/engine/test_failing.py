"""Failing: what is left, what is raised, what is written, in every form of a runner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from tests.engine.engines import Engine, Runner, texts

from mergepoint.core.errors import StepError, TreeError
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import TRANSCRIPT, run_generation
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.transcript import read_transcript
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.tree_functions import ProviderFailure
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import Template


def tree() -> Block:
    """Return two stages of which the second fails at its second step."""
    return Block(
        [
            Block([Step("A.", capture_key="a")], name="one", merge="last_response"),
            Block([Step("B."), Step("C.", name="bad")], name="two", merge="last_response"),
        ]
    )


def failing(error: BaseException | str | None = None) -> ScriptedModel:
    """Return a model that fails, or says nothing, at the bad step."""
    bad = RuntimeError("the model is down") if error is None else error
    return ScriptedModel(by_path={"pipeline/two/bad": bad}, default="fine")


def test_a_failing_model_leaves_no_dangling_message(runner: Runner) -> None:
    """After a failure messages and outputs of the context are what they were."""
    base: list[BaseMessage] = [HumanMessage("Hi."), AIMessage("Yes?")]
    ctx = RunContext(messages=list(base), outputs={"old": 1})
    with pytest.raises(RuntimeError, match="the model is down"):
        runner(ctx, tree(), failing())
    assert ctx.messages == base
    assert ctx.outputs == {"old": 1}


def test_a_failing_model_leaves_a_transcript_of_what_came_before(runner: Runner) -> None:
    """Answered calls are steps, the failed one is a failure, and the error is there."""
    ctx = RunContext()
    with pytest.raises(RuntimeError):
        runner(ctx, tree(), failing())
    assert [step.path for step in ctx.steps] == ["pipeline/one/step_01", "pipeline/two/step_01"]
    transcript = ctx.transcript()
    assert [one.path for one in transcript.failures] == ["pipeline/two/bad"]
    assert transcript.failures[0].error == {"type": "RuntimeError", "message": "the model is down"}
    assert (transcript.text, transcript.outputs) == ("", {})


def test_the_contexts_error_says_type_message_path_and_node(runner: Runner) -> None:
    """`ctx.error` is plain data about the innermost failure."""
    ctx = RunContext()
    with pytest.raises(ProviderFailure):
        runner(ctx, tree(), failing(ProviderFailure(status=503, body="busy")))
    assert ctx.error == {
        "type": "ProviderFailure",
        "message": "503: busy",
        "path": "pipeline/two/bad",
        "node": "bad",
    }


def test_an_error_keeps_its_type_and_says_where_it_came_from(engine: Engine) -> None:
    """The exception is the provider's own, with the innermost path as attribute and note."""
    error = ProviderFailure(status=429, body="slow down")
    with pytest.raises(ProviderFailure) as raised:
        engine(tree(), failing(error))
    assert raised.value is error
    assert error.status == 429
    assert (
        getattr(error, "pipeline_path", None),
        getattr(error, "pipeline_node_type", None),
        getattr(error, "pipeline_node_name", None),
    ) == ("pipeline/two/bad", "step", "bad")
    assert [note for note in error.__notes__ if note.startswith("at ")] == [
        "at pipeline/two/bad (step)"
    ]


@pytest.mark.parametrize("kind", [StopIteration, KeyError, TimeoutError, RecursionError, OSError])
def test_any_error_of_a_prompt_is_located_at_its_step(
    engine: Engine, kind: type[Exception]
) -> None:
    """Whatever a prompt function raises, the step is named, in every engine alike."""

    def prompt(ctx: Any) -> str:
        raise kind("wrong")

    with pytest.raises(Exception, match=r"wrong|StopIteration") as raised:
        engine(Block([Block([Step(prompt)], name="in")]), ScriptedModel([]))
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/in/step_01"


def test_a_context_can_run_again_after_a_failure(runner: Runner) -> None:
    """The next turn starts from the same messages, and clears the error."""
    ctx = RunContext(messages=[HumanMessage("Hi.")], run_id="r")
    with pytest.raises(RuntimeError):
        runner(ctx, tree(), failing())
    runner(ctx, tree(), ScriptedModel(default="fine"))
    assert ctx.error is None
    assert texts(ctx.messages) == ["Hi.", "fine", "fine"]
    assert ctx.messages[1].id == "r.2/pipeline/one/step_01/1"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (Template("{{ a }}"), "reads 'a', which no input and no capture_key provides"),
        (lambda ctx: ctx.read("a"), "missing key 'a'; available here: none"),
        (lambda ctx: ctx.outputs["a"], "no output 'a'"),
        (lambda ctx: None, "returned NoneType"),
    ],
    ids=["template", "read", "outputs", "none"],
)
def test_a_prompt_that_cannot_be_made_costs_no_call(
    engine: Engine, prompt: Any, message: str
) -> None:
    """It fails before its model is called, at the path of its step."""
    model = ScriptedModel([])
    with pytest.raises(ValueError, match=message) as raised:
        engine(Block([Step(prompt)]), model)
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/step_01"
    assert model.calls == []


def in_process(**options: Any) -> Callable[[Path], None]:
    """Return a run that fails, written to a folder."""

    def run(folder: Path) -> None:
        run_generation(**{"tree": tree(), "model": failing(), "runs": folder, **options})

    return run


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (in_process(), RuntimeError),
        (in_process(model=failing(" \n")), StepError),
        (in_process(model=failing(KeyboardInterrupt())), KeyboardInterrupt),
        (
            in_process(model=ScriptedModel(default=Answer(tool_calls=[{"name": "f", "args": {}}]))),
            StepError,
        ),
        (in_process(model=None), TreeError),
        (in_process(model="nobody"), StepError),
        (in_process(model="nobody:nothing"), StepError),
        (in_process(model=42), StepError),
        (in_process(form="unknown"), TreeError),
        (in_process(view="unknown"), TreeError),
        (in_process(inputs={"unknown": 1}), TreeError),
        (in_process(tree=Block([Step(Template("{{ nobody }}"))])), TreeError),
        (in_process(tree=Step(lambda ctx: None)), StepError),  # type: ignore[arg-type,return-value]
    ],
    ids=[
        *("model", "blank", "ctrl-c", "tool calls", "no model", "no provider", "unknown provider"),
        *("no chat model", "form", "view", "inputs", "tree", "prompt"),
    ],
)
def test_the_transcript_is_written_whatever_fails(
    run: Callable[[Path], None], kind: type[BaseException], tmp_path: Path
) -> None:
    """Every way to fail leaves one transcript with the error in it, and nothing half-applied."""
    with pytest.raises(kind) as raised:
        run(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert {file.name for file in folder.iterdir()} <= {TRANSCRIPT, "journal.jsonl"}
    transcript = read_transcript(folder / TRANSCRIPT)
    assert transcript.error is not None
    assert transcript.error["type"] == type(raised.value).__name__
    assert transcript.error["message"] == str(raised.value)
    assert (transcript.outputs, transcript.text) == ({}, "")


def test_an_input_without_a_json_form_is_refused_before_a_call(tmp_path: Path) -> None:
    """What could not be given back to a resumed run is refused, with a transcript that tells so."""
    asking, model = Block([Step("A.")], inputs=["odd"]), ScriptedModel(["x"])
    odd = {"odd": {(1, 2): {3}, "nan": float("nan")}}
    with pytest.raises(JournalError, match=r"inputs\.odd"):
        run_generation(asking, model=model, inputs=odd, runs=tmp_path)
    assert model.calls == []
    (folder,) = tmp_path.iterdir()
    assert set(read_transcript(folder / TRANSCRIPT).inputs["odd"]) == {"(1, 2)", "nan"}
