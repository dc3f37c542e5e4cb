"""Embedding: a compiled tree in graphs, chains and tools of others."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from pydantic import BaseModel
from tests.engine.engines import Echo, texts
from typing_extensions import TypedDict

from mergepoint.core.errors import TreeError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, Graph, compile_graph
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import Template


class Appended(TypedDict):
    """The state of a host that appends."""

    messages: Annotated[list[BaseMessage], operator.add]


def pipeline() -> Block:
    """Return a tree with a thought that is dropped and a block that keeps its last response."""
    inner = Block([Step("B.", merge="none"), Step("C.")], name="inner", merge="last_response")
    return Block([Step("A."), inner], name="mp")


def compiled(form: Form = "subgraphs", **options: Any) -> tuple[Graph, ScriptedModel]:
    """Return the graph and the model that answers in it."""
    model = ScriptedModel(default=lambda messages: str(messages[-1].text).lower())
    return compile_graph(pipeline(), model=model, form=form, **options), model


def hosted(state: Any, *nodes: tuple[str, Any]) -> Any:
    """Return a host graph that runs nodes one after the other."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    before = START
    for name, node in nodes:
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    builder.add_edge(before, END)
    return builder.compile()


HELLO = ("user", "Hi.")


def test_a_host_with_add_messages_gets_what_the_root_keeps(form: Form) -> None:
    """In a MessagesState graph the conversation grows by the pipeline's messages, once."""
    graph, model = compiled(form)
    found = hosted(MessagesState, ("host", graph)).invoke({"messages": [HELLO]})
    assert texts(found["messages"]) == ["Hi.", "A.", "a.", "c."]
    assert texts(model.calls[0].messages) == ["Hi.", "A."]


def test_a_host_that_appends_gets_the_delta(form: Form) -> None:
    """With operator.add and returns="delta" nothing of the base comes twice."""
    graph, _ = compiled(form, returns="delta")
    found = hosted(Appended, ("host", graph)).invoke({"messages": [HumanMessage("Hi.")]})
    assert texts(found["messages"]) == ["Hi.", "A.", "a.", "c."]


def test_a_graph_that_returns_its_delta_gives_it_alone(form: Form) -> None:
    """What is returned is what the root keeps, without the conversation it was given."""
    graph, _ = compiled(form, returns="delta")
    assert texts(graph.invoke({"messages": [HumanMessage("Hi.")]})["messages"]) == [
        "A.",
        "a.",
        "c.",
    ]


def test_an_lcel_chain_runs_through_it(form: Form) -> None:
    """It is a Runnable: it takes part in a chain, sync and async, batched too."""
    graph, _ = compiled(form)
    chain: Any = (
        RunnableLambda(lambda question: {"messages": [HumanMessage(question)]})
        | graph
        | (lambda found: found["messages"][-1].text)
    )
    assert chain.invoke("Hi.") == "c."
    assert asyncio.run(chain.ainvoke("Hi.")) == "c."
    assert chain.batch(["Hi.", "Ho."]) == ["c.", "c."]


@pytest.mark.filterwarnings("ignore:This API is in beta")
def test_it_works_as_a_tool(form: Form) -> None:
    """With a schema for its arguments the graph is a tool that takes messages and inputs."""

    class Args(BaseModel):
        """What the tool takes."""

        inputs: dict[str, str]
        messages: list[tuple[str, str]] = []

    tree = Block([Step(Template("About {{ topic }}."), capture_key="text")], inputs=["topic"])
    graph = compile_graph(tree, model=ScriptedModel(["cats sleep"]), form=form)
    tool = graph.as_tool(args_schema=Args, name="write", description="Write about a topic.")
    found = tool.invoke({"inputs": {"topic": "cats"}})
    assert texts(found["messages"]) == ["About cats.", "cats sleep"]
    assert found["outputs"] == {"text": "cats sleep"}


