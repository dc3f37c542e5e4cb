"""What holds models of functions and Calls back: budgets, policies, halts; on every engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import BaseModel
from tests.engine.engines import Engine
from tests.engine.inner import Function, around, asking, inner, listening, made, model, resumed

from mergepoint import (
    Block,
    Budget,
    BudgetExceeded,
    Call,
    CallContext,
    CallTimeout,
    ChatRunner,
    Gate,
    Price,
    Recorder,
    RunContext,
    Step,
    StepError,
    TreeError,
    compile_graph,
)
from mergepoint.engine.compiler import Form
from mergepoint.engine.interpreter import interpret
from mergepoint.models.budget import BudgetLedger
from mergepoint.models.pricing import Prices
from mergepoint.models.timeouts import stop_signal
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import FakeClock
from mergepoint.tree.policy import Policy, Retry

PRICES = {"scripted:scripted": Price(1, 10)}
COST = (10 * 1 + 5 * 10) / 10**6


@pytest.fixture(autouse=True)
def clock() -> Iterator[FakeClock]:
    """Have waits take no time."""
    with FakeClock() as clock:
        yield clock


def answering(**fields: Any) -> ScriptedModel:
    """Return a model whose answers use 10 and 5 tokens."""
    return ScriptedModel(default=Answer("x", usage=(10, 5)), **fields)


async def in_tasks(ctx: CallContext) -> None:
    """Ask 32 times at once, in tasks; the first failure is raised when all have ended."""
    asked = (ctx.model().ainvoke(f"Say {number}.") for number in range(32))
    found = await asyncio.gather(*asked, return_exceptions=True)
    failed(found)


def in_threads(ctx: CallContext) -> None:
    """Ask 32 times at once, in threads."""

    def ask(number: int) -> Any:
        try:
            return ctx.model().invoke(f"Say {number}.")
        except Exception as error:  # noqa: BLE001  (a value, as in gather)
            return error

    with ThreadPoolExecutor(32) as pool:
        asked = [pool.submit(copy_context().run, ask, number) for number in range(32)]
    failed([one.result() for one in asked])


def failed(found: list[Any]) -> None:
    """Raise the first failure."""
    for error in found:
        if isinstance(error, Exception):
            raise error


# Budgets


@pytest.mark.parametrize("function", [in_tasks, in_threads])
@pytest.mark.parametrize("where", ["call", "block"])
def test_a_function_never_passes_a_budget_of_calls(
    engine: Engine, function: Function, where: str
) -> None:
    """Of 32 calls at once as many are made as the budget has, on the Call or above it."""
    asked, budget = answering(), Budget(calls=9)
    call = Call(function, name="f", policy=Policy(budget=budget if where == "call" else None))
    recorder = listening()
    with pytest.raises(BudgetExceeded) as caught:
        engine(
            Block([call], name="p", budget=budget if where == "block" else None),
            asked,
            recorder=recorder,
        )
    assert len(asked.calls) == 9
    assert sum(one.answered for one in inner(recorder)) == 9
    assert caught.value.path == ("p/f" if where == "call" else "p")


@pytest.mark.parametrize("function", [in_tasks, in_threads])
def test_a_function_never_passes_a_budget_of_tokens(engine: Engine, function: Function) -> None:
    """The limit that a model has of its own is held back, and counts as that of a call does."""
    paid: list[int] = []

    class Counting(ScriptedModel):
        """A model that uses a token a byte, and as many in its answer as it may."""

        max_tokens: int = 40

        def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
            given = sum(len(str(one.content).encode()) for one in messages)
            paid.append(given + self.max_tokens)
            usage = {"input_tokens": given, "output_tokens": 40, "total_tokens": given + 40}
            return ChatResult(
                generations=[ChatGeneration(message=AIMessage("x", usage_metadata=usage))]
            )

        async def _agenerate(self, *args: Any, **more: Any) -> ChatResult:
            await asyncio.sleep(0)
            return self._generate(*args)

    tree = Block([Call(function, name="f")], budget=Budget(tokens=1_000))
    with pytest.raises(BudgetExceeded):
        engine(tree, Counting())
    assert 0 < sum(paid) <= 1_000


def test_a_call_inside_has_its_cost(form: Form) -> None:
    """It is priced as a step's call is, and parents add up."""
    ctx = RunContext()
    tree = around(asking())
    ChatRunner(answering(), form=form, prices=PRICES).run(ctx, tree)
    assert [one.cost for one in inner(ctx.recorder)] == [COST]
    assert {path: used.calls for path, used in ctx.usage_by_path.items()} == {
        "root": 3,
        "root/write": 1,
        "root/ask": 1,
        "root/go": 1,
    }


