"""Checkpoints: what a saver sees of a run, and how a run goes on after a failure.

The suite runs with LANGGRAPH_STRICT_MSGPACK=true, so that only plain data and messages pass.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from tests.engine.engines import texts

from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, Graph, compile_graph
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import PromptContext, Template

Saver = BaseCheckpointSaver[Any]
THREAD: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Saver]:
    """Yield a checkpointer in memory, and one on disk."""
    if request.param == "memory":
        yield InMemorySaver()
        return
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.sqlite")) as opened:
        yield opened


def pipeline() -> Block:
    """Return a tree of two stages with captures, an input and parallel children."""
    sides = Block([Step("B.", name="b"), Step("C.", name="c")], name="sides", parallel=True)
    stage = Block(
        [Step("A.", capture_key="a"), sides, Step("D.", name="d")],
        name="stage",
        merge="last_response",
    )
    return Block([Step(Template("Of {{ topic }}."), name="first"), stage], inputs=["topic"])


def given() -> dict[str, Any]:
    """Return the pipeline's input."""
    return {"messages": [HumanMessage("Hi.", id="g")], "inputs": {"topic": "cats"}}


def echo(**by_path: Any) -> ScriptedModel:
    """Return a model that answers a path's last name in capitals; `by_path` by last name."""
    homes = {"first": "pipeline", "b": "pipeline/stage/sides", "c": "pipeline/stage/sides"}
    return ScriptedModel(
        by_path={f"{homes.get(name, 'pipeline/stage')}/{name}": by_path[name] for name in by_path},
        default=lambda messages: f"to {messages[-1].text}",
    )


def prompts(model: ScriptedModel) -> list[str]:
    """Return the prompts that the model was given, in order."""
    return [str(call.messages[-1].text) for call in model.calls]


def test_strict_checkpoints_are_on() -> None:
    """What these tests prove, they prove with the strict serializer."""
    assert os.environ["LANGGRAPH_STRICT_MSGPACK"] == "true"


def test_a_run_can_be_saved_and_read_back(saver: Saver, form: Form) -> None:
    """The state of the thread is the result of the run: conversation and outputs."""
    graph = compile_graph(pipeline(), model=echo(), checkpointer=saver, form=form)
    found = graph.invoke(given(), THREAD)
    values = graph.get_state(THREAD).values
    assert texts(values["messages"]) == texts(found["messages"])
    assert values["outputs"] == found["outputs"] == {"a": "to A."}


def failing_at(name: str, form: Form, saver: Saver | None) -> tuple[Graph, ScriptedModel]:
    """Return a graph whose model fails once, at one step."""
    model = echo(**{name: [TimeoutError("no"), f"{name} at last"]})
    return compile_graph(pipeline(), model=model, checkpointer=saver, form=form), model


def test_the_states_of_blocks_can_be_seen_while_a_run_stands(saver: Saver) -> None:
    """After a failure get_state(subgraphs=True) shows base and work of each open block."""
    graph, _ = failing_at("d", "subgraphs", saver)
    with pytest.raises(TimeoutError):
        graph.invoke(given(), THREAD)
    root = graph.get_state(THREAD, subgraphs=True)
    assert root.next == ("pipeline",)
    block = _below(root)
    assert texts(block.values["messages"]) == ["Hi."]
    assert texts(block.values["work"]) == ["Of cats.", "to Of cats."]
    stage = _below(block)
    assert stage.next == ("d",)
    assert texts(stage.values["messages"]) == ["Hi.", "Of cats.", "to Of cats."]
    assert texts(stage.values["work"]) == ["A.", "to A.", "B.", "to B.", "C.", "to C."]
    assert stage.values["captures"] == {"a": "to A."}


def _below(state: Any) -> Any:
    (task,) = state.tasks
    return task.state


def test_a_run_goes_on_where_it_failed(saver: Saver) -> None:
    """After a failure in the middle, invoke(None) repeats only what had not finished."""
    graph, model = failing_at("d", "subgraphs", saver)
    with pytest.raises(TimeoutError):
        graph.invoke(given(), THREAD)
    before = len(model.calls)
    found = graph.invoke(None, THREAD)
    assert prompts(model)[before:] == ["D."]
    assert texts(found["messages"]) == ["Hi.", "Of cats.", "to Of cats.", "d at last"]
    assert found["outputs"] == {"a": "to A."}


def test_a_run_that_went_on_gives_what_an_unbroken_one_gives(saver: Saver) -> None:
    """The resumed call sees exactly what it would have seen, and messages keep one run's id."""
    graph, model = failing_at("d", "subgraphs", saver)
    with pytest.raises(TimeoutError):
        graph.invoke(given(), THREAD)
    found = graph.invoke(None, THREAD)
    failed, again = model.seen_at("pipeline/stage/d")
    assert failed.messages == again.messages
    ids = [str(message.id).partition("/")[0] for message in found["messages"][1:]]
    assert len(set(ids)) == 1


