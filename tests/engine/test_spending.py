"""Budgets, prices and usage in whole runs, on every engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from tests.engine.engines import Engine, Runner

from mergepoint import (
    Block,
    Budget,
    BudgetExceeded,
    BudgetLedger,
    Call,
    ChatRunner,
    Gate,
    Loop,
    Node,
    Price,
    Recorder,
    RunContext,
    Step,
    TreeError,
    Usage,
    compile_graph,
    read_transcript,
    run_generation,
)
from mergepoint.engine.compiler import Form
from mergepoint.engine.run_tree import TRANSCRIPT
from mergepoint.models.pricing import Prices
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.policy import Policy, Retry

SCRIPTED = "scripted:scripted"
PRICES = {SCRIPTED: Price(1, 10)}


def model(**fields: Any) -> ScriptedModel:
    """Return a model whose answers use 10 and 5 tokens."""
    return ScriptedModel(default=Answer("x", usage=(10, 5)), **fields)


def children(count: int, **fields: Any) -> list[Step]:
    """Return steps with an answer of at most five tokens."""
    about = {"params": {"max_tokens": 5}, **fields}
    return [Step(f"Say {n}.", name=f"n{n}", **about) for n in range(count)]


class Counting(ScriptedModel):
    """Counts a token a byte, as many in its answer as it may, and what it was paid for."""

    paid: Any = None  # a list that copies of the model share

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **params: Any
    ) -> ChatResult:
        made = params["max_tokens"]
        given = sum(len(str(one.content).encode()) for one in messages)
        usage = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
        self.paid.append(given + made)
        answer = AIMessage("x", usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _agenerate(self, *given: Any, **more: Any) -> ChatResult:
        await asyncio.sleep(0)
        return self._generate(*given, **more)


def test_parallel_children_never_pass_a_budget_of_calls(engine: Engine) -> None:
    """Of 32 children side by side as many are called as the budget has, on every engine."""
    asked = model()
    block = Block(children(32), name="p", parallel=True, budget={"calls": 9})
    with pytest.raises(BudgetExceeded) as caught:
        engine(block, asked)
    assert len(asked.calls) <= 9
    assert (caught.value.path, caught.value.limit) == ("p", 9)


def test_parallel_children_never_pass_a_budget_of_tokens(engine: Engine) -> None:
    """Where max_tokens is honoured the provider counts no more tokens than the budget has."""
    asked = Counting(paid=[])
    voices = children(32, params={"max_tokens": 40})
    with pytest.raises(BudgetExceeded):
        engine(Block(voices, name="p", parallel=True, budget=Budget(tokens=1_000)), asked)
    assert 0 < sum(asked.paid) <= 1_000


def test_a_block_goes_on_without_what_its_budget_does_not_suffice_for(engine: Engine) -> None:
    """With keep the block holds what was made, and those after it run as if it had ended there."""
    asked = model()
    block = Block(children(4), name="b", budget=Budget(calls=2, on_exhausted="keep"))
    end = engine(Block([block, Step("After.")], name="p"), asked)
    assert end.texts == ["Say 0.", "x", "Say 1.", "x", "After.", "x"]


def test_parallel_children_are_kept_as_far_as_the_budget_goes(engine: Engine) -> None:
    """With keep a parallel block merges those children that were granted."""
    asked = model()
    keep = Budget(calls=3, on_exhausted="keep")
    end = engine(Block(children(8), name="p", parallel=True, budget=keep), asked)
    assert len(end.messages) == 6
    assert len(asked.calls) == 3


def test_the_run_s_budget_can_keep_too(form: Form) -> None:
    """What the whole run has made until then is its result."""
    keep = {"calls": 2, "on_exhausted": "keep"}
    runner = ChatRunner(model(), form=form, budget=keep)
    ctx = runner.run(RunContext(), Block([Block(children(1)), *children(3)]))
    assert [message.content for message in ctx.messages] == ["Say 0.", "x", "Say 0.", "x"]


def test_a_budget_holds_for_all_iterations_of_a_loop(engine: Engine) -> None:
    """A loop's own budget is shared, and that of a block inside is there anew each time."""
    asked = model()
    inside = Block(children(1), name="inside", budget=Budget(calls=1))
    loop = Loop(
        [inside],
        until=lambda ctx: False,
        max_iterations=9,
        budget=Budget(calls=3, on_exhausted="keep"),
    )
    end = engine(Block([loop], name="p"), asked)
    assert len(asked.calls) == 3
    assert len(end.messages) == 6


