"""Open questions: told from a journal alone, and answered into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from tests.journal.places import Place, place_of

from mergepoint import (
    Block,
    Gate,
    GateOpen,
    Loop,
    RunContext,
    Step,
    StepError,
    compile_graph,
    run_generation,
)
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.replay import answer_questions, open_questions
from mergepoint.journal.stores import Store
from mergepoint.testing.scripted_model import ScriptedModel


def gate(name: str, **fields: Any) -> Gate:
    """Return a gate around a step."""
    step = Step(f"{name}?", name="text", merge="last_response", capture_key=name)
    return Gate(step, name=name, capture_key=f"{name}.ok", question=f"Is {name} good?", **fields)


def tree() -> Block:
    """Return two gates side by side, and one in a loop."""
    sides = Block([gate("z"), Block([gate("a")], name="deep")], name="sides", parallel=True)
    again = Loop([gate("line")], name="again", until="line.ok", max_iterations=3)
    return Block([sides, again, Step("Go.", name="go")], name="work")


def go(store: Store, *, resume: bool = True) -> Mapping[str, Any]:
    """Run as far as it goes; give the outputs, or by path the questions that are open."""
    options: dict[str, Any] = {"resume": "r1"} if resume else {"ctx": RunContext(run_id="r1")}
    model = ScriptedModel(default=lambda messages: f"to {messages[-1].text}")
    try:
        return run_generation(tree(), model=model, runs=store, **options).outputs
    except GateOpen as error:
        return {question.path: question for question in error.questions}


def asked(store: Store) -> list[str]:
    """Return the paths of the questions that are open."""
    return [question.path for question in open_questions(*store.read("r1"), tree())]


def test_the_journal_tells_what_is_asked(place: Place) -> None:
    """The questions are those that the run raised, in the order of the tree."""
    store = place.store()
    raised = go(store, resume=False)
    found = open_questions(*store.read("r1"), tree())
    assert [one.path for one in found] == ["work/sides/z", "work/sides/deep/a"]
    assert [one.to_plain() for one in found] == [raised[one.path].to_plain() for one in found]
    assert {one.run for one in found} == {"r1"}


def test_what_is_answered_is_not_asked_again(place: Place) -> None:
    """Each answer stands on record, and the run that goes on takes it."""
    store = place.store()
    go(store, resume=False)
    answer_questions(store, "r1", tree(), {"work/sides/deep/a": {"decision": "edit", "text": "A"}})
    assert asked(store) == list(go(store)) == ["work/sides/z"]
    answer_questions(store, "r1", tree(), {"work/sides/z": "approve"})
    assert list(go(store)) == asked(store) == ["work/again/iteration_01/line"]
    answer_questions(store, "r1", tree(), {"work/again/iteration_01/line": "reject"})
    assert list(go(store)) == asked(store) == ["work/again/iteration_02/line"]
    answer_questions(store, "r1", tree(), {"work/again/iteration_02/line": True})
    outputs = go(store)
    assert outputs["a"] == "A"
    assert outputs["z.ok"] == outputs["line.ok"] == {"decision": "approve", "feedback": ""}
    assert asked(store) == []


def test_a_part_of_a_tree_in_a_host_is_answered(tmp_path: Path) -> None:
    """The questions of a part that runs in a host's node are found by the node's name."""
    work = Block([Step("A.", name="a"), Block([gate("b")], name="in")], name="work")
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    model = ScriptedModel(["text"])
    builder.add_node("refine", compile_graph(work, model=model, at="work/in", journal=tmp_path))
    builder.add_edge(START, "refine")
    host = builder.compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "t"}}
    host.invoke({"messages": []}, thread)
    store = FileStore(tmp_path)
    [run_id] = store.runs()
    [found] = open_questions(*store.read(run_id), work, host="refine")
    assert (run_id, found.path) == ("t.refine", "work/in/b")
    answer_questions(store, run_id, work, {found.path: "approve"}, host="refine")
    assert [str(m.text) for m in host.invoke(None, thread)["messages"]] == ["text"]
    with pytest.raises(LookupError, match="no node at 'work/in'"):
        open_questions(*store.read(run_id), gate("b"))


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"work/sides/a": "approve"}, "at work/sides/a .did you mean .work/sides/z."),
        ({"work/sides/z": "perhaps"}, "work/sides/z: an answer at a gate is 'approve'"),
        ({"work/sides/z": {"decision": "edit", "outputs": {"y": 1}}}, "cannot add the output 'y'"),
    ],
)
def test_answers_that_do_not_fit_write_nothing(
    tmp_path: Path, answers: dict[str, Any], problem: str
) -> None:
    """One of several that does not fit keeps the others from the record too."""
    with place_of("files", tmp_path) as place:
        store = place.store()
        go(store, resume=False)
        before = store.read("r1")
        with pytest.raises(StepError, match=problem):
            answer_questions(store, "r1", tree(), {"work/sides/deep/a": "approve", **answers})
        assert store.read("r1") == before


def test_a_run_that_is_being_written_is_not_answered(place: Place) -> None:
    """Who runs it holds it, and would not see the answer."""
    store = place.store()
    go(store, resume=False)
    with store.open("r1"), pytest.raises(JournalError, match="r1"):
        answer_questions(place.store(), "r1", tree(), {"work/sides/z": "approve"})
    assert asked(store) == ["work/sides/z", "work/sides/deep/a"]