def test_a_model_without_a_price_is_refused_before_it_is_asked(engine: Engine) -> None:
    """Under a budget in USD a function cannot ask a model whose calls nobody can price."""
    asked = answering()
    with pytest.raises(TreeError, match="no price of 'scripted:scripted' is known"):
        engine(Block([Call(asking(), name="f")], budget=Budget(1)), asked)
    assert asked.calls == []


def own_model(asked: ScriptedModel) -> Function:
    """Return a function that asks a model of its own, which passes no door."""

    def ask(ctx: CallContext) -> str:
        return str(asked.invoke("Own?").text)

    return ask


@pytest.mark.parametrize("recorders", [0, 1, 2])
def test_models_without_a_door_are_charged_in_any_graph(
    graph_engine: Engine, recorders: int
) -> None:
    """Their run's budget counts them once, whoever listens; then the next is refused."""
    own, given = ScriptedModel(default="x"), answering()
    first, second = Call(own_model(own), name="first"), Call(own_model(own), name="second")
    tree = Block([first, second, Step("A.", name="a"), Step("B.", name="b")], budget={"calls": 3})
    heard = [Recorder() for _ in range(recorders)]

    def charged() -> Any:
        form: Any = graph_engine.form
        graph = compile_graph(tree, model=given, form=form)
        config: Any = {"callbacks": heard}
        if graph_engine.on_loop:
            return asyncio.run(graph.ainvoke({"messages": []}, config))
        return graph.invoke({"messages": []}, config)

    with pytest.raises(BudgetExceeded) as caught:
        charged()
    assert (caught.value.spent, len(own.calls), len(given.calls)) == (3, 2, 1)
    for recorder in heard:
        assert len(inner(recorder)) == 2


def test_the_budget_of_a_recorder_pays_for_a_function(engine: Engine) -> None:
    """A host's ledger grants the calls of a function, and charges those that pass no door."""
    own = answering()

    def ask(ctx: CallContext) -> None:
        own.invoke("Own?")
        ctx.model().invoke("Given?")

    source = BudgetLedger(run=Budget(calls=2), prices=Prices(PRICES))
    recorder = Recorder(budget=source)
    call = Call(ask, name="ask")
    engine(call, answering(), recorder=recorder)
    assert [one.cost for one in inner(recorder)] == [COST, COST]
    assert source.spent().calls == 2


# Retries


def test_a_model_inside_is_tried_again(engine: Engine, clock: FakeClock) -> None:
    """By the Call's policy, with a record of each attempt; the function runs once."""
    ran: list[int] = []

    def ask(ctx: CallContext) -> str:
        ran.append(1)
        return str(ctx.model().invoke("Inner?").text)

    recorder = listening()
    script = [ConnectionError("cut"), ConnectionError("again"), "yes"]
    tree = around(ask, policy=Policy(retry=Retry(3, wait=2)))
    assert engine(tree, model(script), recorder=recorder).outputs == {"said": "yes"}
    assert [(one.attempt, one.answered) for one in inner(recorder)] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    assert (ran, clock.waits) == ([1], [2, 4])


def test_what_the_door_has_given_up_is_not_tried_again(engine: Engine, clock: FakeClock) -> None:
    """A function that fails since its model did is not run again: attempts do not multiply."""

    def ask(ctx: CallContext) -> str:
        try:
            return str(ctx.model().invoke("Inner?").text)
        except ConnectionError as error:
            raise ConnectionResetError("no model") from error

    recorder = listening()
    cut = [ConnectionError("cut")] * 9
    with pytest.raises(ConnectionResetError, match="no model"):
        engine(around(ask, policy=Policy(retry=2)), model(cut), recorder=recorder)
    assert len(inner(recorder)) == 2
    assert [one.attempt for one in recorder.journal.records if one.kind == "call"] == [1]
    assert len(clock.waits) == 1


