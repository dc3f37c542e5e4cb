"""Compiled graphs as tools: arguments, results, and several calls at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send
from pydantic import ValidationError

from mergepoint.core.errors import StepError, TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiled_graph import CompiledTree
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Gate, Node
from mergepoint.tree.prompts import Template


def echoing() -> ScriptedModel:
    """Return a model that answers with the last message in brackets."""
    return ScriptedModel(default=lambda messages: f"[{messages[-1].text}]")


def writer(first: Node | None = None) -> Block:
    """Return a tree of two calls whose last one tells both topics and tones."""
    ask = Template("About {{ topic }}, {{ tone }}, {{ lines }}.")
    final = Step(ask, name="final", merge="last_response")
    inputs: list[Any] = ["topic", ("tone", "plain"), ("lines", 3), ("likes", None)]
    return Block([first or Step("A plan.", name="plan"), final], name="write", inputs=inputs)


def compiled(form: Form, tree: Node | None = None, **options: Any) -> CompiledTree:
    """Return a graph with the echoing model."""
    return compile_graph(tree or writer(), model=echoing(), form=form, **options)


def test_the_arguments_are_the_declared_inputs(form: Form) -> None:
    """Names, those that are required, and types and defaults where there is a default."""
    tool = compiled(form).as_tool(description="Write.")
    assert (tool.name, tool.description) == ("write", "Write.")
    assert tool.args == {
        "topic": {"title": "Topic"},
        "tone": {"title": "Tone", "default": "plain", "type": "string"},
        "lines": {"title": "Lines", "default": 3, "type": "integer"},
        "likes": {"title": "Likes", "default": None},
    }
    schema: Any = tool.args_schema
    assert schema["required"] == ["topic"]


def test_the_result_is_the_last_response_and_the_artifact_all(form: Form) -> None:
    """What a model reads is text, sync and async; the graph's result goes along."""
    tool = compiled(form).as_tool()
    assert tool.invoke({"topic": "rain"}) == "[About rain, plain, 3.]"
    assert asyncio.run(tool.ainvoke({"topic": "rain", "lines": 1})) == "[About rain, plain, 1.]"
    call = {"type": "tool_call", "id": "c1", "name": "write", "args": {"topic": "fog"}}
    message = tool.invoke(call)
    assert isinstance(message, ToolMessage)
    assert message.content == "[About fog, plain, 3.]"
    assert message.artifact["messages"][-1].text == message.content


@pytest.mark.parametrize(
    ("keys", "text"), [([], ""), (["a"], "[A]"), (["a", "b"], '{"a": "[A]", "b": "[B]"}')]
)
def test_without_a_response_the_result_is_the_outputs(keys: list[str], text: str) -> None:
    """One output alone is told as it is, several as JSON."""
    steps = [Step(key.upper(), merge="none", capture_key=key) for key in keys]
    assert compiled("fused", Block(steps)).as_tool().invoke({}) == text


def test_without_declared_inputs_it_takes_a_message(form: Form) -> None:
    """The message opens the conversation, and may be left out."""
    step = Step("Shorten it.", name="cut it")
    graph = compile_graph(step, model=ScriptedModel(default=lambda seen: f"{len(seen)}"), form=form)
    tool = graph.as_tool()
    assert (tool.name, list(tool.args)) == ("cut_it", ["message"])
    assert [tool.invoke({}), tool.invoke({"message": "A long text."})] == ["1", "2"]


@pytest.mark.parametrize("given", [{}, {"topic": "a", "tune": 1}, {"topic": "a", "lines": "b"}])
def test_wrong_arguments_are_refused_before_any_call(given: dict[str, Any]) -> None:
    """A missing, an unknown and an ill-typed argument raise what agents tell their models."""
    graph = compiled("fused")
    with pytest.raises(ValidationError):
        graph.as_tool().invoke(given)


def test_names_that_langchain_keeps_are_refused() -> None:
    """An input named as an argument of a tool's method is named in the error."""
    graph = compiled("fused", Block([Step("A.")], inputs=["config"]))
    with pytest.raises(TreeError, match="input 'config' has the name of an argument"):
        graph.as_tool()


