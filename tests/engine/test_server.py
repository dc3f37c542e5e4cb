"""A compiled graph as LangGraph's server and its user interfaces use it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from mergepoint.core.errors import StepError, TreeError
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate
from mergepoint.tree.prompts import CallContext, Template

TREE = Block(
    [
        Step(Template("About {{ topic }} in {{ words }} words."), name="a"),
        Step("Better.", name="b"),
    ],
    inputs=["topic", ("words", 20)],
    name="t",
)


def test_the_input_schema_has_the_declared_inputs(form: Form) -> None:
    """A server sees the inputs by name, which are required, and the defaults of the others."""
    for returns in ("conversation", "delta"):
        graph = compile_graph(TREE, model=ScriptedModel([]), form=form, returns=returns)
        schema = graph.get_input_jsonschema()
        inputs = schema["$defs"]["Inputs"]
        assert schema["required"] == ["inputs"]
        assert inputs["required"] == ["topic"]
        assert inputs["properties"]["words"]["default"] == 20
        assert {"messages", "inputs", "scope"} == schema["properties"].keys()


def test_without_inputs_nothing_is_required() -> None:
    """A chat graph takes messages alone, as any does."""
    graph = compile_graph(Step("A."), model=ScriptedModel([]))
    assert "required" not in graph.get_input_jsonschema()


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_context_chooses_the_model(form: Form, *, on_loop: bool) -> None:
    """A run, and so an assistant of a server, names the model of steps that name none."""
    own = ScriptedModel(default="own")
    tree = Block([Step("A.", name="a"), Step("B.", name="b", model=own)], name="t")
    graph = compile_graph(tree, model=ScriptedModel(default="first"), form=form)
    other = ScriptedModel(default="other")

    def run(context: Mapping[str, Any] | None) -> list[str]:
        given: dict[str, Any] = {"messages": []}
        if on_loop:
            found = asyncio.run(graph.ainvoke(given, context=context))
        else:
            found = graph.invoke(given, context=context)
        return [message.text for message in found["messages"] if message.type == "ai"]

    assert run(None) == ["first", "own"]
    assert run({"model": other}) == ["other", "own"]
    assert run({"model": "offline"})[1] == "own"
    assert "model" in graph.get_context_jsonschema()["properties"]  # type: ignore[index]


@dataclass
class Mine:
    """A host's context."""

    model: str = ""
    tenant: str = "a"


def test_a_context_schema_of_ones_own_is_kept() -> None:
    """Its field `model` chooses the model, and functions see the rest."""
    graph = compile_graph(Step("A."), model=ScriptedModel(default="x"), context_schema=Mine)
    assert graph.invoke({"messages": []}, context=Mine())["messages"][-1].text == "x"
    with pytest.raises(StepError, match="names no provider"):
        graph.invoke({"messages": []}, context=Mine(model="nothing"))


def test_a_store_reaches_functions() -> None:
    """What `compile_graph` is given as store is that of LangGraph's `get_store`."""
    store = InMemoryStore()

    def keep(ctx: CallContext) -> str:
        get_store().put(("notes",), "n", {"text": "kept"})
        return "done"

    compile_graph(Call(keep, name="k"), store=store).invoke({"messages": []})
    found = store.get(("notes",), "n")
    assert found is not None
    assert found.value == {"text": "kept"}


def test_a_cache_reaches_the_graph() -> None:
    """LangGraph's `cache=` is that of the compiled graph, where a host's cached nodes find it."""
    cache, tree = InMemoryCache[Any](), Call(lambda ctx: "done", name="k")
    assert compile_graph(tree, cache=cache).cache is cache
    assert compile_graph(tree).cache is None


def test_a_graph_stops_before_and_after_nodes() -> None:
    """The paths are those of the tree; the run goes on with None, and asks nothing twice."""
    model = ScriptedModel(default="x")
    tree = Block([Block([Step("A."), Step("B.")], name="in"), Step("C.", name="c")], name="t")
    graph = compile_graph(
        tree,
        model=model,
        checkpointer=InMemorySaver(),
        interrupt_before=["t/c"],
        interrupt_after=["t/in/step_01"],
    )
    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    asked = []
    given: dict[str, Any] | None = {"messages": []}
    for _ in range(3):
        graph.invoke(given, config)
        asked.append(len(model.calls))
        given = None
    assert asked == [1, 2, 3]
    assert graph.get_state(config).next == ()


def test_unknown_places_to_stop_are_named() -> None:
    """The error says which, and suggests what is there."""
    with pytest.raises(TreeError, match=r"interrupt_before.*no node there.*t/step_01"):
        compile_graph(Block([Step("A.")], name="t"), model="offline", interrupt_before=["t/step_1"])


def gated() -> Any:
    """Return a graph that waits at a gate."""
    tree = Gate(Step("Write.", name="w", capture_key="draft"), name="g", question="Send it?")
    return compile_graph(tree, model=ScriptedModel(["old"]), checkpointer=InMemorySaver())


REPLIES: list[tuple[Any, Any]] = [
    ({"type": "accept", "args": None}, "old"),
    ([{"type": "accept"}], "old"),
    ({"type": "edit", "args": {"action": "g", "args": {"text": "new"}}}, "new"),
    ({"type": "edit", "args": {"action": "g", "args": {"text": "old"}}}, "old"),
    ({"type": "response", "args": "too short"}, None),
    ({"type": "ignore", "args": None}, None),
    ({"decisions": [{"type": "approve"}]}, "old"),
    ({"decisions": [{"type": "edit", "edited_action": {"name": "g", "args": {"text": "n"}}}]}, "n"),
    ({"decisions": [{"type": "reject", "message": "no"}]}, None),
    ("approve", "old"),
]


@pytest.mark.parametrize(("reply", "kept"), REPLIES)
def test_replies_of_approval_interfaces_are_taken(reply: Any, kept: str | None) -> None:
    """HumanResponse, alone or in a list, and the decisions of LangChain's middleware."""
    graph, config = gated(), {"configurable": {"thread_id": "1"}}
    graph.invoke({"messages": []}, config)
    found = graph.invoke(Command(resume=reply), config)
    texts = [message.text for message in found["messages"] if message.type == "ai"]
    assert texts == ([] if kept is None else [kept])


def test_an_interrupt_is_what_approval_interfaces_show() -> None:
    """It has the fields of HumanInterrupt, and the schema of the answer."""
    graph = gated()
    [asked] = graph.invoke({"messages": []}, {"configurable": {"thread_id": "1"}})["__interrupt__"]
    assert asked.value["action_request"] == {
        "action": "g",
        "args": {"text": "old", "outputs": {"draft": "old"}},
    }
    assert asked.value["config"]["allow_accept"]
    assert asked.value["description"] == asked.value["question"]
    assert asked.response_schema["properties"]["type"]["enum"][0] == "accept"
