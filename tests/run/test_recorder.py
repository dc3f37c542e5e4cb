"""The recorder: what it hears and what it keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from tests.run.engines import Engine

from mergepoint.record.journal import MemoryJournal
from mergepoint.run.graph import Form, compile_graph
from mergepoint.run.recorder import Event, Recorder
from mergepoint.testing.scripted import Answer, ScriptedModel
from mergepoint.tree.block import Block
from mergepoint.tree.step import Step


def test_each_call_is_recorded_once(engine: Engine) -> None:
    """With a listener or without, a call has one record."""
    for recorder in (Recorder(), Recorder(on_event=lambda event: None)):
        engine(Block([Step("A."), Step("B.")]), ScriptedModel(default="x"), recorder=recorder)
        assert [record.path for record in recorder.journal.records] == [
            "pipeline/step_01",
            "pipeline/step_02",
        ]


def test_a_record_says_what_was_given_and_what_came(engine: Engine) -> None:
    """Prompt, lead, context, answer, usage, model and times are there."""
    recorder = Recorder()
    answer = Answer("two words", usage=(7, 2))
    step = Step("B.", system="S.", examples=[("2+2?", "4")])
    engine(Block([Step("A."), step]), ScriptedModel(["x", answer]), recorder=recorder)
    record = recorder.journal.records[1]
    assert (record.prompt, [one.text for one in record.lead]) == ("B.", ["S.", "2+2?", "4"])
    assert (record.context, record.response) == (2, "two words")
    assert record.usage is not None
    assert record.usage["total_tokens"] == 9
    assert 0 < record.started <= record.ended
    assert (record.source, record.attempt, record.error) == ("live", 1, None)


def test_a_recorder_may_write_into_a_journal_of_ones_own() -> None:
    """The journal that is given is the one that is used."""
    journal = MemoryJournal()
    assert Recorder(journal).journal is journal


def test_a_listener_hears_for_a_while() -> None:
    """Inside of `heard_by` events are told, after it no more."""
    heard: list[Event] = []
    recorder, model = Recorder(), ScriptedModel(default="x")
    engine = Engine("interpret", on_loop=False)
    with recorder.heard_by(heard.append):
        engine(Step("A."), model, recorder=recorder)
    engine(Step("A."), model, recorder=recorder)
    assert [event.kind for event in heard] == ["start", "end"]
    assert len(recorder.journal.records) == 2


def test_a_model_call_outside_of_any_graph_is_recorded() -> None:
    """Given to a bare model, the recorder keeps the call under the path `call`."""
    recorder = Recorder()
    config: RunnableConfig = {"callbacks": [recorder]}
    ScriptedModel(["x"]).invoke([HumanMessage("A."), HumanMessage("B.")], config)
    asyncio.run(ScriptedModel(["y"]).ainvoke("C.", config))
    records = recorder.journal.records
    assert [(one.path, one.prompt, one.context, one.response) for one in records] == [
        ("call", "B.", 1, "x"),
        ("call", "C.", 0, "y"),
    ]


def test_a_streamed_call_outside_of_any_graph_is_recorded_once() -> None:
    """Tokens are told as events, and the call is kept once, whole."""
    heard: list[Event] = []
    recorder = Recorder(on_event=heard.append)
    for _ in ScriptedModel(["one two"]).stream("A.", {"callbacks": [recorder]}):
        pass
    kinds = [event.kind for event in heard]
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("start", "end", {"token"})
    assert [record.response for record in recorder.journal.records] == ["one two"]


def test_a_failed_call_outside_of_any_graph_is_recorded() -> None:
    """What the model raised is on record and is told."""
    heard: list[Event] = []
    recorder = Recorder(on_event=heard.append)
    with pytest.raises(ValueError, match="no"):
        ScriptedModel([ValueError("no")]).invoke("A.", {"callbacks": [recorder]})
    (record,) = recorder.journal.records
    assert record.error == {"type": "ValueError", "message": "no"}
    assert [event.kind for event in heard] == ["start", "error"]


def test_an_end_without_a_start_is_passed_over() -> None:
    """A recorder that joins late keeps nothing of a call that it did not see start."""
    from uuid import uuid4

    from langchain_core.outputs import LLMResult

    recorder = Recorder()
    recorder.on_llm_new_token("x", run_id=uuid4())
    recorder.on_llm_end(LLMResult(generations=[]), run_id=uuid4())
    recorder.on_llm_error(ValueError("no"), run_id=uuid4())
    assert recorder.journal.records == ()


def managed(handlers: list[BaseCallbackHandler]) -> CallbackManager:
    """Give the handlers as a manager, as a host hands them on."""
    return CallbackManager.configure(inheritable_callbacks=handlers)


@pytest.mark.parametrize("wrap", [list, managed], ids=["list", "manager"])
def test_a_journal_that_two_recorders_share_gets_each_record_once(form: Form, wrap: Any) -> None:
    """Records go to each journal once; handlers of another kind are passed over."""
    shared, own = MemoryJournal(), MemoryJournal()
    handlers = [Recorder(shared), BaseCallbackHandler(), Recorder(shared), Recorder(own)]
    graph = compile_graph(Step("A."), model=ScriptedModel(["x"]), form=form)
    graph.invoke({"messages": []}, {"callbacks": wrap(handlers)})
    assert [record.response for record in shared.records] == ["x"]
    assert own.records == shared.records


def test_a_listener_that_raises_stops_the_call(engine: Engine) -> None:
    """An error of a listener is not swallowed."""

    def listener(event: Event) -> None:
        raise RuntimeError("enough")

    model = ScriptedModel([])
    with pytest.raises(RuntimeError, match="enough"):
        engine(Step("A."), model, recorder=Recorder(on_event=listener))
    assert model.calls == []