def test_attempts_count(engine: Engine) -> None:
    """Each attempt of a call that is tried again takes one call of the budget."""
    asked = ScriptedModel(default=Answer(error=ConnectionError("lost")))
    step = Step("A.", name="a", policy=Policy(retry=Retry(5, wait=0.001), budget={"calls": 2}))
    with pytest.raises(BudgetExceeded) as caught:
        engine(Block([step], name="p"), asked)
    assert len(asked.calls) == 2
    assert caught.value.path == "p/a"


def test_a_model_without_a_price_is_refused_before_the_first_call(engine: Engine) -> None:
    """Every step under a budget in USD is listed with its model, and the others are not."""
    asked = model()
    tree = Block([Step("Free."), Block(children(2), name="dear", budget=Budget(1))], name="p")
    with pytest.raises(TreeError) as caught:
        engine(tree, asked)
    assert [fault.path for fault in caught.value.faults] == ["p/dear/n0", "p/dear/n1"]
    assert f"prices={{'{SCRIPTED}': Price(input, output)}}" in str(caught.value)
    assert asked.calls == []


def test_the_offline_model_is_free(engine: Engine) -> None:
    """A budget of nothing in USD suffices for it, and its records say 0."""
    recorder = Recorder()
    engine(Block([Step("Write a line.")], budget=Budget(0)), "offline", recorder=recorder)
    assert [record.cost for record in recorder.journal.records] == [0.0]


def test_every_call_has_its_cost_without_a_budget(runner: Runner) -> None:
    """A declared price is enough; usage is told by path, and parents add up."""
    tree = Block([Block(children(2), name="in"), Step("B.", name="out")], name="p")
    ctx = RunContext()
    ChatRunner(model(), form=runner.form, prices=PRICES).run(ctx, tree)
    cost = (10 * 1 + 5 * 10) / 10**6
    assert [record.cost for record in ctx.steps] == [cost] * 3
    assert ctx.usage == Usage(
        calls=3, input_tokens=30, output_tokens=15, total_tokens=45, cost=round(3 * cost, 12)
    )
    assert {path: used.calls for path, used in ctx.usage_by_path.items()} == {
        "p": 3,
        "p/in": 2,
        "p/in/n0": 1,
        "p/in/n1": 1,
        "p/out": 1,
    }


def test_a_model_without_usage_is_charged_its_bound(form: Form) -> None:
    """The cost on record is what it was at most, and is told to be estimated."""

    class Silent(ScriptedModel):
        def _generate(self, *given: Any, **more: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage("x"))])

    ctx = RunContext()
    runner = ChatRunner(Silent(), form=form, budget=Budget(0.01), prices=PRICES)
    runner.run(ctx, Step("A.", params={"max_tokens": 100}))
    assert ctx.usage.estimated == 1
    assert ctx.usage.cost > 0.001
    with pytest.raises(BudgetExceeded):
        runner.run(ctx, Step("A.", params={"max_tokens": 1_000}))


def test_each_run_has_the_whole_budget(form: Form) -> None:
    """A context's next turn, and another context with the same id, begin with nothing spent."""
    runner = ChatRunner(model(), form=form, budget={"calls": 2})
    tree = Block(children(2))
    ctx = RunContext(run_id="r")
    runner.run(runner.run(ctx, tree), tree)
    runner.run(RunContext(run_id="r"), tree)
    with pytest.raises(BudgetExceeded):
        runner.run(RunContext(run_id="r"), Block(children(3)))


