"""Gates, on every engine: what a person sees, and what becomes of their decision."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from tests.engine.engines import RUN, Engine

from mergepoint import (
    Block,
    Decision,
    Gate,
    GateOpen,
    Loop,
    Question,
    Step,
    StepError,
    compile_graph,
)
from mergepoint.core.merge import State
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form
from mergepoint.engine.interpreter import ainterpret, interpret
from mergepoint.journal.recorded_answers import ResumeSource
from mergepoint.journal.replay import replay
from mergepoint.testing.scripted_model import ScriptedModel


def tree(decide: Any = None, **fields: Any) -> Block:
    """Return a plan behind a gate, and a step that sees what came through."""
    plan = Step("Plan.", name="plan", capture_key="plan", merge="last_response")
    gate = Gate(plan, name="approval", capture_key="review", decide=decide, **fields)
    return Block([gate, Step("Go.", name="go")], name="work")


def model() -> ScriptedModel:
    """Return a model with a plan and an answer."""
    return ScriptedModel(by_path={"work/approval/plan": "the plan", "work/go": "done"})


def test_an_approved_node_is_merged(engine: Engine) -> None:
    """What the gate held back is kept, and its decision is captured."""
    end = engine(tree(lambda question: "approve"), model())
    assert end.texts == ["the plan", "Go.", "done"]
    assert end.outputs == {"plan": "the plan", "review": {"decision": "approve", "feedback": ""}}


def test_a_gate_shows_exactly_what_would_be_kept(engine: Engine) -> None:
    """The question holds the merged message and the capture, and not the dropped prompt."""
    seen: list[Question] = []

    def decide(question: Question) -> str:
        seen.append(question)
        return "approve"

    engine(tree(decide, question="Shall we?"), model())
    [question] = seen
    assert question.to_plain() == {
        "path": "work/approval",
        "question": "Shall we?",
        "messages": [{"role": "ai", "text": "the plan"}],
        "outputs": {"plan": "the plan"},
        "key": question.key,
    }


def test_a_rejected_node_leaves_nothing(engine: Engine) -> None:
    """Neither its message nor its capture is kept, only the decision with its feedback."""
    end = engine(tree(lambda question: {"decision": "reject", "feedback": "too long"}), model())
    assert end.texts == ["Go.", "done"]
    assert end.outputs == {"review": {"decision": "reject", "feedback": "too long"}}


def test_an_edited_text_is_merged_and_captured(engine: Engine) -> None:
    """The edit stands in the message and under the key that captured it."""
    end = engine(tree(lambda question: {"decision": "edit", "text": "my plan"}), model())
    assert end.texts == ["my plan", "Go.", "done"]
    assert end.outputs["plan"] == "my plan"


def test_a_rejected_gate_may_ask_for_a_last_response(engine: Engine) -> None:
    """A gate with merge last_response merges nothing when it is refused, and does not fail."""
    end = engine(tree(lambda question: "reject", merge="last_response"), model())
    assert end.texts == ["Go.", "done"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("maybe", "'approve' or 'reject'"),
        ({"decision": "edit"}, "an edit sets text or outputs"),
        ({"decision": "approve", "text": "x"}, "takes no edits"),
        ({"decision": "edit", "outputs": {"other": 1}}, "cannot add the output 'other'"),
        ({"decision": "edit", "text": " "}, "text is what the last response"),
        ({"decision": "reject", "feed": "x"}, "no 'feed'"),
        (7, "is 'approve' or 'reject'"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(engine: Engine, answer: Any, problem: str) -> None:
    """Nothing is merged and nothing recorded of an answer that says nothing."""
    recorder = Recorder()
    with pytest.raises(StepError, match=problem) as caught:
        engine(tree(lambda question: answer), model(), recorder=recorder)
    assert getattr(caught.value, "pipeline_path", "") == "work/approval"
    assert [record.kind for record in recorder.journal.records] == ["step"]


def test_the_runs_answerer_decides(engine: Engine) -> None:
    """A gate without a function of its own asks the one that the recorder carries."""
    recorder = Recorder(answerer=lambda question: Decision("edit", text="theirs"))
    assert engine(tree(), model(), recorder=recorder).texts == ["theirs", "Go.", "done"]


def test_a_gate_that_gives_none_leaves_it_to_the_runs_answerer(engine: Engine) -> None:
    """Where the gate's own function does not say, whoever answers in the run decides."""
    recorder = Recorder(answerer=lambda question: "reject")
    end = engine(tree(lambda question: None), ScriptedModel(["A", "B"]), recorder=recorder)
    assert end.outputs["review"] == {"decision": "reject", "feedback": ""}