def test_one_block_alone_keeps_its_full_path(form: Form) -> None:
    """A part of a tree runs on a conversation of its own, under the path it has in the tree."""
    graph, model = compiled(form, at="mp/inner")
    recorder = Recorder()
    config: RunnableConfig = {"callbacks": [recorder], "configurable": {"mergepoint_run_id": "r"}}
    found = graph.invoke({"messages": [HELLO]}, config)
    assert texts(found["messages"]) == ["Hi.", "c."]
    assert found["messages"][-1].id == "r/mp/inner/step_02/1"
    expected = ["mp/inner/step_01", "mp/inner/step_02"]
    assert [record.path for record in recorder.journal.records] == expected
    assert [call.path for call in model.calls] == expected


def test_one_step_alone_keeps_its_full_path(form: Form) -> None:
    """The part may be a single step."""
    graph, model = compiled(form, at="mp/inner/step_02")
    assert texts(graph.invoke({"messages": [HELLO]})["messages"]) == ["Hi.", "C.", "c."]
    assert [call.path for call in model.calls] == ["mp/inner/step_02"]


def test_a_part_takes_as_inputs_what_it_reads_from_the_rest(form: Form) -> None:
    """Keys that only the rest of the tree writes are asked for, its own captures are not."""
    part = Block(
        [
            Step(Template("{{ topic }}, {{ plan }}"), capture_key="own"),
            Step(Template("{{ own }} and {{ hint }}", defaults={"hint": "none"})),
        ],
        name="part",
    )
    tree = Block([Step("Plan.", capture_key="plan"), part], inputs=["topic"])
    graph = compile_graph(tree, model=ScriptedModel(["1", "2"]), at="pipeline/part", form=form)
    with pytest.raises(TreeError, match="input 'plan' is missing"):
        graph.invoke({"messages": [], "inputs": {"topic": "t"}})
    found = graph.invoke({"messages": [], "inputs": {"topic": "t", "plan": "p"}})
    assert texts(found["messages"]) == ["t, p", "1", "1 and none", "2"]


def test_a_part_needs_no_model_for_the_rest() -> None:
    """Only the part's own steps are made ready."""
    tree = Block([Step("A."), Step("B.", model=ScriptedModel(["b"]))])
    graph = compile_graph(tree, at="pipeline/step_02")
    assert texts(graph.invoke({"messages": []})["messages"]) == ["B.", "b"]


def test_one_compiled_graph_stands_in_two_places(form: Form) -> None:
    """The same graph twice in a host has distinct full paths, ids and records."""
    graph, _ = compiled(form)
    recorder = Recorder()
    host = hosted(MessagesState, ("first", graph), ("second", graph))
    found = host.invoke({"messages": [HELLO]}, {"callbacks": [recorder]})
    full = [record.key.full_path for record in recorder.journal.records]
    below = ["mp/step_01", "mp/inner/step_01", "mp/inner/step_02"]
    assert full == [f"{place}/{path}" for place in ("first", "second") for path in below]
    assert texts(found["messages"]) == ["Hi.", "A.", "a.", "c.", "A.", "a.", "c."]
    assert len({message.id for message in found["messages"]}) == 7


def test_two_graphs_side_by_side_in_a_host_do_not_meet(form: Form) -> None:
    """In two parallel nodes of a host they run at once, each under its own prefix."""
    graph, model = compiled(form, returns="delta")
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Appended)
    for name in ("left", "right"):
        builder.add_node(name, graph)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    recorder = Recorder()
    found = builder.compile().invoke({"messages": [HumanMessage("Hi.")]}, {"callbacks": [recorder]})
    assert texts(found["messages"]) == ["Hi.", *["A.", "a.", "c."] * 2]
    assert {record.key.host for record in recorder.journal.records} == {"left", "right"}
    assert len(model.calls) == 6


def sending(graph: Graph, *, scoped: bool) -> Any:
    """Return a host that sends three items to one node at once."""

    def items(state: Appended) -> list[Send]:
        scopes = [{"scope": f"item_{n}"} if scoped else {} for n in range(3)]
        return [
            Send("fan", {"messages": [HumanMessage(f"Item {n}.", id=f"i{n}")], **scope})
            for n, scope in enumerate(scopes)
        ]

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Appended)
    builder.add_node("fan", graph)
    builder.add_conditional_edges(START, items, ["fan"])
    return builder.compile()