@pytest.mark.parametrize("listen", [listening, Recorder])
def test_a_function_is_tried_again_and_its_models_are_not(
    engine: Engine, clock: FakeClock, listen: Callable[[], Recorder]
) -> None:
    """What it was answered before the network failed is given to it again."""
    tries: list[str] = []

    def ask(ctx: CallContext) -> str:
        said = str(ctx.model().invoke("Inner?").text)
        tries.append(said)
        if len(tries) < 3:
            raise ConnectionError("the function's own")
        return said

    recorder = listen()
    tree = around(ask, policy=Policy(retry=Retry(3, wait=1)))
    end = engine(tree, model(["paid once"]), recorder=recorder)
    assert end.outputs == {"said": "paid once"}
    assert (tries, clock.waits) == (["paid once"] * 3, [1, 2])
    assert len(inner(recorder)) == 1
    calls = [one for one in recorder.journal.records if one.kind == "call"]
    assert [(one.attempt, one.answered) for one in calls] == [(1, False), (2, False), (3, True)]


def test_a_function_that_cannot_use_an_answer_asks_anew(engine: Engine) -> None:
    """The answer is of another sample, and a resumed run is given both again."""

    class Verdict(BaseModel):
        """A structured answer."""

        good: bool

    def ask(ctx: CallContext) -> bool:
        return Verdict.model_validate_json(str(ctx.model().invoke("Good?").text)).good

    recorder = listening()
    tree = around(ask, policy=Policy(retry=2))
    end = engine(tree, model(["well...", '{"good": true}']), recorder=recorder)
    assert end.outputs == {"said": True}
    assert [one.sample for one in inner(recorder)] == [0, 1]
    again = resumed(inner(recorder))
    assert engine(tree, model([], default="x"), recorder=again).outputs == {"said": True}
    assert len(inner(again)) == 2


def test_a_mistake_in_a_function_is_no_reason_to_run_it_again(engine: Engine) -> None:
    """Errors that would come again come once."""
    ran: list[int] = []

    def fail(ctx: CallContext) -> None:
        ran.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine(Call(fail, name="f", policy=Policy(retry=5)), None)
    assert ran == [1]


def test_a_call_has_the_same_id_each_time(engine: Engine) -> None:
    """So a function can be idempotent; its random numbers are the same too."""
    seen: list[Any] = []

    def look(ctx: CallContext) -> None:
        seen.append((ctx.call_id, ctx.rng.random()))
        if len(seen) < 2:
            raise TimeoutError

    engine(Call(look, name="f", policy=Policy(retry=2)), None)
    assert seen[0] == seen[1]


# Timeouts


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Yield the event that lets what hangs in threads end, and set it at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


LIMITED = Policy(timeout=0.01)


def test_a_function_that_takes_too_long_ends(engine: Engine, over: threading.Event) -> None:
    """The error says where and how long, and the try is on record as failed."""

    async def hang(ctx: CallContext) -> None:
        await asyncio.Event().wait()

    def block(ctx: CallContext) -> None:
        over.wait()

    recorder = Recorder()
    tree = Call(hang if engine.on_loop else block, name="f", policy=LIMITED)
    with pytest.raises(
        CallTimeout, match=r"f: the function returned no result within 0\.01 s; give"
    ):
        engine(tree, None, recorder=recorder)
    [one] = recorder.journal.records
    assert (one.kind, (one.error or {})["type"]) == ("call", "CallTimeout")


def test_a_timeout_is_tried_again(engine: Engine, over: threading.Event) -> None:
    """The limit is that of each try, and a later one has a result."""
    ran: list[int] = []

    def block(ctx: CallContext) -> str:
        ran.append(1)
        if len(ran) < 2:
            over.wait()
        return "done"

    async def hang(ctx: CallContext) -> str:
        ran.append(1)
        if len(ran) < 2:
            await asyncio.Event().wait()
        return "done"

    target = hang if engine.on_loop else block
    # On a busy machine tries that would end may be late too, but not all of them.
    call = Call(target, name="f", capture_key="f", policy=Policy(timeout=0.05, retry=50))
    assert engine(call, None).outputs == {"f": "done"}