def test_a_decision_is_on_record_and_replays(engine: Engine) -> None:
    """The record of the gate has its path and value, and the state follows from the records."""
    recorder = Recorder()
    work = tree(lambda question: {"decision": "edit", "text": "mine", "feedback": "ok"})
    end = engine(work, model(), recorder=recorder)
    records = recorder.journal.records
    [gate] = [record for record in records if record.kind == "gate"]
    assert gate.path == "work/approval"
    assert gate.value == {"decision": "edit", "feedback": "ok", "text": "mine"}
    again = replay(records, work, base=State())
    assert again.state is not None
    assert [m.text for m in again.state.messages] == end.texts
    assert dict(again.state.outputs) == end.outputs


def test_a_loop_around_a_gate_tries_again(engine: Engine) -> None:
    """A rejected plan is made anew with the feedback, until it is approved."""
    answers = iter([{"decision": "reject", "feedback": "shorter"}, "approve"])

    def prompt(ctx: Any) -> str:
        review = ctx.outputs.get("review")
        return f"Plan. {review['feedback']}" if review else "Plan."

    gate = Gate(
        Step(prompt, name="plan", merge="last_response"),
        name="approval",
        capture_key="review",
        decide=lambda question: next(answers),
    )
    said = ScriptedModel(["long", "short"])
    end = engine(Loop([gate], until="review", name="loop"), said)
    assert end.texts == ["short"]
    assert [str(call.messages[-1].text) for call in said.calls] == ["Plan.", "Plan. shorter"]


def test_a_decision_on_record_is_not_asked_for_again(engine: Engine) -> None:
    """With the records of an earlier run nobody is asked, and no call is made."""
    first = Recorder()
    engine(tree(lambda question: "approve"), model(), recorder=first)
    asked: list[Question] = []

    def decide(question: Question) -> str:
        asked.append(question)
        return "approve"

    gates = [record for record in first.journal.records if record.kind == "gate"]
    again = Recorder(answers=ResumeSource(gates))
    engine(tree(decide), model(), recorder=again)
    assert asked == []


def test_a_decision_is_for_what_it_was_about(engine: Engine) -> None:
    """Where something else is held back than was decided about, somebody is asked again."""
    first = Recorder()
    engine(tree(lambda question: "approve"), model(), recorder=first)
    asked: list[str] = []

    def decide(question: Question) -> str:
        asked.append(str(question.kept.messages[-1].text))
        return "reject"

    gates = [record for record in first.journal.records if record.kind == "gate"]
    other = ScriptedModel(by_path={"work/approval/plan": "another plan", "work/go": "done"})
    end = engine(tree(decide), other, recorder=Recorder(answers=ResumeSource(gates)))
    assert asked == ["another plan"]
    assert end.texts == ["Go.", "done"]


def parallel_gates() -> Block:
    """Return two gates side by side."""
    gates = [
        Gate(Step(f"{name}.", name="s", merge="last_response"), name=name, capture_key=f"{name}.ok")
        for name in ("z", "a")
    ]
    return Block([Block(gates, name="both", parallel=True), Step("Go.", name="go")], name="work")


def both() -> ScriptedModel:
    """Return a model for the two gates."""
    paths = {"work/both/z/s": "from z", "work/both/a/s": "from a", "work/go": "done"}
    return ScriptedModel(by_path=paths)


def test_without_anybody_all_open_gates_are_told() -> None:
    """Where nobody answers, the run ends with the questions of all gates that were reached."""
    with pytest.raises(GateOpen) as caught:
        interpret(parallel_gates(), model=both())
    assert [question.path for question in caught.value.questions] == ["work/both/z", "work/both/a"]


def test_open_gates_are_told_on_an_event_loop_too() -> None:
    """The async interpreter tells the same questions."""
    with pytest.raises(GateOpen) as caught:
        asyncio.run(ainterpret(parallel_gates(), model=both()))
    assert [question.path for question in caught.value.questions] == ["work/both/z", "work/both/a"]


def test_interrupts_are_answered_by_command(form: Form) -> None:
    """A graph with a checkpointer stops at the gate, and goes on with the decision once."""
    said = model()
    graph = compile_graph(tree(), model=said, checkpointer=InMemorySaver(), form=form)
    config: Any = {"configurable": {"thread_id": "t", "mergepoint_run_id": RUN}}
    stopped = graph.invoke({"messages": []}, config)
    [pending] = stopped["__interrupt__"]
    assert pending.value["messages"] == [{"role": "ai", "text": "the plan"}]
    end = graph.invoke(Command(resume={"decision": "edit", "text": "mine"}), config)
    assert [m.text for m in end["messages"]] == ["mine", "Go.", "done"]
    assert [call.path for call in said.calls] == ["work/approval/plan", "work/go"]


