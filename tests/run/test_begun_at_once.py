"""A container begins without a step of the engine's own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver

from mergepoint.run.graph import compile_graph
from mergepoint.run.recorder import METADATA
from mergepoint.testing.scripted import ScriptedModel
from mergepoint.tree.block import Block
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node
from mergepoint.tree.step import Step


class Steps(BaseCallbackHandler):
    """Notes the superstep of its graph in which each call was made, by its name."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note it."""
        told = metadata or {}
        self.found[told[METADATA]["path"].rpartition("/")[2]] = told["langgraph_step"]


def row(name: str, *, parallel: bool = False) -> Block:
    """Give a block of two steps."""
    return Block([Step("a", name="a"), Step("b", name="b")], name=name, parallel=parallel)


TREES: dict[str, tuple[Node, dict[str, int]]] = {
    "block": (Block([row("in")], name="t"), {"a": 0, "b": 1}),
    "side by side": (Block([row("in", parallel=True)], name="t"), {"a": 1, "b": 1}),
    "gate": (
        Block([Gate(row("in"), decide=lambda question: "approve")], name="t"),
        {"a": 0, "b": 1},
    ),
    "loop": (
        Block([Loop(row("in").nodes, until=lambda context: True, max_iterations=2)], name="t"),
        {"a": 0, "b": 1},
    ),
}


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("name", TREES)
def test_the_first_node_of_a_container_runs_in_its_first_step(name: str, *, saved: bool) -> None:
    """But for children side by side, whose start is a condition."""
    tree, wanted = TREES[name]
    steps, saver = Steps(), InMemorySaver() if saved else None
    graph = compile_graph(tree, model=ScriptedModel(["x"] * 4), checkpointer=saver)
    graph.invoke({"messages": []}, {"callbacks": [steps], "configurable": {"thread_id": "1"}})
    assert steps.found == wanted
    assert list(graph.get_subgraphs(recurse=True))  # those that are shown are as they were compiled