def test_a_failed_child_of_a_parallel_block_is_repeated_alone(saver: Saver) -> None:
    """Its siblings, which had finished, are not paid again."""
    graph, model = failing_at("b", "subgraphs", saver)
    with pytest.raises(TimeoutError):
        graph.invoke(given(), THREAD)
    assert sorted(prompts(model)) == ["A.", "B.", "C.", "Of cats."]
    found = graph.invoke(None, THREAD)
    assert prompts(model)[4:] == ["B.", "D."]
    seen = texts(model.calls[-1].messages)
    assert seen[5:] == ["B.", "b at last", "C.", "to C.", "D."]
    assert texts(found["messages"])[-1] == "to D."


def test_two_failed_children_of_a_parallel_block_are_repeated(saver: Saver) -> None:
    """Every child that has no result runs again, and the others do not."""
    sides = [Step(f"{name}.", name=name, merge="last_response") for name in "zyx"]
    model = ScriptedModel(
        by_path={"pipeline/z": [TimeoutError(), "z"], "pipeline/x": [TimeoutError(), "x"]},
        default="y",
    )
    tree = Block(sides, parallel=True)
    graph = compile_graph(tree, model=model, checkpointer=saver)
    with pytest.raises(TimeoutError):
        graph.invoke({"messages": []}, THREAD)
    assert texts(graph.invoke(None, THREAD)["messages"]) == ["z", "y", "x"]
    assert sorted(prompts(model)[3:]) == ["x.", "z."]


def test_a_block_beside_others_goes_on_where_it_failed(saver: Saver) -> None:
    """Of a block that failed inside of a parallel block only what had not finished is repeated."""
    left = Block([Step("A."), Step("B.", name="b")], name="left")
    model = ScriptedModel(by_path={"pipeline/left/b": [TimeoutError(), "b"]}, default="x")
    tree = Block([left, Step("C.")], parallel=True)
    graph = compile_graph(tree, model=model, checkpointer=saver)
    with pytest.raises(TimeoutError):
        graph.invoke({"messages": []}, THREAD)
    found = graph.invoke(None, THREAD)
    assert texts(found["messages"]) == ["A.", "x", "B.", "b", "C.", "x"]
    assert prompts(model)[3:] == ["B."]


def test_a_resumed_run_that_fails_again_raises_again(saver: Saver) -> None:
    """A child that fails twice is an error twice, with its path, and the third try may do."""
    model = ScriptedModel(
        by_path={"pipeline/b": [TimeoutError("1"), TimeoutError("2"), "b"]}, default="x"
    )
    tree = Block([Step("A.", name="a"), Step("B.", name="b")], parallel=True)
    graph = compile_graph(tree, model=model, checkpointer=saver)
    for number, entry in (("1", {"messages": []}), ("2", None)):
        with pytest.raises(TimeoutError, match=number) as raised:
            graph.invoke(entry, THREAD)
        assert getattr(raised.value, "pipeline_path", "") == "pipeline/b"
    assert texts(graph.invoke(None, THREAD)["messages"]) == ["A.", "x", "B.", "b"]
    assert prompts(model).count("A.") == 1


def test_a_fused_run_starts_again_as_a_whole(saver: Saver) -> None:
    """The fused form is one node: resumed, it gives the same result and repeats all its calls."""
    graph, model = failing_at("d", "fused", saver)
    with pytest.raises(TimeoutError):
        graph.invoke(given(), THREAD)
    before = len(model.calls)
    found = graph.invoke(None, THREAD)
    assert sorted(prompts(model)[before:]) == ["A.", "B.", "C.", "D.", "Of cats."]
    assert texts(found["messages"]) == ["Hi.", "Of cats.", "to Of cats.", "d at last"]


def test_a_resumed_run_is_recorded_once_a_call(saver: Saver) -> None:
    """Over both attempts each answered call is on record once, the failure beside it."""
    graph, _ = failing_at("d", "subgraphs", saver)
    recorder = Recorder()
    config: Any = {**THREAD, "callbacks": [recorder]}
    with pytest.raises(TimeoutError):
        graph.invoke(given(), config)
    graph.invoke(None, config)
    answered = [record.path for record in recorder.journal.records if record.answered]
    assert len(answered) == len(set(answered)) == 5
    assert [record.path for record in recorder.journal.records if not record.answered] == [
        "pipeline/stage/d"
    ]


def test_a_resumed_run_keeps_its_inputs(saver: Saver) -> None:
    """Inputs are those of the run that failed, and need not be given again."""
    tree = Block([Step("A."), Step(Template("Of {{ topic }}."))], inputs=["topic"])
    model = ScriptedModel(["x", TimeoutError(), "y"])
    graph = compile_graph(tree, model=model, checkpointer=saver)
    with pytest.raises(TimeoutError):
        graph.invoke({"messages": [], "inputs": {"topic": "cats"}}, THREAD)
    assert texts(graph.invoke(None, THREAD)["messages"])[-2:] == ["Of cats.", "y"]