def test_an_answer_that_does_not_fit_is_asked_for_again(form: Form) -> None:
    """A resumed graph says what is wrong with the answer, and waits for another."""
    graph = compile_graph(tree(), model=model(), checkpointer=InMemorySaver(), form=form)
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": []}, config)
    again = graph.invoke(Command(resume="perhaps"), config)
    assert "approve" in again["__interrupt__"][0].value["problem"]
    end = graph.invoke(Command(resume="approve"), config)
    assert [m.text for m in end["messages"]] == ["the plan", "Go.", "done"]


def test_several_open_gates_are_answered_by_id(form: Form) -> None:
    """Two parallel gates stop the graph together, and each gets its own answer."""
    graph = compile_graph(parallel_gates(), model=both(), checkpointer=InMemorySaver(), form=form)
    config: Any = {"configurable": {"thread_id": "t"}}
    pending = graph.invoke({"messages": []}, config)["__interrupt__"]
    assert {one.value["path"] for one in pending} == {"work/both/z", "work/both/a"}
    answers = {
        one.id: "reject" if one.value["path"].endswith("z") else "approve" for one in pending
    }
    end = graph.invoke(Command(resume=answers), config)
    assert [m.text for m in end["messages"]] == ["from a", "Go.", "done"]
    assert end["outputs"]["z.ok"]["decision"] == "reject"


def stopping(*, capture_key: str | None = "essay") -> Block:
    """Return a tree that two rejections can end, in a block that captures its last response."""
    inner = Block(
        [
            Step("Draft.", name="draft"),
            Gate(
                Step("Plan.", name="plan", capture_key="plan"),
                name="gate",
                on_reject="stop",
                capture_key="said",
            ),
            Step("Never asked.", name="never"),
        ],
        name="inner",
        merge="last_response",
        capture_key=capture_key,
    )
    return Block([Step("Begin.", name="begin"), inner, Step("Nor this.", name="nor")], name="p")


def test_a_rejection_can_end_a_run(engine: Engine) -> None:
    """No later step starts; each block merges what it has by its mode, and nothing fails."""
    script = ScriptedModel(["begun", "drafted", "planned"])
    recorder = Recorder(answerer=lambda question: {"decision": "reject", "feedback": "no"})
    end = engine(stopping(), script, recorder=recorder)
    texts = [str(message.text) for message in end.messages if message.type == "ai"]
    assert texts == ["begun", "drafted"]
    assert end.outputs == {"said": {"decision": "reject", "feedback": "no"}, "essay": "drafted"}
    assert len(script.calls) == 3


def test_a_run_that_ends_before_a_response_is_no_error(engine: Engine) -> None:
    """A block that lets its last response out lets nothing out where there is none yet."""
    gate = Gate(Step("Plan.", name="plan"), name="gate", on_reject="stop")
    tree = Block([gate, Step("Never.", name="never")], merge="last_response", capture_key="x")
    recorder = Recorder(answerer=lambda question: "reject")
    end = engine(tree, ScriptedModel(["planned"]), recorder=recorder)
    assert (list(end.messages), dict(end.outputs)) == ([], {})


def test_a_rejection_ends_loops_and_other_gates_around_it(engine: Engine) -> None:
    """No further iteration begins, a gate around asks nobody and lets nothing of it out."""
    inside = Gate(Step("Plan.", name="plan"), name="gate", on_reject="stop")
    loop = Loop([Step("Say.", name="say"), inside], until=lambda ctx: False, name="tries")
    tree = Block([Step("Begin.", name="begin"), Gate(loop, name="around")], name="p")
    asked: list[str] = []

    def reject(question: Question) -> str:
        asked.append(question.path)
        return "reject"

    end = engine(tree, ScriptedModel(["a", "b", "c"]), recorder=Recorder(answerer=reject))
    assert asked == ["p/around/tries/iteration_01/gate"]
    assert [str(message.text) for message in end.messages] == ["Begin.", "a"]


def test_siblings_of_a_gate_that_ends_the_run_are_merged(engine: Engine) -> None:
    """In a parallel block the others run to their end; what comes behind the block does not."""
    gate = Gate(Step("Plan.", name="plan"), name="gate", on_reject="stop")
    wide = Block([gate, Step("Say.", name="say", capture_key="said")], parallel=True, name="wide")
    tree = Block([wide, Step("Never.", name="never")], name="p")
    recorder = Recorder(answerer=lambda question: "reject")
    model = ScriptedModel(by_path={"p/wide/gate/plan": "y", "p/wide/say": "x"})
    end = engine(tree, model, recorder=recorder)
    assert end.outputs == {"said": "x"}
    assert [str(message.text) for message in end.messages] == ["Say.", "x"]
