"""Sync entry points, each used several times with a client that keeps its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.testing.server import ModelServer
from mergepoint.tree.leaves import Call
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import CallContext

Run = Callable[[ChatOpenAI, Path], Any]
RECIPE = Recipe("r", (Stage("generate", params={"n": 2}),))


async def ask(ctx: CallContext) -> str:
    """Ask the model on an event loop."""
    answer = await ctx.model().ainvoke("Well?")
    return str(answer.text)


TREE = Block([Call(ask, name="ask", capture_key="answer")], name="t")


def by_run_recipe(model: ChatOpenAI, folder: Path) -> Any:
    """Run the recipe."""
    return [thing.content for thing in run_recipe(RECIPE, ["x"], model=model, runs=folder).things]


def by_compiled_recipe(model: ChatOpenAI, folder: Path) -> Any:
    """Run the recipe's graph."""
    found = compile_recipe(RECIPE, model=model).invoke({"items": ["x"]})
    return [thing["content"] for thing in found["things"]]


def by_run_generation(model: ChatOpenAI, folder: Path) -> Any:
    """Run the tree with its records."""
    return [run_generation(TREE, model=model, runs=folder).outputs["answer"]] * 2


def by_runner(model: ChatOpenAI, folder: Path) -> Any:
    """Run the tree in a context."""
    return [ChatRunner(model).run(RunContext(), TREE).outputs["answer"]] * 2


def by_compiled_graph(model: ChatOpenAI, folder: Path) -> Any:
    """Run the tree's graph."""
    found = compile_graph(TREE, model=model).invoke({"messages": []})
    return [found["outputs"]["answer"]] * 2


def by_recipe_in_a_tree(model: ChatOpenAI, folder: Path) -> Any:
    """Run a tree with the recipe in it."""
    tree = Block([Call(RECIPE, args={"items": ["x"]}, name="c", capture_key="made")], name="t")
    return run_generation(tree, model=model, runs=folder).outputs["made"]


ENTRIES = [
    by_run_recipe,
    by_compiled_recipe,
    by_run_generation,
    by_runner,
    by_compiled_graph,
    by_recipe_in_a_tree,
]


@pytest.fixture(scope="module")
def model() -> Iterator[ChatOpenAI]:
    """Yield a client whose connections stay open, as a provider's do."""
    with ModelServer(lambda body: "yes", keep_alive=True) as server:
        yield ChatOpenAI(
            model="scripted",
            base_url=server.url,
            api_key="none needed",  # type: ignore[arg-type]
            max_retries=0,
            timeout=10,
        )


@pytest.mark.parametrize("run", ENTRIES, ids=lambda run: run.__name__)
def test_a_sync_entry_works_every_time(run: Run, model: ChatOpenAI, tmp_path: Path) -> None:
    """The second and third use find the connections of the first usable."""
    assert [run(model, tmp_path) for _ in range(3)] == [["yes", "yes"]] * 3


@pytest.mark.parametrize("run", ENTRIES, ids=lambda run: run.__name__)
def test_a_sync_entry_works_in_a_running_loop(run: Run, model: ChatOpenAI, tmp_path: Path) -> None:
    """In a notebook, whose loop runs all the time, each cell works, also after another."""

    async def notebook() -> list[Any]:
        return [run(model, tmp_path), run(model, tmp_path)]

    assert asyncio.run(notebook()) == [["yes", "yes"]] * 2