def test_a_resumed_part_of_a_host_goes_on(saver: Saver, form: Form) -> None:
    """Inside of a host's graph with a saver a pipeline goes on where it failed."""
    model = ScriptedModel(by_path={"stage/d": [TimeoutError(), "done"]}, default="x")
    tree = Block([Step("A."), Step("D.", name="d")], name="stage")
    graph = compile_graph(tree, model=model, form=form)
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("host", graph)
    builder.add_edge(START, "host")
    host = builder.compile(checkpointer=saver)
    with pytest.raises(TimeoutError):
        host.invoke({"messages": [HumanMessage("Hi.", id="g")]}, THREAD)
    found = host.invoke(None, THREAD)
    assert texts(found["messages"]) == ["Hi.", "A.", "x", "D.", "done"]
    repeated = ["D."] if form == "subgraphs" else ["A.", "D."]
    assert prompts(model)[2:] == repeated


def test_an_async_run_goes_on_where_it_failed() -> None:
    """The same on an event loop."""
    graph, model = failing_at("b", "subgraphs", InMemorySaver())

    async def work() -> list[BaseMessage]:
        with pytest.raises(TimeoutError):
            await graph.ainvoke(given(), THREAD)
        messages: list[BaseMessage] = (await graph.ainvoke(None, THREAD))["messages"]
        return messages

    assert texts(asyncio.run(work()))[-1] == "to D."
    assert prompts(model)[4:] == ["B.", "D."]


def test_a_second_turn_takes_new_inputs(saver: Saver, form: Form) -> None:
    """On one thread each turn brings its inputs; a turn that lacks one is refused."""
    tree = Block([Step(Template("Of {{ topic }}."), merge="last_response")], inputs=["topic"])
    model = ScriptedModel(default=lambda messages: str(messages[-1].text))
    graph = compile_graph(tree, model=model, checkpointer=saver, form=form)
    graph.invoke({"messages": [], "inputs": {"topic": "cats"}}, THREAD)
    found = graph.invoke({"messages": [], "inputs": {"topic": "dogs"}}, THREAD)
    assert texts(found["messages"]) == ["Of cats.", "Of dogs."]
    with pytest.raises(ValueError, match="input 'topic' is missing"):
        graph.invoke({"messages": []}, THREAD)


def test_a_scope_is_not_kept_for_the_next_turn(form: Form) -> None:
    """A scope belongs to the run that it was given to."""
    recorder = Recorder()
    tree = Block([Step("A.")])
    graph = compile_graph(
        tree, model=ScriptedModel(default="x"), checkpointer=InMemorySaver(), form=form
    )
    config: Any = {**THREAD, "callbacks": [recorder]}
    graph.invoke({"messages": [], "scope": "one"}, config)
    graph.invoke({"messages": []}, config)
    assert [record.key.host for record in recorder.journal.records] == ["one", ""]


def test_a_run_id_given_twice_on_a_thread_overwrites_nothing(saver: Saver, form: Form) -> None:
    """Where the conversation holds messages of that id already, the second turn gets another."""
    graph = compile_graph(
        Step("A."), model=ScriptedModel(["one", "two"]), checkpointer=saver, form=form
    )
    config: Any = {"configurable": {"thread_id": "t", "mergepoint_run_id": "r"}}
    graph.invoke({"messages": []}, config)
    found = graph.invoke({"messages": []}, config)
    assert texts(found["messages"]) == ["A.", "one", "A.", "two"]


@pytest.mark.parametrize("parallel", [False, True], ids=["in a row", "side by side"])
def test_a_prompt_may_ask_a_person(saver: Saver, *, parallel: bool) -> None:
    """LangGraph's own interrupt goes through every block, and its answer comes back in place."""

    def asking(ctx: PromptContext) -> str:
        return f"They said {interrupt('Go on?')}."

    inner = Block([Step("A.", name="a"), Step(asking, name="b")], parallel=parallel, name="in")
    recorder = Recorder()
    graph = compile_graph(Block([inner, Step("C.")]), model=echo(), checkpointer=saver)
    config: Any = {**THREAD, "callbacks": [recorder]}
    asked = graph.invoke({"messages": []}, config)
    assert [one.value for one in asked["__interrupt__"]] == ["Go on?"]
    found = graph.invoke(Command(resume="yes"), config)
    assert texts(found["messages"]) == [
        *("A.", "to A.", "They said yes.", "to They said yes.", "C.", "to C."),
    ]
    assert len(recorder.journal.records) == 3


class Plan(BaseModel):
    """A plan."""

    steps: list[dict[str, int]]


def test_structured_outputs_survive_a_checkpoint(saver: Saver) -> None:
    """What is captured from a schema is plain JSON, which a saver gives back as it was."""
    tree = Block([Step("A.", schema=Plan, capture_key="plan"), Step("B.")])
    model = ScriptedModel(['{"steps": [{"n": 1}]}', TimeoutError(), "y"])
    graph = compile_graph(tree, model=model, checkpointer=saver)
    with pytest.raises(TimeoutError):
        graph.invoke({"messages": []}, THREAD)
    assert graph.invoke(None, THREAD)["outputs"] == {"plan": {"steps": [{"n": 1}]}}