def run_host(host: Any, recorder: Recorder, *, on_loop: bool) -> Any:
    """Run a host graph on an empty conversation."""
    config = {"callbacks": [recorder], "configurable": {"mergepoint_run_id": "r"}}
    if on_loop:
        return asyncio.run(host.ainvoke({"messages": []}, config))
    return host.invoke({"messages": []}, config)


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_host_that_sends_gives_each_run_a_scope(form: Form, *, on_loop: bool) -> None:
    """Under Send every item has records and ids of its own, below its scope."""
    graph, _ = compiled(form, returns="delta")
    recorder = Recorder()
    found = run_host(sending(graph, scoped=True), recorder, on_loop=on_loop)
    assert len({message.id for message in found["messages"]}) == 9
    hosts = [record.key.host for record in recorder.journal.records]
    assert sorted(hosts) == [f"fan/item_{n}" for n in range(3) for _ in range(3)]


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_runs_of_one_key_at_once_are_numbered(form: Form, *, on_loop: bool) -> None:
    """Under Send without a scope each run that begins beside another gets a number for one."""
    here = threading.Barrier(3, timeout=60)

    class Meeting(Echo):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            here.wait()  # so that all three run at once
            return super()._generate(*args, **kwargs)

    tree = Block([Step("A.")], name="mp")
    graph = compile_graph(tree, model=Meeting(), form=form, returns="delta")
    recorder = Recorder()
    found = run_host(sending(graph, scoped=False), recorder, on_loop=on_loop)
    paths = sorted(record.key.full_path for record in recorder.journal.records)
    assert paths == ["fan/2/mp/step_01", "fan/3/mp/step_01", "fan/mp/step_01"]
    assert len({message.id for message in found["messages"]}) == 6


def test_runs_of_one_key_after_each_other_are_no_error(form: Form) -> None:
    """A host that loops over a pipeline may do so; its runs have ids of their own."""
    graph, _ = compiled(form)
    recorder = Recorder()

    def thrice(state: MessagesState, config: RunnableConfig) -> Any:
        found: Any = state
        for _ in range(3):
            found = graph.invoke(found, config)
        return {"messages": found["messages"]}

    found = hosted(MessagesState, ("loop", thrice)).invoke(
        {"messages": [HELLO]}, {"callbacks": [recorder]}
    )
    assert len(found["messages"]) == 10
    assert len({record.key.run for record in recorder.journal.records}) == 3


