"""The simulated event loop: virtual time, seeded order, deadlocks, and what it refuses."""

from __future__ import annotations

import asyncio
import operator
import pickle
import threading
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from mergepoint import Block, Step, compile_graph
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import Deadlock, SimulatedLoop, TooManySteps, simulate

VALUE: ContextVar[str] = ContextVar("value", default="none")


async def racers(count: int) -> list[int]:
    """Return the order in which tasks that only turn come to their end."""
    done: list[int] = []

    async def run(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        done.append(number)

    await asyncio.gather(*(run(number) for number in range(count)))
    return done


def test_waiting_takes_no_time() -> None:
    """A year of sleep is simulated at once, and the clock shows it."""

    async def main() -> tuple[float, str]:
        result = await asyncio.sleep(365 * 24 * 3600, "done")
        return asyncio.get_running_loop().time(), result

    assert simulate(main) == (31536000.0, "done")


def test_a_seed_decides_the_order_of_tasks() -> None:
    """One seed gives one order, many seeds give many, and without one it is that of asyncio."""
    orders = {seed: simulate(partial(racers, 5), seed=seed) for seed in range(40)}
    assert {seed: simulate(partial(racers, 5), seed=seed) for seed in range(40)} == orders
    assert len({tuple(order) for order in orders.values()}) > 20
    assert simulate(partial(racers, 5), seed=None) == asyncio.run(racers(5)) == list(range(5))


def test_the_same_seed_gives_the_same_transcript() -> None:
    """Every step is told, with its time and its task, and told again in the same words."""

    def told(seed: int) -> list[str]:
        loop = SimulatedLoop(seed=seed, traced=True)
        loop.run(partial(racers, 3))
        return loop.transcript

    assert told(7) == told(7) != told(8)
    assert told(7)[0] == "0.0 task-1"


@pytest.mark.parametrize("seed", range(20))
def test_callbacks_keep_their_order(seed: int) -> None:
    """What is called soon, or at one time, is called in the order in which that was said."""

    async def main() -> list[int]:
        loop, called = asyncio.get_running_loop(), list[int]()
        for number in range(5):
            loop.call_soon(called.append, number)
            loop.call_later(1, called.append, 10 + number)
        await asyncio.sleep(2)
        return called

    assert simulate(main, seed=seed) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_timeouts_and_cancellations_are_those_of_asyncio() -> None:
    """Timeouts, wait_for, task groups, queues and shields do what they do elsewhere."""

    async def late() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(6)

    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await late()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 10)
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(queue.put(number))
            taken = sorted([await queue.get() for _ in range(3)])
        task = asyncio.create_task(asyncio.sleep(100), name="long")
        loop.call_later(3, task.cancel)
        await asyncio.wait([task])
        return [loop.time(), taken, task.cancelled(), task.get_name()]

    assert simulate(main) == [18.0, [0, 1, 2], True, "long"]


def test_a_deadlock_names_who_waits_and_where() -> None:
    """Two tasks that wait for each other are told with the lines, through generators too."""

    async def main() -> None:
        first, second = asyncio.Event(), asyncio.Event()

        async def turns() -> AsyncGenerator[int, None]:
            await second.wait()
            yield 1

        async def read() -> None:
            async for _ in turns():
                first.set()

        async def write() -> None:
            await first.wait()
            second.set()

        await asyncio.sleep(3)
        reader = asyncio.create_task(read(), name="reader")
        writer = asyncio.create_task(write(), name="writer")
        await asyncio.gather(reader, writer)

    with pytest.raises(Deadlock, match="deadlock after 3 simulated seconds") as caught:
        simulate(main)
    names = [one.split()[0] for one in caught.value.waiting]
    assert names == ["reader", "task-1", "writer"]
    assert "in test_a_deadlock_names_who_waits_and_where.<locals>.main.<locals>.turns" in str(
        caught.value
    )
    assert "in Event.wait" in caught.value.waiting[2]


def test_a_task_that_waits_for_another_names_it() -> None:
    """Who is waited for is told by name."""

    async def main() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="the forgetful one")

    with pytest.raises(Deadlock, match="task-1 waits for the task the forgetful one"):
        simulate(main)


def test_a_deadlock_survives_a_pickle() -> None:
    """A worker process can hand it on."""
    error = pickle.loads(pickle.dumps(Deadlock(2.0, ("a waits",))))  # noqa: S301  (our own)
    assert (error.seconds, error.waiting) == (2.0, ("a waits",))
    assert "a waits" in str(error)


def test_cleaning_up_runs_after_a_deadlock() -> None:
    """Tasks that can never go on are cancelled, and close what they hold."""
    closed: list[bool] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            closed.append(True)

    with pytest.raises(Deadlock):
        simulate(main)
    assert closed == [True]


def test_a_task_that_turns_without_end_is_stopped() -> None:
    """More steps than a simulation may take are an error that says how many there were."""

    async def main() -> None:
        while True:  # noqa: ASYNC110  (it waits for nothing)
            await asyncio.sleep(0)

    with pytest.raises(TooManySteps, match="didn't finish in 1,000 steps"):
        simulate(main, most=1_000)


def test_faults_can_be_put_before_any_step() -> None:
    """A cancellation before each step of a run in turn hits each of its awaits."""

    async def main(step: int) -> int:
        reached = 0
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        task = asyncio.current_task()
        assert task is not None
        loop.call_at_step(loop.steps + step, task.cancel)
        try:
            for _ in range(4):
                await asyncio.sleep(1)
                reached += 1
        except asyncio.CancelledError:
            return reached
        return -1

    found = [simulate(partial(main, step)) for step in range(12)]
    assert set(found) == {0, 1, 2, 3, -1}
    assert found[:8] == sorted(found[:8])


