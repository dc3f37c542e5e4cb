"""Replay: the state and every view worked out again from the records alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint.core.merge import State
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.interpreter import interpret
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.replay import replay
from mergepoint.journal.transcript import Transcript, count_words
from mergepoint.testing.random_trees import Case, cases
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.tree_functions import TableModel, line
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Loop
from mergepoint.tree.semantics import Messages
from mergepoint.tree.transform import from_outline, outline

RUN = "r1"


def run(case: Case) -> tuple[Messages | None, TableModel, Recorder]:
    """Return the state at the end (None after a failure), the model and the recorder."""
    model, recorder = TableModel(table=case.answers), Recorder()
    try:
        state = interpret(
            case.tree,
            model=model,
            messages=case.messages,
            inputs=case.inputs,
            run_id=RUN,
            recorder=recorder,
        )
    except Exception:  # noqa: BLE001  (failing trees are part of the law)
        return None, model, recorder
    return state, model, recorder


@given(case=cases())
@settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_replay_of_the_journal_is_the_state(case: Case) -> None:
    """The merges of a tree over its records give the state, also without the tree's prompts."""
    state, _, recorder = run(case)
    records = recorder.journal.records
    base: Messages = State(tuple(case.messages))
    for tree in (case.tree, from_outline(outline(case.tree))):
        again = replay(records, tree, base=base)
        if state is None:
            assert again.state is None
        else:
            assert again.state == state


@given(case=cases())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_replay_gives_what_every_call_saw(case: Case) -> None:
    """Lead, view and prompt are together what the model was given, message by message."""
    _, model, recorder = run(case)
    again = replay(recorder.journal.records, case.tree, base=State(tuple(case.messages)))
    saw = dict(model.saw)
    for record in recorder.journal.records:
        if record.kind != "step":
            continue
        view = again.views[record.path].messages
        request = [*record.lead, *view, HumanMessage(record.prompt)]
        assert tuple(map(line, request)) == saw[record.path]
        assert record.context == len(view)


@given(case=cases())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_words_are_counted_from_what_was_really_sent(case: Case) -> None:
    """The transcript's words of a step are those of the messages that the model was given."""
    _, model, recorder = run(case)
    transcript = Transcript.of(
        recorder.journal.records, case.tree, run_id=RUN, at=_root(case), base=case.messages
    )
    answered = {record.path for record in transcript.records if record.kind == "step"}
    really = {
        path: sum(count_words(text) for _, text in seen)
        for path, seen in model.saw
        if path in answered
    }
    assert {path: words for path, words in transcript.words_by_path.items() if words} == really
    assert transcript.words_sent == sum(really.values())


def _root(case: Case) -> str:
    return str(outline(case.tree)["path"])


def test_origins_say_where_each_message_was_made() -> None:
    """Every message that the run made is traced to its path; the base has no origin."""
    tree = Block([Step("A."), Block([Step("B.")], name="in", merge="last_response")])
    recorder = Recorder()
    base: list[BaseMessage] = [HumanMessage("Hi.", id="g")]
    state = interpret(
        tree, model=ScriptedModel(["a", "b"]), messages=base, run_id="r", recorder=recorder
    )
    found = replay(recorder.journal.records, tree, base=State(tuple(base)))
    assert [found.origins.get(str(message.id)) for message in state.messages] == [
        None,
        "pipeline/step_01",
        "pipeline/step_01",
        "pipeline/in/step_01",
    ]


def test_replay_of_a_run_that_broke_off_has_no_state_and_the_views_there_are() -> None:
    """A missing answer ends what can be worked out; the siblings beside it can."""
    sides = Block([Step("B.", name="b"), Step("C.", name="c")], parallel=True, name="sides")
    tree = Block([Step("A."), sides, Step("D.")])
    records = [
        CallRecord(key=CallKey("r", "", path), prompt="A.", response="x")
        for path in ("pipeline/step_01", "pipeline/sides/c")
    ]
    found = replay(records, tree, base=State())
    assert found.state is None
    assert set(found.views) == {"pipeline/step_01", "pipeline/sides/b", "pipeline/sides/c"}


def test_replay_of_siblings_goes_on_after_one_that_failed() -> None:
    """A loop that came to no end does not hide what the calls beside it saw."""
    turning = Loop([Step("B.", name="b")], until="done", max_iterations=1, name="turning")
    tree = Block([turning, Step("C.", name="c")], parallel=True)
    records = [
        CallRecord(key=CallKey("r", "", path), prompt="A.", response="x")
        for path in ("pipeline/turning/iteration_01/b", "pipeline/c")
    ]
    found = replay(records, tree, base=State())
    assert found.state is None
    assert set(found.views) == {record.path for record in records}


def test_replay_takes_answers_and_not_failures() -> None:
    """A failed attempt is no answer."""
    failed = CallRecord(
        key=CallKey("r", "", "step_01"), prompt="A.", error={"type": "E", "message": ""}
    )
    answered = CallRecord(key=CallKey("r", "", "step_01"), prompt="A.", response="x")
    assert replay([failed], Step("A."), base=State()).state is None
    found = replay([failed, answered], Step("A."), base=State()).state
    assert found is not None
    assert found.messages[-1] == AIMessage("x", id="r/step_01/1")


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_replay_of_a_part_is_what_the_part_gave(form: Form, *, on_loop: bool) -> None:
    """A part that ran alone under its full path is replayed under it."""
    part = Block([Step("B.", merge="none"), Step("C.")], name="in", merge="last_response")
    tree = Block([Step("A."), part])
    recorder = Recorder()
    graph = compile_graph(
        tree, model=ScriptedModel(default="x"), form=form, at="pipeline/in", returns="delta"
    )
    given_: dict[str, Any] = {"messages": [HumanMessage("Hi.", id="g")]}
    config: Any = {"callbacks": [recorder]}
    work = graph.ainvoke(given_, config) if on_loop else None
    found = asyncio.run(work) if work is not None else graph.invoke(given_, config)
    again = replay(recorder.journal.records, part, base=State(), at="pipeline/in").state
    assert again is not None
    assert list(again.messages) == found["messages"]
