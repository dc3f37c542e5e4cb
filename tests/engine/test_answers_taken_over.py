"""Answers given for gates whose decisions come from an earlier run: refused, and never ignored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from mergepoint import RunContext, compile_graph, resume_graph, run_generation
from mergepoint.core.errors import StepError
from mergepoint.engine.compiler import Form
from mergepoint.engine.run_tree import arun_generation
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Gate, Loop

FORMS: tuple[Form, ...] = ("subgraphs", "fused")
WAYS: tuple[Literal["reuse", "replay"], ...] = ("reuse", "replay")
TREE = Block(
    [Gate(Step("Plan.", name="plan"), name="gate", capture_key="said"), Step("Go.", name="go")],
    name="run",
)
REJECT = {"decision": "reject", "feedback": "shorter"}
REASON = "the answer at run/gate would be ignored: 'reject' .shorter. is on record in the run whose"


def earlier(runs: Path, tree: Any = TREE, answer: Any = REJECT) -> None:
    """Make the run whose answers are taken over."""
    run_generation(
        tree,
        model=ScriptedModel(default="Fine."),
        runs=runs,
        ctx=RunContext(run_id="first"),
        answerer={"run/gate": answer},
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_would_be_ignored_is_refused(way: str, form: Form, tmp_path: Path) -> None:
    """The error names the decision that counts, and what to do; no call was made for it."""
    earlier(tmp_path)
    model = ScriptedModel(default="Fine.")
    options: dict[str, Any] = {"model": model, "runs": tmp_path, "form": form, way: "first"}
    with pytest.raises(StepError, match=REASON) as caught:
        run_generation(TREE, answerer={"run/gate": "approve"}, **options)
    assert "begin a new run without reuse or replay" in str(caught.value)
    with pytest.raises(StepError, match=REASON):
        asyncio.run(arun_generation(TREE, answerer={"run/gate": "approve"}, **options))
    assert model.calls == []


@pytest.mark.parametrize("way", WAYS)
def test_the_answer_on_record_and_no_answer_are_taken(way: str, tmp_path: Path) -> None:
    """Who says the same again, or nothing, gets the decision of the earlier run."""
    earlier(tmp_path)
    for answers in ({"run/gate": REJECT}, {}, None, {"run/other": "approve"}):
        done = run_generation(
            TREE,
            model=ScriptedModel([]),
            runs=tmp_path,
            answerer=answers,
            **{way: "first"},  # type: ignore[arg-type]
        )
        assert done.outputs["said"]["decision"] == "reject"


def test_an_answer_to_a_gate_that_asks_anew_is_used(tmp_path: Path) -> None:
    """Where what the gate holds back is another text now, its decision is made again."""
    earlier(tmp_path)
    other = Block(
        [Gate(Step("Plan it.", name="plan"), name="gate", capture_key="said"), TREE.nodes[1]],
        name="run",
    )
    model = ScriptedModel(default="Other.")
    answers = {"run/gate": "approve"}
    done = run_generation(other, model=model, runs=tmp_path, reuse="first", answerer=answers)
    assert done.outputs["said"]["decision"] == "approve"


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_that_takes_answers_over_refuses_too(form: Form, tmp_path: Path) -> None:
    """`resume_graph(answers=...)` of a graph with `reuse=` says the same."""
    earlier(tmp_path)
    graph = compile_graph(
        TREE,
        model=ScriptedModel(default="Fine."),
        form=form,
        journal=tmp_path,
        reuse="first",
        checkpointer=InMemorySaver(),
        interrupt_before=["run"],
    )
    config: Any = {"configurable": {"thread_id": "second"}}
    graph.invoke({"messages": []}, config)
    with pytest.raises(StepError, match=REASON):
        resume_graph(graph, config, answers={"run/gate": "approve"})


def test_an_answer_for_a_later_iteration_is_no_answer_for_an_earlier_one(tmp_path: Path) -> None:
    """A path names one iteration; the decisions of others are taken over beside it."""
    tree = Block(
        [Loop([Gate(Step("Plan.", name="plan"), name="gate", capture_key="ok")], until="ok")],
        name="run",
    )
    gate = "run/loop_01/iteration_{:02d}/gate"
    first = {gate.format(1): REJECT, gate.format(2): "approve"}
    model = ScriptedModel(default="Fine.")
    options: dict[str, Any] = {"runs": tmp_path, "ctx": RunContext(run_id="first")}
    run_generation(tree, model=model, answerer=first, **options)
    again = {gate.format(2): "approve"}
    run_generation(tree, model=model, runs=tmp_path, reuse="first", answerer=again)
    with pytest.raises(StepError, match="iteration_02/gate would be ignored: 'approve' is on"):
        run_generation(
            tree, model=model, runs=tmp_path, reuse="first", answerer={gate.format(2): REJECT}
        )
