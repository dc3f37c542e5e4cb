"""The recorder: what it hears and what it keeps."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from tests.engine.engines import Engine

from mergepoint.engine.callbacks import Event, Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.stores import MemoryJournal
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import Template


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
    """Return the handlers as a manager, as a host hands them on."""
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


def test_a_listener_that_raises_fails_no_run(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on to its end with all records, and the error is logged."""

    def listener(event: Event) -> None:
        raise RuntimeError("enough")

    recorder = Recorder(on_event=listener)
    with caplog.at_level(logging.WARNING, logger="mergepoint.recorder"):
        engine(Block([Step("A."), Step("B.")]), ScriptedModel(default="x"), recorder=recorder)
    assert [record.response for record in recorder.journal.records] == ["x", "x"]
    assert "enough" in caplog.text


class Full(MemoryJournal):
    """A journal that takes no record."""

    def append(self, record: CallRecord) -> None:
        """Refuse it."""
        raise JournalError("no space left on device")


def test_a_hosts_own_call_outlives_a_journal_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """What the callbacks cannot write down is logged; the host has its answer."""
    model = ScriptedModel(["fine"])
    with caplog.at_level(logging.WARNING, logger="mergepoint.recorder"):
        answer = model.invoke("Well?", {"callbacks": [Recorder(Full())]})
    assert answer.text == "fine"
    assert "no space left on device" in caplog.text


def test_a_callback_with_nothing_in_it_is_passed_over() -> None:
    """A provider that announces a call without any message fails no host."""
    recorder = Recorder()
    recorder.on_chat_model_start({}, [], run_id=uuid4())
    recorder.on_chat_model_start({}, [[]], run_id=(run := uuid4()))
    recorder.on_llm_end(LLMResult(generations=[[]]), run_id=run)
    assert recorder.journal.records == ()


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_one_recorder_serves_fifty_runs_at_once(form: Form) -> None:
    """Concurrent runs of one graph, each with records of its own by its run's id."""
    everyone = threading.Barrier(50, timeout=60)

    class Meeting(ScriptedModel):
        async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
            if messages[-1].text == "First.":
                await asyncio.get_running_loop().run_in_executor(threads, everyone.wait)
            return await super()._agenerate(messages, *args, **kwargs)

    tree = Block(
        [Step("First.", name="a"), Step(Template("About {{ topic }}."), name="b")],
        name="t",
        inputs=["topic"],
    )
    model = Meeting(default="x")  # type: ignore[call-arg]
    graph = compile_graph(tree, model=model, form=form)
    recorder = Recorder()

    async def serve() -> list[Any]:
        config: RunnableConfig = {"callbacks": [recorder]}
        return list(
            await asyncio.gather(
                *(
                    graph.ainvoke({"messages": [], "inputs": {"topic": str(n)}}, config)
                    for n in range(50)
                )
            )
        )

    with ThreadPoolExecutor(50) as threads:
        answers = asyncio.run(serve())
    by_run: dict[str, list[str]] = {}
    for record in recorder.journal.records:
        by_run.setdefault(record.key.run, []).append(f"{record.key.full_path}: {record.prompt}")
    asked = sorted(one[-1] for one in by_run.values())
    assert len(answers) == len(by_run) == 50
    assert asked == sorted(f"t/b: About {n}." for n in range(50))
    assert all(one[0] == "t/a: First." for one in by_run.values())


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_runs_of_one_id_at_once_are_told_apart(form: Form) -> None:
    """Where a host gives several runs one id, the later ones are below a number."""
    everyone = threading.Barrier(3, timeout=60)

    class Meeting(ScriptedModel):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            everyone.wait()
            return super()._generate(*args, **kwargs)

    model = Meeting(default="x")  # type: ignore[call-arg]
    graph = compile_graph(Block([Step("A.")], name="t"), model=model, form=form)
    recorder = Recorder()
    config: RunnableConfig = {
        "callbacks": [recorder],
        "configurable": {"mergepoint_run_id": "r"},
    }
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: graph.invoke({"messages": []}, config), range(3)))
    paths = sorted(record.key.full_path for record in recorder.journal.records)
    assert paths == ["2/t/step_01", "3/t/step_01", "t/step_01"]
