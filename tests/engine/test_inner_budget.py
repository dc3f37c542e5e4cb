"""A graph with budgets of its own inside of a Call: both runs have to have room for a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import Engine

from mergepoint import (
    Block,
    Budget,
    BudgetExceeded,
    Call,
    ChatRunner,
    Recorder,
    RunContext,
    Step,
    compile_graph,
)
from mergepoint.engine.compiler import Form
from mergepoint.journal.call_records import CallKey
from mergepoint.models.budget import BudgetLedger, NestedBudget
from mergepoint.testing.scripted_model import Answer, ScriptedModel

THREE = Block([Step(f"Say {word}.", name=word) for word in ("a", "b", "c")], name="inside")
KEY = CallKey("r1", "", "root/ask/inside/a")
KEPT = Budget(calls=2, on_exhausted="keep")


def answering() -> ScriptedModel:
    """Return a model whose answers use 10 and 5 tokens."""
    return ScriptedModel(default=Answer("x", usage=(10, 5)))


def holding(budget: Any = None, *, tree: Block = THREE, **options: Any) -> Block:
    """Return a tree with a Call of a graph that has a budget, and a step behind it."""
    graph = compile_graph(tree, model=answering(), budget=budget, **options)
    return Block([Call(graph, name="ask"), Step("Go on.", name="go")], name="root")


def test_a_graph_in_a_call_keeps_to_its_own_budget(engine: Engine) -> None:
    """The third call of a graph that may make two is refused, by the path inside of the Call."""
    recorder = Recorder()
    with pytest.raises(BudgetExceeded) as told:
        engine(holding({"calls": 2}), answering(), recorder=recorder)
    assert told.value.path == "root/ask/inside"
    assert [one.path for one in recorder.journal.records if one.answered] == [
        "root/ask/inside/a",
        "root/ask/inside/b",
    ]


def test_a_graph_in_a_call_goes_on_without_the_rest(engine: Engine) -> None:
    """With "keep" the inner block ends after two, and the run around goes on."""
    recorder = Recorder()
    engine(holding(KEPT), answering(), recorder=recorder)
    answered = [one.path for one in recorder.journal.records if one.answered]
    assert answered[-2:] == ["root/ask", "root/go"]
    assert "root/ask/inside/c" not in answered


@pytest.mark.parametrize(("outer", "inner", "path"), [(9, 2, "root/ask/inside"), (2, 9, "root")])
def test_the_smaller_budget_holds(outer: int, inner: int, path: str) -> None:
    """Of a run and a graph inside of it the one without room refuses, under its own path."""
    ctx = RunContext()
    with pytest.raises(BudgetExceeded) as told:
        ChatRunner(answering(), budget={"calls": outer}).run(ctx, holding({"calls": inner}))
    assert told.value.path == path
    assert sum(one.kind == "step" for one in ctx.transcript().records) == 2


def test_what_a_graph_in_a_call_spends_is_spent_outside_too() -> None:
    """Three calls inside and one behind them are four of the run's own."""
    ctx = RunContext()
    ChatRunner(answering(), budget={"calls": 4}).run(ctx, holding({"calls": 3}))
    again = RunContext()
    with pytest.raises(BudgetExceeded, match="root"):
        ChatRunner(answering(), budget={"calls": 3}).run(again, holding({"calls": 3}))
    assert again.error is not None
    assert again.error["path"] == "root/go"


def test_a_budget_of_an_inner_block_holds(engine: Engine) -> None:
    """A block inside of the graph that is in the Call has its own limit under its own path."""
    block = Block(THREE.nodes, name="few", budget=KEPT)
    recorder = Recorder()
    engine(holding(tree=Block([block], name="inside")), answering(), recorder=recorder)
    left = [one for one in recorder.journal.records if one.path == "root/ask/inside/few/c"]
    assert [one.kind for one in left] == ["left_out"]


def test_the_keep_of_the_run_around_is_not_taken_by_the_graph_inside() -> None:
    """An outer budget that is used up inside of a Call ends the Call, though names are the same."""
    inside = Block(THREE.nodes, name="root")
    tree = Block([*holding({"calls": 9}, tree=inside).nodes], name="root", budget=KEPT)
    ctx = RunContext()
    ChatRunner(answering()).run(ctx, tree)
    assert [one.path for one in ctx.transcript().records] == ["root/ask/root/a", "root/ask/root/b"]


def test_a_graph_with_a_journal_of_its_own(tmp_path: Path) -> None:
    """A graph in a Call that keeps its own journal keeps to its budget, and spends the outer."""
    graph = compile_graph(THREE, model=answering(), budget={"calls": 9}, journal=tmp_path)
    tree = Block([Call(graph, name="ask")], name="root")
    with pytest.raises(BudgetExceeded):
        ChatRunner(answering(), budget={"calls": 2}).run(RunContext(), tree)
    few = compile_graph(THREE, model=answering(), budget={"calls": 2}, journal=tmp_path / "few")
    with pytest.raises(BudgetExceeded) as told:
        ChatRunner(answering()).run(RunContext(), Block([Call(few, name="ask")], name="root"))
    assert told.value.path == "inside"


def test_the_calls_of_a_graph_with_a_journal_are_in_no_other(tmp_path: Path, form: Form) -> None:
    """The run around has the Call alone on record, in memory and in a file."""
    graph = compile_graph(THREE, model=answering(), form=form, journal=tmp_path / "inner")
    tree = Block([Call(graph, name="ask")], name="root")
    for journal in (None, tmp_path / "outer"):
        recorder, runner = Recorder(), ChatRunner(answering(), form=form, journal=journal)
        ctx = RunContext(config={"callbacks": [recorder]})
        runner.run(ctx, tree)
        assert [one.path for one in ctx.transcript().records] == ["root/ask"]
        assert [one.path for one in recorder.journal.records] == ["root/ask"]


def ledgers(
    now: list[float] | None = None, **limits: Any
) -> tuple[BudgetLedger, BudgetLedger, NestedBudget]:
    """Return two ledgers of one clock, and the source of both."""
    told = [0.0] if now is None else now
    own, around = (
        BudgetLedger(run=Budget(**limits), root=root, clock=lambda: told[0])
        for root in ("in", "out")
    )
    return own, around, NestedBudget(own, around)


def test_what_the_outer_refuses_is_given_back_by_the_inner() -> None:
    """A reservation that only one of both grants leaves nothing held."""
    own, around, both = ledgers(calls=1)
    around.reserve(KEY, "m", [], {})
    with pytest.raises(BudgetExceeded, match="out"):
        both.reserve(KEY, "m", [], {})
    assert own.spent().calls == 0
    own.reserve(KEY, "m", [], {})


def test_a_charge_is_a_charge_of_both() -> None:
    """A call that no door asked for costs both, once each."""
    own, around, both = ledgers(calls=9)
    both.charge(KEY, "m", None)
    assert (own.spent().calls, around.spent().calls) == (1, 1)


def test_clocks_of_both_stand_still() -> None:
    """While a person is waited for, and after a run ended at a gate, no seconds pass in either."""
    now = [0.0]
    own, around, both = ledgers(now, seconds=5.0)
    held = both.reserve(KEY, "m", [], {})
    assert held is not None
    held.settle(None)
    with both.pause():
        now[0] += 60
    both.rest()
    now[0] += 60
    held = both.reserve(KEY, "m", [], {})
    assert held is not None
    held.settle(None)
    assert (own.spent().calls, around.spent().calls) == (2, 2)
