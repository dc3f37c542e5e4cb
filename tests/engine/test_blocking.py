"""Async paths block no event loop: files, databases and processes are waited for in threads."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from tests.agent.test_agent import CHAT, SCRIPT, model, program
from tests.journal.places import place_of

from mergepoint.agent.tree import agent
from mergepoint.agent.turns import say
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, aresume_graph, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import arun_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileJournal, FileStore, read_journal
from mergepoint.journal.group_commit import LineWrite
from mergepoint.journal.stores import RunHeader, Store
from mergepoint.journal.writer import run_off_loop
from mergepoint.sandbox.backends import code_runner
from mergepoint.session.session_store import open_session
from mergepoint.session.turn_runner import Reply, TurnRunner
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import arun_recipe, stream_recipe
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate
from mergepoint.tree.policy import Policy
from mergepoint.tree.prompts import CallContext
from mergepoint.tree.transform import outline

TWO = Block([Step("A."), Step("B.")], name="t")
HEADER = RunHeader(
    run_id="r",
    created_at=datetime.now(UTC),
    seed=0,
    inputs={},
    messages=(),
    tree=outline(TWO, "t"),
)
pytestmark = pytest.mark.usefixtures("unblocked")
Run = Callable[[Store], Awaitable[int]]
MODEL = ScriptedModel(default="x")
RECIPE = Recipe("r", (Stage("generate", params={"n": 2}), Stage("dedupe")))


async def ask(ctx: CallContext) -> str:
    """Ask two models, one of which passes no door."""
    first = await ctx.model().ainvoke("A?")
    await ScriptedModel(default="y").ainvoke("B?")
    return str(first.text)


TREE = Block(
    [
        Step("First.", policy=Policy(retry=2)),
        Block([Step("Beside."), Call(ask, name="ask", capture_key="a")], parallel=True, name="p"),
        Gate(Step("Held."), name="g", decide=lambda question: "approve"),
    ],
    name="t",
)


async def by_graph(store: Store) -> int:
    """Run a graph with a journal, and find its answers when it runs again."""
    for form in ("subgraphs", "fused"):
        graph = compile_graph(TREE, model=MODEL, journal=store, form=form)
        config: RunnableConfig = {"configurable": {"thread_id": form}}
        for _ in range(2):
            found = await graph.ainvoke({"messages": []}, config)
            assert found["outputs"]["a"] == "x"
    return 2


async def by_stream(store: Store) -> int:
    """Stream a graph with a journal."""
    graph = compile_graph(TREE, model=MODEL, journal=store)
    async for _ in graph.astream({"messages": []}, stream_mode="messages", subgraphs=True):
        pass
    return 1


async def by_runner(store: Store) -> int:
    """Run in contexts, once as events."""
    runner = ChatRunner(MODEL, journal=store)
    ctx = await runner.arun(RunContext(), TREE)
    events: Any = runner.aevents(ctx, TREE)
    async with aclosing(events):
        async for _ in events:
            pass
    return 2


async def by_generation(store: Store) -> int:
    """Run, and take over the answers."""
    ctx = RunContext(run_id="a")
    await arun_generation(TREE, model=MODEL, runs=store, ctx=ctx)
    await arun_generation(TREE, model=ScriptedModel([]), runs=store, replay="a")
    return 2


async def by_gate(store: Store) -> int:
    """Stop at a gate, and go on by its answer."""
    graph = compile_graph(Gate(Step("Well?"), name="g"), model=MODEL, journal=store)
    config: RunnableConfig = {"configurable": {"mergepoint_run_id": "gated"}}
    await graph.ainvoke({"messages": []}, config)
    await aresume_graph(graph, config, answers={"g": "approve"})
    return 1


async def by_recipe(store: Store) -> int:
    """Run a recipe in each way."""
    await arun_recipe(RECIPE, ["a"], model=MODEL, runs=store)
    async with aclosing(stream_recipe(RECIPE, ["a"], model=MODEL, runs=store)) as things:
        async for _ in things:
            break
    await compile_recipe(RECIPE, model=MODEL, journal=store).ainvoke({"items": ["a"]})
    tree = Call(RECIPE, args={"items": ["a"]}, name="c", capture_key="things")
    await arun_generation(tree, model=MODEL, runs=store)
    await arun_recipe("best_of_n", ["a"], model="offline", runs=store)
    return 5


@pytest.mark.parametrize("kind", ["files", "segments", "sqlite"])
@pytest.mark.parametrize(
    "run",
    [by_graph, by_stream, by_runner, by_generation, by_gate, by_recipe],
    ids=lambda run: run.__name__,
)
def test_a_journal_blocks_no_loop(run: Run, kind: str, tmp_path: Path) -> None:
    """Each way to run is done with no call on the loop that waits for a file or a database."""
    with place_of(kind, tmp_path) as place:
        store = place.store()

        async def done() -> int:
            return await run(store)

        runs = asyncio.run(done())
        assert len(store.runs()) == runs


def test_a_session_and_the_sandboxs_probe_block_no_loop(tmp_path: Path) -> None:
    """A turn of the agent, its session's files and the look for a sandbox wait in threads."""
    memory = open_session(sessions=tmp_path)
    turns = TurnRunner(agent(), model=ScriptedModel([json.dumps(CHAT), "Hello."]))
    plain = TurnRunner(Step("Answer."), model=MODEL)

    async def talk() -> list[str]:
        said = await say(turns, memory, "Hi.")
        assert isinstance(said, Reply)
        return [said.text, (await plain.arun(memory, "And?")).text]

    assert asyncio.run(talk()) == ["Hello.", "x"]
    assert [message.content for message in memory.get_messages()] == ["Hi.", "Hello.", "And?", "x"]


