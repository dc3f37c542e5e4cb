"""Gates that nobody answers: the question is on record, once, until a decision closes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from mergepoint import (
    Block,
    Gate,
    GateOpen,
    Loop,
    Node,
    Recorder,
    RunContext,
    Step,
    Template,
    compile_graph,
    run_generation,
)
from mergepoint.engine.compiler import Form
from mergepoint.journal.call_records import CallRecord, to_json_value
from mergepoint.journal.file_journal import FileStore, read_journal
from mergepoint.journal.recorded_answers import pending
from mergepoint.journal.transcript import read_transcript, transcript_of, write_transcript
from mergepoint.report.call_text import call_view, to_text
from mergepoint.testing.scripted_model import ScriptedModel

GATE = "work/approval"


def tree() -> Node:
    """Return a plan behind a gate, and a step after it."""
    plan = Step("Plan.", name="plan", capture_key="plan", merge="last_response")
    gate = Gate(plan, name="approval", capture_key="review", question="Shall we?")
    return Block([gate, Step("Go.", name="go")], name="work")


def looping() -> Node:
    """Return a plan that is made until it is approved."""
    prompt = Template("Plan. {{ review }}", defaults={"review": "-"})
    plan = Step(prompt, name="plan", merge="last_response")
    gate = Gate(plan, name="approval", capture_key="review")
    return Loop([gate], until="review", name="work")


def waiting(tmp_path: Path, node: Node, answers: Any = None, **options: Any) -> None:
    """Run a tree, or go on with it, up to a gate that is open."""
    options = options or {"ctx": RunContext(run_id="r")}
    model = ScriptedModel(default="the plan")
    with pytest.raises(GateOpen):
        run_generation(node, model=model, runs=tmp_path, answerer=answers, **options)


def gates(tmp_path: Path) -> list[CallRecord]:
    """Return what is on record of gates."""
    records = read_journal(tmp_path / "r" / "journal.jsonl")[1]
    return [record for record in records if record.kind == "gate"]


def test_a_question_that_nobody_answers_is_on_record(tmp_path: Path, form: Form) -> None:
    """It holds what is asked, its key, and exactly what would be kept."""
    waiting(tmp_path, tree(), form=form, ctx=RunContext(run_id="r"))
    (asked,) = gates(tmp_path)
    assert (asked.path, asked.prompt, asked.asks, asked.answered) == (
        GATE,
        "Shall we?",
        True,
        False,
    )
    assert [message.text for message in asked.messages] == ["the plan"]
    assert asked.outputs == {"plan": "the plan"}
    assert asked.request
    assert not asked.failed


def test_the_same_question_is_not_written_again(tmp_path: Path) -> None:
    """Whoever resumes without an answer leaves the journal as it is; a decision closes it."""
    waiting(tmp_path, tree())
    before = (tmp_path / "r" / "journal.jsonl").read_bytes()
    waiting(tmp_path, tree(), resume="r")
    assert (tmp_path / "r" / "journal.jsonl").read_bytes() == before
    model = ScriptedModel(["done"])
    done = run_generation(
        tree(), model=model, runs=tmp_path, resume="r", answerer={GATE: "approve"}
    )
    assert done.text == "done"
    assert [record.asks for record in gates(tmp_path)] == [True, False]
    assert pending(gates(tmp_path)) == []
    assert done.transcript.questions == ()


def test_each_iteration_of_a_loop_asks_its_own_question(tmp_path: Path) -> None:
    """The path of the open one names the iteration, and earlier ones are closed."""
    first = {"work/iteration_01/approval": {"decision": "reject", "feedback": "shorter"}}
    waiting(tmp_path, looping(), first)
    (asked,) = pending(gates(tmp_path))
    assert asked.path == "work/iteration_02/approval"
    transcript = read_transcript(tmp_path / "r" / "transcript.json")
    assert [one.path for one in transcript.questions] == [asked.path]


def test_several_gates_are_open_at_once(tmp_path: Path) -> None:
    """Gates side by side leave a question each, and an answer to one closes that one."""
    both = [Gate(Step(name), name=name, capture_key=name) for name in "ab"]
    node = Block(both, name="work", parallel=True)
    waiting(tmp_path, node)
    assert {one.path for one in pending(gates(tmp_path))} == {"work/a", "work/b"}
    waiting(tmp_path, node, {"work/a": "approve"}, resume="r")
    assert [one.path for one in pending(gates(tmp_path))] == ["work/b"]


def test_an_interrupted_graph_leaves_its_question(form: Form) -> None:
    """One that waits for `Command(resume=...)` has it in the recorder's journal."""
    recorder = Recorder()
    graph = compile_graph(
        tree(), model=ScriptedModel(default="x"), checkpointer=InMemorySaver(), form=form
    )
    config: Any = {"configurable": {"thread_id": "t"}, "callbacks": [recorder]}
    graph.invoke({"messages": []}, config)
    assert [one.path for one in pending(recorder.journal.records)] == [GATE]
    graph.invoke(Command(resume="perhaps"), config)
    graph.invoke(Command(resume="approve"), config)
    of_gates = [record for record in recorder.journal.records if record.kind == "gate"]
    assert [record.asks for record in of_gates] == [True, False]