def asking(model: BaseChatModel) -> Callable[[MessagesState], dict[str, list[BaseMessage]]]:
    """Return a host's own node that asks a model."""

    def ask(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    return ask


def test_a_hosts_own_calls_are_recorded_under_the_hosts_path(form: Form) -> None:
    """One recorder holds the pipeline's calls and the host's, each once."""
    graph, _ = compiled(form)
    own, recorder = ScriptedModel(["welcome"]), Recorder()
    host = hosted(MessagesState, ("greet", asking(own)), ("pipe", graph))
    host.invoke({"messages": [HELLO]}, {"callbacks": [recorder]})
    records = recorder.journal.records
    assert [record.key.full_path for record in records] == [
        *("greet", "pipe/mp/step_01", "pipe/mp/inner/step_01", "pipe/mp/inner/step_02"),
    ]
    first = records[0]
    assert (first.prompt, first.context, first.response) == ("Hi.", 0, "welcome")
    assert (first.model, first.usage and first.usage["output_tokens"]) == ("scripted:scripted", 1)


def test_a_hosts_failed_call_is_recorded_too() -> None:
    """The recorder keeps what a host's model raised."""
    recorder = Recorder()
    host = hosted(MessagesState, ("greet", asking(ScriptedModel([ValueError("no")]))))
    with pytest.raises(ValueError, match="no"):
        host.invoke({"messages": [HELLO]}, {"callbacks": [recorder]})
    (record,) = recorder.journal.records
    assert (record.path, record.error) == ("greet", {"type": "ValueError", "message": "no"})


def test_the_transcript_is_never_model_context(form: Form) -> None:
    """A host's model that comes after sees the conversation and nothing that was recorded."""
    own = ScriptedModel(["bye"])
    noted = AIMessage("a.", id="SECRET")
    tree = Block([Step("A.", meta={"k": "SECRET"})], name="mp")
    graph = compile_graph(tree, model=ScriptedModel([noted]), form=form)
    host = hosted(MessagesState, ("pipe", graph), ("after", asking(own)))
    host.invoke({"messages": [HELLO]}, {"callbacks": [Recorder()]})
    (call,) = own.calls
    assert texts(call.messages) == ["Hi.", "A.", "a."]
    assert "SECRET" not in repr(call.messages)


@pytest.mark.parametrize("passed", [True, False], ids=["config passed on", "config inherited"])
def test_a_graph_inside_of_a_function_is_found_by_the_recorder(form: Form, *, passed: bool) -> None:
    """Called from a RunnableLambda of a host it keeps the host's prefix and its callbacks."""
    graph, _ = compiled(form)
    recorder = Recorder()

    def call(state: MessagesState, config: RunnableConfig) -> Any:
        return graph.invoke(state, config) if passed else graph.invoke(state)

    host = hosted(MessagesState, ("wrapped", RunnableLambda(call)))
    host.invoke({"messages": [HELLO]}, {"callbacks": [recorder]})
    assert [record.key.full_path for record in recorder.journal.records] == [
        "wrapped/mp/step_01",
        "wrapped/mp/inner/step_01",
        "wrapped/mp/inner/step_02",
    ]


def test_two_recorders_both_get_every_record(form: Form) -> None:
    """Recorders do not get in each other's way, and one that is given twice records once."""
    graph, _ = compiled(form)
    first, second = Recorder(), Recorder()
    graph.invoke({"messages": []}, {"callbacks": [first, second, first]})
    assert first.journal.records == second.journal.records
    assert len(first.journal.records) == 3


def test_drawings_and_subgraphs_show_every_block_and_its_exit() -> None:
    """get_graph(xray=True) and get_subgraphs know each block, and each has its merge."""
    graph, _ = compiled()
    drawn = set(graph.get_graph(xray=True).nodes)
    assert {"step_01", "mp/inner:step_01", "mp/inner:step_02"} <= drawn
    assert {"mp/inner:__merge__", "__merge__"} <= drawn
    found = [name for name, _ in graph.get_subgraphs(recurse=True)]
    assert found == ["mp", "mp|inner"]


def test_a_host_sees_the_blocks_inside_of_it() -> None:
    """In a host's drawing the pipeline's blocks are there, below the host's node."""
    graph, _ = compiled()
    host = hosted(MessagesState, ("host", graph))
    assert {"host:mp/inner:__merge__", "host:step_01"} <= set(host.get_graph(xray=True).nodes)
    names = [name for name, _ in host.get_subgraphs(recurse=True)]
    assert names == ["host", "host|mp", "host|mp|inner"]


def test_what_a_host_gives_may_be_text_pairs_or_dicts(form: Form) -> None:
    """Messages are taken in all the forms that LangChain takes them in."""
    graph, model = compiled(form, returns="delta")
    given: Sequence[Any] = [HELLO, {"role": "assistant", "content": "Yes?"}]
    graph.invoke({"messages": given})
    assert [(one.type, one.text) for one in model.calls[0].messages] == [
        *[("human", "Hi."), ("ai", "Yes?"), ("human", "A.")],
    ]


def test_a_graph_takes_an_empty_input(form: Form) -> None:
    """Neither messages nor inputs are needed where the tree asks for none."""
    graph, _ = compiled(form)
    assert texts(graph.invoke({})["messages"]) == ["A.", "a.", "c."]


def test_a_notebook_shows_a_graph_without_a_server(form: Form) -> None:
    """The display of a graph is a picture with all of its blocks; nothing is asked for it."""
    graph, _ = compiled(form)
    shown = graph._repr_mimebundle_()
    assert set(shown) == {"text/plain", "image/svg+xml"}
    assert 'data-path="mp/inner"' in shown["image/svg+xml"]