def test_a_program_of_the_agent_blocks_no_loop(tmp_path: Path) -> None:
    """The runner is found, and the program run, while the loop goes on."""
    runner = code_runner("unsafe_subprocess")
    asked = model(SCRIPT, code=[program("print(6 * 7)")])
    turns = TurnRunner(agent(runner=runner, ask=()), model=asked)
    memory = open_session(sessions=tmp_path)
    said = asyncio.run(say(turns, memory, "Calculate 6 * 7."))
    assert isinstance(said, Reply)
    assert any("42" in step.content for step in memory.get_working_steps(type="execute"))


class Slow(FileJournal):
    """A journal whose writes wait until the test lets them."""

    asked = threading.Event()
    gate = threading.Event()
    thread = ""

    def write_group(self, group: Sequence[LineWrite]) -> None:
        """Wait, and write."""
        Slow.thread = threading.current_thread().name
        self.asked.set()
        assert self.gate.wait(60)
        super().write_group(group)


def test_an_answer_is_used_when_it_is_on_record(tmp_path: Path) -> None:
    """A step does not see the answer before it until that is written; the loop goes on."""
    journal = Slow.create(tmp_path / "journal.jsonl", HEADER)
    model = ScriptedModel(default="x")
    graph = compile_graph(TWO, model=model)
    config: RunnableConfig = {
        "callbacks": [Recorder(journal)],
        "configurable": {"mergepoint_run_id": "r"},
    }

    async def run() -> int:
        task = asyncio.ensure_future(graph.ainvoke({"messages": []}, config))
        await asyncio.to_thread(Slow.asked.wait)
        await asyncio.sleep(0.05)  # long enough for a step that does not wait
        asked = len(model.calls)
        Slow.gate.set()
        await task
        await run_off_loop(journal.close)
        return asked

    assert asyncio.run(run()) == 1
    assert [record.path for record in read_journal(journal.path)[1]] == ["t/step_01", "t/step_02"]
    assert Slow.thread.startswith("mergepoint-writer")


def test_parallel_children_are_written_in_the_order_in_which_they_answered(tmp_path: Path) -> None:
    """The writer keeps the order; nothing is lost and nothing is written twice."""
    steps = [Step(f"{n}.", name=f"s{n}") for n in range(20)]
    tree = Block(steps, name="t", parallel=True)
    store = FileStore(tmp_path)
    recorder = Recorder()
    graph = compile_graph(tree, model=MODEL, journal=store)
    config: RunnableConfig = {
        "callbacks": [recorder],
        "configurable": {"mergepoint_run_id": "r"},
    }
    asyncio.run(graph.ainvoke({"messages": []}, config))
    written = [record.path for record in store.read("r")[1]]
    assert written == [record.path for record in recorder.journal.records]
    assert len(set(written)) == 20


class Broken(FileJournal):
    """A journal on a disk that is full."""

    def write_group(self, group: Sequence[LineWrite]) -> None:
        """Refuse them."""
        raise JournalError("no space left on device")


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_an_answer_that_cannot_be_written_is_not_used(form: Form, tmp_path: Path) -> None:
    """The run fails with the journal's error; the next step is not asked."""
    with Broken.create(tmp_path / "journal.jsonl", HEADER) as journal:
        model = ScriptedModel(default="x")
        graph = compile_graph(TWO, model=model, form=form)
        config: RunnableConfig = {
            "callbacks": [Recorder(journal)],
            "configurable": {"mergepoint_run_id": "r"},
        }
        with pytest.raises(JournalError, match="no space left"):
            asyncio.run(graph.ainvoke({"messages": []}, config))
    assert len(model.calls) == 1