def test_a_model_inside_may_take_what_is_left_of_the_time(
    engine: Engine, over: threading.Event
) -> None:
    """A call that is late when its function is has failed, and is on record before it."""

    class Hanging(ScriptedModel):
        """A model that does not answer."""

        def _generate(self, *args: Any, **more: Any) -> ChatResult:
            asked.append(1)
            over.wait()
            return ChatResult(generations=[ChatGeneration(message=AIMessage("late"))])

        async def _agenerate(self, *args: Any, **more: Any) -> ChatResult:
            asked.append(1)
            await asyncio.Event().wait()
            raise AssertionError

    async def on_loop(ctx: CallContext) -> None:
        await ctx.model().ainvoke("Inner?")

    asked: list[int] = []
    recorder = listening()
    tree = Call(on_loop if engine.on_loop else asking(), name="f", policy=LIMITED)
    with pytest.raises(CallTimeout):
        engine(tree, Hanging(), recorder=recorder)
    kinds = [(one.kind, one.answered) for one in recorder.journal.records]
    # On a busy machine the time may be over before the model is asked, or before its call begins.
    assert kinds in ([("call", False)], [("inner", False), ("call", False)])
    assert len(kinds) > len(asked)


def test_a_late_function_asks_no_model_any_more(over: threading.Event) -> None:
    """What goes on in a thread after its timeout is refused at the door."""
    told: list[BaseException] = []
    ended = threading.Event()

    def late(ctx: CallContext) -> None:
        over.wait()
        try:
            ctx.model().invoke("Late?")
        except StepError as error:
            told.append(error)
        ended.set()

    asked = answering()
    with pytest.raises(CallTimeout):
        interpret(Call(late, name="f", policy=LIMITED), model=asked)
    over.set()
    assert ended.wait(10)
    assert "after the call had ended" in str(told[0])
    assert asked.calls == []


# Runs that are told to stop


def test_no_call_starts_in_a_stopped_run(engine: Engine) -> None:
    """A function after the stop is not run, and nothing of it is on record."""
    ran: list[int] = []
    recorder = Recorder()
    with stop_signal() as halt:
        stop = Call(lambda ctx: halt.stop(), name="stop")
        tree = Block([stop, Call(lambda ctx: ran.append(1), name="never")])
        with pytest.raises(KeyboardInterrupt):
            engine(tree, None, recorder=recorder)
    assert [one.path for one in recorder.journal.records] == ["pipeline/stop"]
    assert ran == []


def test_nobody_is_asked_in_a_stopped_run(engine: Engine) -> None:
    """A gate after the stop is not opened."""
    asked: list[Any] = []
    with stop_signal() as halt:
        gate = Gate(Call(lambda ctx: halt.stop(), name="stop"), decide=asked.append)
        with pytest.raises(KeyboardInterrupt):
            engine(gate, None)
    assert asked == []


def test_a_stopped_function_lands_its_call_and_makes_no_other(engine: Engine) -> None:
    """The call in flight is on record, and the next one is a KeyboardInterrupt."""
    with stop_signal() as halt:

        def stopping(messages: object) -> str:
            assert halt.stop() is True
            return "landed"

        def ask(ctx: CallContext) -> None:
            ctx.model().invoke("First.")
            ctx.model().invoke("Second.")

        recorder = listening()
        asked = ScriptedModel(by_prompt={"First.": stopping})
        with pytest.raises(KeyboardInterrupt):
            engine(Call(ask, name="f"), asked, recorder=recorder)
    assert [one.response for one in inner(recorder)] == ["landed"]


def test_a_cancelled_function_lands_its_calls(form: Form) -> None:
    """Cancelled in the middle of three calls at once, it has all of them on record."""

    class Slow(ScriptedModel):
        """A model that answers some turns of the loop after it was asked."""

        async def _agenerate(self, *args: Any, **more: Any) -> ChatResult:
            begun.append(1)
            if len(begun) == 3:
                running[0].cancel()
            for _ in range(50):
                await asyncio.sleep(0)
            return self._generate(*args)

    async def ask(ctx: CallContext) -> None:
        await asyncio.gather(*(ctx.model().ainvoke(f"{number}?") for number in range(3)))
        await ctx.model().ainvoke("Never.")

    begun: list[int] = []
    running: list[Any] = []
    recorder = listening()

    async def work() -> None:
        graph = compile_graph(Call(ask, name="f"), model=made(Slow, default="x"), form=form)
        given: Any = {"messages": []}
        running.append(asyncio.ensure_future(graph.ainvoke(given, {"callbacks": [recorder]})))
        with pytest.raises(asyncio.CancelledError):
            await running[0]

    asyncio.run(work())
    assert [(one.kind, one.answered) for one in recorder.journal.records] == [
        ("inner", True),
        ("inner", True),
        ("inner", True),
        ("call", False),
    ]