def test_it_stays_a_tree_with_a_config() -> None:
    """A copy with a config is a tool of the same arguments."""
    assert list(compiled("fused").with_config(tags=["x"]).as_tool().args) == [
        "topic",
        "tone",
        "lines",
        "likes",
    ]


def test_an_open_gate_is_an_error_where_nobody_can_answer() -> None:
    """A tool that is called alone says where the run waits and what to do."""
    tool = compiled("subgraphs", Gate(Step("A.", name="a"), name="ok")).as_tool()
    with pytest.raises(StepError, match="waits for a decision at ok, and nobody can answer it"):
        tool.invoke({})


def agent_of(graph: CompiledTree) -> Any:
    """Return an agent's second half, which sends each tool call of the last answer to a node."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([graph.as_tool()]))
    builder.add_conditional_edges(
        START,
        lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls],
        ["tools"],
    )
    builder.add_edge("tools", END)
    return builder.compile(checkpointer=InMemorySaver())


def asked() -> dict[str, Any]:
    """Return two calls of one answer."""
    calls = [
        {"type": "tool_call", "id": f"call/{n}", "name": "write", "args": {"topic": topic}}
        for n, topic in enumerate(("rain", "fog"))
    ]
    return {"messages": [AIMessage("", tool_calls=calls)]}


def test_calls_at_once_have_paths_and_journals_of_their_own(form: Form, tmp_path: Path) -> None:
    """Two calls of one answer share recorder, thread and journal's folder, and do not meet."""
    recorder = Recorder()
    config: RunnableConfig = {"callbacks": [recorder], "configurable": {"thread_id": "t"}}
    found = agent_of(compiled(form, journal=tmp_path)).invoke(asked(), config)
    assert [message.text for message in found["messages"][1:]] == [
        "[About rain, plain, 3.]",
        "[About fog, plain, 3.]",
    ]
    assert sorted(record.key.full_path for record in recorder.journal.records) == [
        f"tools/call_{n}/write/{step}" for n in range(2) for step in ("final", "plan")
    ]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t.tools.call_0", "t.tools.call_1"]


@pytest.mark.parametrize("journaled", [False, True])
def test_gates_of_calls_at_once_are_answered_together(tmp_path: Path, journaled: bool) -> None:  # noqa: FBT001
    """A host stops at both gates, and goes on from both answers without calling anything twice."""
    model = echoing()
    tree = writer(Gate(Step("A plan.", name="plan"), name="ok"))
    journal = tmp_path if journaled else None
    agent = agent_of(compile_graph(tree, model=model, journal=journal))
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    stopped = agent.invoke(asked(), config)
    answers = {one.id: "approve" for one in stopped["__interrupt__"]}
    assert len(answers) == 2
    found = agent.invoke(Command(resume=answers), config)
    assert [one.text for one in found["messages"][1:]] == [
        "[About rain, plain, 3.]",
        "[About fog, plain, 3.]",
    ]
    assert len(model.calls) == 4


def test_a_step_calls_a_graph_as_a_tool(form: Form) -> None:
    """Its calls are below the execution of the tool, and a second run repeats none."""
    call = Answer(tool_calls=[{"name": "write", "args": {"topic": "rain"}}])
    step = Step("Go.", name="ask", tools=[compiled("subgraphs").as_tool()])
    recorder = Recorder()
    graph = compile_graph(Block([step]), model=ScriptedModel([call, "Done."]), form=form)
    found = graph.invoke({"messages": []}, {"callbacks": [recorder]})
    assert found["messages"][2].text == "[About rain, plain, 3.]"
    paths = [record.key.full_path for record in recorder.journal.records]
    assert paths == [
        "pipeline/ask",
        "pipeline/ask/tool_01/write/plan",
        "pipeline/ask/tool_01/write/final",
        "pipeline/ask/tool_01",
        "pipeline/ask",
        "pipeline/ask",
    ]