def test_a_decision_that_was_hidden_opens_the_gate_again(tmp_path: Path) -> None:
    """Its words are not on record as they were, so the person is asked once more."""
    store = FileStore(tmp_path, redact=lambda text: text.replace("Ann", "[name]"))
    said = {GATE: {"decision": "edit", "text": "Ann goes."}}
    with pytest.raises(TimeoutError):
        run_generation(
            tree(),
            model=ScriptedModel(["the plan", TimeoutError("slow")]),
            runs=store,
            ctx=RunContext(run_id="r"),
            answerer=said,
        )
    waiting(tmp_path, tree(), resume="r")
    assert [record.asks for record in gates(tmp_path)] == [False, True]
    assert [one.path for one in pending(gates(tmp_path))] == [GATE]


def test_a_journal_tells_that_its_run_waits(tmp_path: Path) -> None:
    """The transcript worked out from it is the one that the run wrote, but for the words."""
    waiting(tmp_path, tree())
    written = json.loads((tmp_path / "r" / "transcript.json").read_text(encoding="utf-8"))
    found = transcript_of(*read_journal(tmp_path / "r" / "journal.jsonl"))
    assert found.error is not None
    assert (found.error["type"], found.error["path"]) == ("GateOpen", GATE)
    exported = json.loads(json.dumps(to_json_value(found.to_json())))
    assert {key for key in written if written[key] != exported[key]} == {"error"}
    assert written["questions"][0]["outputs"] == {"plan": "the plan"}


def test_a_transcript_with_a_question_comes_back(tmp_path: Path) -> None:
    """What was written is read again, question and all."""
    waiting(tmp_path, tree())
    transcript = read_transcript(tmp_path / "r" / "transcript.json")
    again = read_transcript(write_transcript(transcript, tmp_path / "again.json"))
    assert again == transcript


def test_show_tells_what_a_gate_holds_back(tmp_path: Path) -> None:
    """An open gate is seen like a decided one, with the word that nobody has decided."""
    waiting(tmp_path, tree())
    transcript = read_transcript(tmp_path / "r" / "transcript.json")
    view = call_view(transcript, "approval")
    assert view.decided is not None
    assert (view.decided.decision, view.decided.question) == ("", "Shall we?")
    assert [(seen.text, seen.path) for seen in view.decided.held] == [
        ("the plan", "work/approval/plan")
    ]
    assert "No decision yet" in to_text(view)


def test_a_question_holds_no_secrets(tmp_path: Path) -> None:
    """What would be kept is masked on record, like all that is written."""
    secret = "sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8"
    model = ScriptedModel([f"use {secret}"])
    with pytest.raises(GateOpen) as caught:
        run_generation(tree(), model=model, runs=tmp_path, ctx=RunContext(run_id="r"))
    assert caught.value.questions[0].kept.outputs == {"plan": f"use {secret}"}
    written = b"".join(file.read_bytes() for file in (tmp_path / "r").iterdir())
    assert secret.encode() not in written
    (asked,) = gates(tmp_path)
    assert asked.outputs == {"plan": "use [masked]"}
