"""Deep trees in every form, also where the stack of the caller is deep already."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from mergepoint.core.errors import RecipeError, TreeError
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.interpreter import ainterpret, interpret
from mergepoint.engine.run_tree import run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import MAX_DEPTH, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node

T = TypeVar("T")
FRAMES = sys.getrecursionlimit()


def nested(names: int, kind: str = "block") -> Node:
    """Return a tree whose longest path has about so many names."""
    node: Node = Step("Say a.", name="leaf")
    for number in range(2, names + 1, 2 if kind == "loop" else 1):
        if kind == "loop":
            node = Loop([node], name=f"n{number}", until=lambda _: True)
        elif kind == "gate":
            node = Gate(node, name=f"n{number}", decide=lambda _: "approve")
        else:
            node = Block([node], name=f"n{number}", parallel=kind == "parallel")
    return node


def deep(frames: int, work: Callable[[], T]) -> T:
    """Do some work at the end of so many calls."""
    return work() if frames <= 0 else deep(frames - 1, work)


def hosted(tree: Node, sink: list[int]) -> str:
    """Run a tree as a node of a host graph."""
    host: Any = StateGraph(MessagesState)
    host.add_node("ours", compile_graph(tree, model=counted(sink)))
    host.add_edge(START, "ours")
    return str(host.compile().invoke({"messages": []})["messages"][-1].text)


def counted(sink: list[int]) -> ScriptedModel:
    """Return a model that notes each call."""

    def answer(_: Any) -> str:
        sink.append(1)
        return "a"

    return ScriptedModel(default=answer)


FORMS: dict[str, Callable[[Node, Any, Path], Any]] = {
    "subgraphs": lambda tree, m, _: compile_graph(tree, model=m).invoke({"messages": []}),
    "subgraphs-async": lambda tree, m, _: asyncio.run(
        compile_graph(tree, model=m).ainvoke({"messages": []})
    ),
    "fused": lambda tree, m, _: compile_graph(tree, model=m, form="fused").invoke({"messages": []}),
    "fused-async": lambda tree, m, _: asyncio.run(
        compile_graph(tree, model=m, form="fused").ainvoke({"messages": []})
    ),
    "interpret": lambda tree, m, _: interpret(tree, model=m),
    "interpret-async": lambda tree, m, _: asyncio.run(ainterpret(tree, model=m)),
    "run_generation": lambda tree, m, runs: run_generation(tree, model=m, runs=runs),
    "run_steps": lambda tree, m, _: ChatRunner(m).run(RunContext(), tree),
}


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["block", "parallel", "loop", "gate"])
@pytest.mark.parametrize("form", FORMS)
def test_the_deepest_tree_runs_where_the_stack_is_a_third_full(
    form: str, kind: str, tmp_path: Path
) -> None:
    """A caller may use 300 of Python's 1,000 frames, which no host does."""
    calls: list[int] = []
    tree = nested(MAX_DEPTH - 1, kind)
    deep(int(FRAMES * 0.3), lambda: FORMS[form](tree, counted(calls), tmp_path))
    assert calls == [1]


@pytest.mark.first_case
@pytest.mark.parametrize("form", FORMS)
def test_a_full_stack_is_an_error_of_the_tree_before_the_first_call(
    form: str, tmp_path: Path
) -> None:
    """At every depth of the stack a run works, or is a TreeError with the depth and the way out."""
    tree = nested(40)
    ran: list[int] = []
    refused: list[str] = []
    for frames in range(int(FRAMES * 0.3), int(FRAMES * 0.85), 50):
        calls: list[int] = []
        try:
            deep(frames, lambda: FORMS[form](tree, counted(calls), tmp_path))  # noqa: B023
            ran += calls
        except TreeError as error:
            assert calls == []
            refused.append(str(error))
    assert set(ran) == {1}
    assert refused
    for text in refused:
        assert text.startswith("n40: 40 names deep, which takes up to 430 frames of the stack")
        assert "call it from a thread of its own" in text


def test_a_graph_in_a_full_host_is_refused_when_it_is_called(tmp_path: Path) -> None:
    """A graph that was compiled with room is checked again where it runs."""
    calls: list[int] = []
    graph = compile_graph(nested(40), model=counted(calls))
    with pytest.raises(TreeError, match="40 names deep"):
        deep(int(FRAMES * 0.6), lambda: graph.invoke({"messages": []}))
    assert calls == []
    assert hosted(nested(MAX_DEPTH), calls) == "a"


def test_recipes_nested_too_deep_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """The same of recipes, whose limit is theirs; with their path."""
    recipe = Recipe("r0", (Stage("generate", params={"prompt": "Say a."}),))
    for number in range(1, 40):
        recipe = Recipe(f"r{number}", (Stage(recipe),))
    with pytest.raises(
        RecipeError, match=r"r39.stage_1.*nested more than 20 levels deep.*move its stages"
    ):
        run_recipe(recipe, ["x"], model="offline", runs=tmp_path)
