"""Every way to run a tree or a recipe, twice in one process, with LangChain's real OpenAI client.

A scripted model has no connections. The client pools them: langchain-openai shares one pool for
all models of an address, and a pool belongs to the event loop in which it was used first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from tests import provider
from tests.apps.command import ESSAY, command

from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import arun_generation, run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import arun_recipe, run_recipe
from mergepoint.testing.server import Body, ModelServer
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import CallContext

TREE = Block([Step("A.", capture_key="a"), Step("B.")])
RECIPE = Recipe("pair", (Stage("generate", params={"n": 2, "prompt": "Say {{ content }}."}),))


def answer(body: Body) -> str:
    """Answer with the number of messages."""
    return f"after {len(body['messages'])}"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """Yield a server that keeps its connections open, as real ones do."""
    with ModelServer(answer, keep_alive=True) as serving:
        yield serving


def client(server: ModelServer, **options: Any) -> ChatOpenAI:
    """Return the provider's own client, pointed at the server; it tries once."""
    return provider.client(server.url, **options)


async def asks(ctx: CallContext) -> str:
    """Ask the run's model from a function."""
    return str((await ctx.model().ainvoke("A.")).text)


WITH_CALL = Block([Call(asks, name="asks", capture_key="a"), Step("B.")])


def generation(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree by run_generation."""
    return run_generation(TREE, model=model, runs=runs).text


def generation_with_function(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree with an async function by run_generation."""
    return run_generation(WITH_CALL, model=model, runs=runs).text


def runner(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree by ChatRunner."""
    return ChatRunner(model).run(RunContext(), TREE).text


def runner_events(model: ChatOpenAI, runs: Path) -> str:
    """Stream a tree by ChatRunner."""
    ctx = RunContext()
    list(ChatRunner(model).events(ctx, TREE))
    return ctx.text


def subgraphs(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree as a graph of subgraphs."""
    graph = compile_graph(TREE, model=model, form="subgraphs")
    return str(graph.invoke({"messages": []})["messages"][-1].text)


def fused(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree as one node of a graph."""
    graph = compile_graph(TREE, model=model, form="fused")
    return str(graph.invoke({"messages": []})["messages"][-1].text)


def recipe(model: ChatOpenAI, runs: Path) -> str:
    """Run a recipe by run_recipe."""
    return str(run_recipe(RECIPE, ["x"], model=model).things[-1].content)


def compiled_recipe(model: ChatOpenAI, runs: Path) -> str:
    """Run a compiled recipe."""
    found = compile_recipe(RECIPE, model=model).invoke({"items": ["x"]})
    return str(found["things"][-1]["content"])


SYNC = [
    generation,
    generation_with_function,
    runner,
    runner_events,
    subgraphs,
    fused,
    recipe,
    compiled_recipe,
]


async def ageneration(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree by arun_generation."""
    return (await arun_generation(TREE, model=model, runs=runs)).text


async def ageneration_with_function(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree with an async function by arun_generation."""
    return (await arun_generation(WITH_CALL, model=model, runs=runs)).text


async def arunner(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree by ChatRunner."""
    return (await ChatRunner(model).arun(RunContext(), TREE)).text


async def arunner_events(model: ChatOpenAI, runs: Path) -> str:
    """Stream a tree by ChatRunner."""
    ctx = RunContext()
    async for _ in ChatRunner(model).aevents(ctx, TREE):
        pass
    return ctx.text


async def asubgraphs(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree as a graph of subgraphs."""
    graph = compile_graph(TREE, model=model, form="subgraphs")
    return str((await graph.ainvoke({"messages": []}))["messages"][-1].text)


async def afused(model: ChatOpenAI, runs: Path) -> str:
    """Run a tree as one node of a graph."""
    graph = compile_graph(TREE, model=model, form="fused")
    return str((await graph.ainvoke({"messages": []}))["messages"][-1].text)


async def arecipe(model: ChatOpenAI, runs: Path) -> str:
    """Run a recipe by arun_recipe."""
    return str((await arun_recipe(RECIPE, ["x"], model=model)).things[-1].content)


async def acompiled_recipe(model: ChatOpenAI, runs: Path) -> str:
    """Run a compiled recipe."""
    found = await compile_recipe(RECIPE, model=model).ainvoke({"items": ["x"]})
    return str(found["things"][-1]["content"])


ASYNC: list[Callable[[ChatOpenAI, Path], Awaitable[str]]] = [
    ageneration,
    ageneration_with_function,
    arunner,
    arunner_events,
    asubgraphs,
    afused,
    arecipe,
    acompiled_recipe,
]


def _name(run: Callable[..., Any]) -> str:
    return run.__name__


@pytest.mark.parametrize("run", SYNC, ids=_name)
def test_sync_callers_share_the_clients_pool(
    server: ModelServer, run: Callable[[ChatOpenAI, Path], str], tmp_path: Path
) -> None:
    """A second call in the same process finds the pool of the first one usable."""
    first, second = (run(client(server), tmp_path) for _ in range(2))
    assert first == second
    assert first.startswith("after ")
    assert [exchange.status for exchange in server.log] == [200] * 4


@pytest.mark.parametrize("run", ASYNC, ids=_name)
def test_async_callers_share_the_clients_pool(
    run: Callable[[ChatOpenAI, Path], Awaitable[str]], tmp_path: Path
) -> None:
    """Two runs after each other on one event loop keep one connection."""

    async def work() -> list[str]:
        with ModelServer(answer, keep_alive=True) as server:
            found = [await run(client(server), tmp_path) for _ in range(2)]
            assert [exchange.status for exchange in server.log] == [200] * 4
            assert server.connections <= 2
        return found

    first, second = provider.on_a_loop(work())
    assert first == second
    assert first.startswith("after ")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("run", "essay.py", "--input", "topic=rivers", "--yes"), id="run"),
        pytest.param(("run", "step_back", "rivers"), id="recipe run"),
    ],
)
def test_the_command_runs_twice_in_one_process(
    server: ModelServer, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command reaches the same server twice, as a notebook or a test may call it."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.chdir(tmp_path)
    Path("essay.py").write_text(ESSAY, encoding="utf-8")
    real = ("--model", "openai:test", "--base-url", server.url)
    found = [command(*words, *real) for _ in range(2)]
    assert [run.code for run in found] == [0, 0], [run.err for run in found]
    assert {exchange.status for exchange in server.log} == {200}