def test_a_resumed_run_has_what_is_left_and_taken_over_answers_are_free(
    tmp_path: Path, form: Form
) -> None:
    """Calls on record count for the run that made them, and not for one that reuses them."""
    tree = Block(children(5), name="p")

    def run(calls: int, asked: ScriptedModel, **way: Any) -> Any:
        ways = {"model": asked, "form": form, "runs": tmp_path, "prices": PRICES, **way}
        return run_generation(tree, budget={"calls": calls}, **ways)

    with pytest.raises(BudgetExceeded):
        run(3, model(), ctx=RunContext(run_id="first"))
    for calls in (3, 4):
        asked = model()
        with pytest.raises(BudgetExceeded) as caught:
            run(calls, asked, resume="first")
        assert len(asked.calls) == calls - 3
        assert caught.value.spent == calls
    asked = model()
    found = run(1, asked, reuse="first", ctx=RunContext(run_id="second"))
    assert len(asked.calls) == 1
    assert found.usage.cost == 60 / 10**6
    assert found.transcript.usage_by_path["p"].calls == 1
    written = read_transcript(tmp_path / "second" / TRANSCRIPT)
    assert written.usage_by_path == found.transcript.usage_by_path


def test_the_failure_says_where_and_whose_budget_it_was(form: Form) -> None:
    """The error has the path of the call, and of the node whose budget did not suffice."""
    ctx = RunContext()
    tree = Block([Block(children(2), name="in")], name="p", budget={"calls": 1})
    with pytest.raises(BudgetExceeded) as caught:
        ChatRunner(model(), form=form).run(ctx, tree)
    assert caught.value.path == "p"
    assert ctx.error is not None
    assert ctx.error["path"] == "p/in/n1"
    assert ctx.messages == []


def test_a_compiled_graph_counts_each_run_by_itself(form: Form) -> None:
    """Without a recorder of its own a graph has a ledger for each run."""
    asked = model()
    graph = compile_graph(
        Block(children(2)), model=asked, form=form, budget={"calls": 2}, prices=PRICES
    )
    for _ in range(3):
        graph.invoke({"messages": [HumanMessage("Hello.")]})
    assert len(asked.calls) == 6


def test_a_budget_can_be_shared_by_all_runs_of_a_host(form: Form) -> None:
    """A recorder's source grants the calls of all runs that it is given to."""
    ledger = BudgetLedger(run=Budget(calls=3), prices=Prices(PRICES))
    graph = compile_graph(Block(children(2)), model=model(), form=form)
    config: Any = {"callbacks": [Recorder(budget=ledger)]}
    graph.invoke({"messages": []}, config)
    with pytest.raises(BudgetExceeded):
        graph.invoke({"messages": []}, config)
    assert ledger.spent().calls == 3


def test_waiting_at_a_gate_takes_no_time(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person may take hours, in an answerer or between two invocations of a graph."""
    now = [0.0]
    monkeypatch.setattr("mergepoint.models.budget.monotonic", lambda: now[0])

    def decide(question: Any) -> str:
        now[0] += 3_600
        return "approve"

    def tree(decide: Any) -> Node:
        gate = Gate(Step("A.", name="a"), name="gate", decide=decide)
        return Block([gate, Step("B.", name="b")], name="p", budget=Budget(seconds=60))

    ChatRunner(model(), form=form).run(RunContext(), tree(decide))
    graph = compile_graph(tree(None), model=model(), form=form, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": []}, config)
    now[0] += 3_600
    found = graph.invoke(Command(resume="approve"), config)
    assert len(found["messages"]) == 4


def test_models_inside_of_a_call_are_charged_after_the_fact(form: Form) -> None:
    """What a function asked by itself counts, and the next call is refused."""
    asked = model()

    def twice(ctx: Any) -> str:
        return "".join(str(ctx.model().invoke("Hello.").content) for _ in range(2))

    tree = Block([Call(twice, name="twice", capture_key="said"), *children(1)], name="p")
    ctx = RunContext()
    with pytest.raises(BudgetExceeded) as caught:
        ChatRunner(asked, form=form, budget={"calls": 2}, prices=PRICES).run(ctx, tree)
    assert caught.value.spent == 2
    assert ctx.usage_by_path["p/twice"].calls == 2
    assert ctx.usage.cost == 120 / 10**6


@pytest.mark.parametrize("budget", [5, {"call": 1}, {"usd": -1}])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    """It is found when the runner is made, or the graph compiled."""
    for make in (ChatRunner, lambda model, budget: compile_graph(Step("A."), budget=budget)):
        with pytest.raises(TreeError, match="budget"):
            make("offline", budget=budget)