def test_executors_run_in_the_loops_thread() -> None:
    """Functions for threads run in later steps, as if in a thread of their own."""

    def work(results: list[str], name: str) -> str:
        results.append(name)
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return f"{name}, {VALUE.get()}"

    async def main() -> list[str]:
        VALUE.set("mine")
        loop = asyncio.get_running_loop()
        results: list[str] = []
        bare = loop.run_in_executor(None, work, results, "bare")
        assert results == []
        told = [await asyncio.to_thread(work, results, "kept"), await bare]
        with pytest.raises(KeyError):
            await asyncio.to_thread(dict[str, int]().__getitem__, "missing")
        cancelled = loop.run_in_executor(None, work, results, "never")
        cancelled.cancel()
        await asyncio.sleep(1)
        assert "never" not in results
        return told

    assert simulate(main) == ["kept, mine", "bare, none"]


def test_other_threads_are_refused() -> None:
    """A thread that calls into the loop is told what to do in its place."""
    caught: list[str] = []

    def intrude(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(print)
        except RuntimeError as error:
            caught.append(str(error))

    async def main() -> None:
        thread = threading.Thread(target=intrude, args=(asyncio.get_running_loop(),))
        thread.start()
        thread.join()

    simulate(main)
    assert "asyncio.to_thread" in caught[0]


@pytest.mark.parametrize(
    "reach",
    [
        lambda: asyncio.open_connection("127.0.0.1", 9),
        lambda: asyncio.start_server(print, "127.0.0.1"),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 80),
    ],
    ids=["connect", "serve", "process", "names"],
)
def test_the_world_outside_is_refused(reach: Callable[[], Any]) -> None:
    """Sockets, servers, processes and names raise, and say what to use."""

    async def main() -> None:
        await reach()

    with pytest.raises(RuntimeError, match="a simulated loop has no sockets"):
        simulate(main)


def test_errors_that_nobody_sees_are_raised_at_the_end() -> None:
    """A task that fails and is never looked at, and a failing callback, are not lost."""

    async def fail() -> None:
        raise KeyError("task")

    async def main() -> None:
        asyncio.create_task(fail())  # noqa: RUF006  (that it is dropped is the point)
        asyncio.get_running_loop().call_soon([].pop)
        await asyncio.sleep(1)

    with pytest.raises(ExceptionGroup, match="the simulation didn't handle") as caught:
        simulate(main)
    assert {type(one) for one in caught.value.exceptions} == {KeyError, IndexError}


def test_what_main_leaves_is_ended() -> None:
    """Tasks and generators that are left when the run is over are cancelled and closed."""
    ended: list[str] = []

    async def turns() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("generator")

    async def wait() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append("task")

    kept: list[object] = []

    async def main() -> int:
        kept.append(asyncio.create_task(wait()))
        stream = turns()
        kept.append(stream)
        await asyncio.sleep(1)
        return await anext(stream)

    assert simulate(main) == 1
    assert sorted(ended) == ["generator", "task"]


class Log(TypedDict):
    """The state of a small graph."""

    log: Annotated[list[str], operator.add]


def fan_of(order: list[str]) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return a graph of five slow nodes side by side, and a sync one behind them."""

    def slow(name: str) -> Any:
        async def node(state: Log) -> Log:
            await asyncio.sleep(600)
            order.append(name)
            return {"log": [name]}

        return node

    def last(state: Log) -> Log:
        order.append("last")
        return {"log": ["last"]}

    graph = StateGraph(Log)
    for number in range(5):
        graph.add_node(f"node {number}", slow(f"node {number}"))
        graph.add_edge(START, f"node {number}")
        graph.add_edge(f"node {number}", "last")
    graph.add_node("last", last)
    graph.add_edge("last", END)
    return graph.compile(checkpointer=InMemorySaver())


def test_langgraph_runs_on_it() -> None:
    """A graph with parallel, sync and slow nodes gives its result in every order of its tasks."""
    orders = set()
    for seed in range(12):
        order: list[str] = []

        async def main(order: list[str] = order) -> tuple[list[str], float]:
            config: Any = {"configurable": {"thread_id": "one"}}
            states = fan_of(order).astream({"log": []}, config, stream_mode="values")
            *_, last = [state async for state in states]
            return last["log"], asyncio.get_running_loop().time()

        log, seconds = simulate(main, seed=seed)
        assert log == [*(f"node {number}" for number in range(5)), "last"]
        assert seconds == 600
        orders.add(tuple(order))
    assert len(orders) > 5


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_trees_run_on_it(form: Any) -> None:
    """A tree with slow calls side by side takes the time of its longest row, and no other."""
    critics = Block([Step("Cut.", name="cut"), Step("Add.", name="add")], parallel=True)
    tree = Block([Step("Draft."), critics, Step("Revise.")])

    async def main() -> tuple[list[str], float]:
        model = ScriptedModel(default=Answer("Rain.", delay=100.0))
        state = await compile_graph(tree, model=model, form=form).ainvoke({"messages": []})
        said = [str(message.content) for message in state["messages"]]
        return said, asyncio.get_running_loop().time()

    for seed in range(5):
        said, seconds = simulate(main, seed=seed)
        assert said[0::2] == ["Draft.", "Cut.", "Add.", "Revise."]
        assert seconds == 300
