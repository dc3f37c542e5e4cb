"""Calls that a budget left out: they are on record, and a run goes without them ever after."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import Engine

from mergepoint import (
    Block,
    Budget,
    BudgetExceeded,
    Call,
    CallContext,
    Gate,
    Loop,
    Node,
    Recorder,
    RunContext,
    Step,
    Transcript,
    run_generation,
)
from mergepoint.core.merge import State
from mergepoint.engine.compiler import Form
from mergepoint.engine.interpreter import interpret
from mergepoint.journal.call_records import to_json_value
from mergepoint.journal.file_journal import read_journal
from mergepoint.journal.replay import replay
from mergepoint.journal.transcript import transcript_of
from mergepoint.report.call_text import call_view, to_text
from mergepoint.testing.random_trees import seeded_case
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.tree_functions import TableModel
from mergepoint.tree.policy import Policy

TWO = Budget(calls=2, on_exhausted="keep")
LITTLE = Budget(tokens=1, on_exhausted="keep")


def model() -> ScriptedModel:
    """Return a model that answers whatever it is asked."""
    return ScriptedModel(default=Answer("x", usage=(10, 5)))


def steps(count: int) -> list[Step]:
    """Return steps in a row."""
    return [Step(f"Say {n}.", name=f"n{n}") for n in range(count)]


def in_order() -> Node:
    """Return a block whose last two children are left out, and a step behind it."""
    return Block([Block(steps(4), name="b", budget=TWO), Step("After.", name="after")], name="p")


def side_by_side() -> Node:
    """Return a parallel block of which all but two children are left out."""
    return Block(steps(5), name="p", parallel=True, budget=TWO)


def deep() -> Node:
    """Return a budget two levels above the call that it does not suffice for."""
    inner = Block([*steps(2), Block(steps(2), name="deeper")], name="inner", merge="last_response")
    return Block([Block([inner], name="b", budget=TWO), Step("After.", name="after")], name="p")


def looping() -> Node:
    """Return a loop that ends with its budget."""
    loop = Loop(steps(1), until=_never, max_iterations=9, budget=TWO, name="loop")
    return Block([loop, Step("After.", name="after")], name="p")


def _never(ctx: Any) -> bool:
    return False


def calling() -> Node:
    """Return a function whose model is the third to be asked."""
    function = Call(_asks, name="ask", capture_key="said")
    inside = Block([*steps(1), function, Step("Never.", name="never")], name="b", budget=TWO)
    return Block([inside, Step("After.", name="after")], name="p")


def _asks(ctx: CallContext) -> str:
    return "".join(str(ctx.model().invoke(prompt).text) for prompt in ("One?", "Two?"))


TREES = (in_order, side_by_side, deep, looping, calling)


@pytest.mark.parametrize("tree", TREES)
def test_the_state_follows_from_the_records(engine: Engine, tree: Callable[[], Node]) -> None:
    """What was left out is on record, so that the merges over the records give the same state."""
    recorder = Recorder()
    end = engine(tree(), model(), recorder=recorder)
    records = recorder.journal.records
    again = replay(records, tree(), base=State())
    assert again.state is not None
    assert [message.text for message in again.state.messages] == end.texts
    assert dict(again.state.outputs) == end.outputs
    left = [record for record in records if record.kind == "left_out"]
    assert left
    assert all((record.error or {})["type"] == "BudgetExceeded" for record in left)
    assert not any(record.answered or record.failed for record in left)


def test_the_state_of_random_trees_follows_from_their_records() -> None:
    """Of 150 random trees under a budget that keeps, live and replayed state are the same."""
    cut = 0
    for seed in range(150):
        case, recorder = seeded_case(seed, faulty=False), Recorder()
        given: Any = {"messages": case.messages, "inputs": case.inputs, "run_id": "r"}
        keep = {"calls": 1 + seed % 4, "on_exhausted": "keep"}
        model = TableModel(table=case.answers)
        try:
            live = interpret(case.tree, model=model, recorder=recorder, budget=keep, **given)
        except Exception:  # noqa: BLE001, S112  (trees fail for other reasons too)
            continue
        records = recorder.journal.records
        base = State(tuple(case.messages))
        assert replay(records, case.tree, base=base, inputs=case.inputs).state == live
        cut += any(record.kind == "left_out" for record in records)
    assert cut > 30


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
@pytest.mark.parametrize("tree", TREES)
def test_a_run_that_was_kept_is_over(tmp_path: Path, tree: Callable[[], Node], form: Form) -> None:
    """Resumed with more budget, and replayed, it calls nothing and ends in the same state."""
    kept = run_generation(
        tree(), model=model(), form=form, runs=tmp_path, ctx=RunContext(run_id="r")
    )
    journal = (tmp_path / "r" / "journal.jsonl").read_bytes()
    for options in ({"resume": "r", "budget": {"calls": 100}}, {"replay": "r"}):
        idle = ScriptedModel([])
        again = run_generation(tree(), model=idle, form=form, runs=tmp_path, **options)
        assert [m.text for m in again.messages] == [m.text for m in kept.messages]
        assert (again.text, again.outputs, idle.calls) == (kept.text, kept.outputs, [])
    assert (tmp_path / "r" / "journal.jsonl").read_bytes() == journal


def test_what_is_left_out_costs_nothing(tmp_path: Path) -> None:
    """It is no call, no failure and no attempt: usage and the rest of the budget go without it."""
    done = run_generation(in_order(), model=model(), runs=tmp_path)
    assert done.transcript.usage_by_path["p/b"].calls == 2
    assert done.transcript.failures == ()
    (left,) = done.transcript.others
    assert (left.kind, left.path) == ("left_out", "p/b/n2")
    assert (left.error or {})["path"] == "p/b"


def test_a_journal_tells_the_end_of_a_run_that_was_kept(tmp_path: Path) -> None:
    """The transcript that its journal gives is the one that was written."""
    run_generation(in_order(), model=model(), runs=tmp_path, ctx=RunContext(run_id="r"))
    written = json.loads((tmp_path / "r" / "transcript.json").read_text(encoding="utf-8"))
    worked_out = transcript_of(*read_journal(tmp_path / "r" / "journal.jsonl"))
    assert json.loads(json.dumps(to_json_value(worked_out.to_json()))) == written
    assert written["error"] is None


def test_a_kill_after_something_was_left_out_changes_nothing(tmp_path: Path) -> None:
    """The resumed run does without it too, though its budget would suffice by now."""
    ctx = RunContext(run_id="r")
    run_generation(in_order(), model=model(), runs=tmp_path, ctx=ctx)
    journal = tmp_path / "r" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    rest = model()
    done = run_generation(in_order(), model=rest, runs=tmp_path, resume="r", budget={"calls": 99})
    assert [call.path for call in rest.calls] == ["p/after"]
    assert [m.text for m in done.messages] == ["Say 0.", "x", "Say 1.", "x", "After.", "x"]


@pytest.mark.parametrize(
    "tree",
    [
        Block([Step("A.", name="a", policy=Policy(budget=LITTLE))]),
        Gate(Step("A.", name="a"), decide=lambda question: "approve"),
        Step("A.", name="a"),
    ],
)
def test_a_node_without_children_to_leave_out_fails(tmp_path: Path, tree: Node) -> None:
    """Only blocks and loops go on; of others nothing is left out, and more budget is the way on."""
    ctx = RunContext(run_id="r")
    with pytest.raises(BudgetExceeded):
        run_generation(tree, model=model(), runs=tmp_path, ctx=ctx, budget=LITTLE)
    assert read_journal(tmp_path / "r" / "journal.jsonl")[1] == ()


def test_show_tells_what_a_call_of_such_a_run_saw() -> None:
    """A block that went on without some children has an exit all the same."""
    recorder = Recorder()
    interpret(in_order(), model=model(), recorder=recorder, run_id="r")
    transcript = Transcript.of(recorder.journal.records, in_order(), run_id="r", at="p")
    fate = call_view(transcript, "p/b/n1").fate
    assert fate is not None
    assert [exit_.path for exit_ in fate.passed] == ["p/b/n1", "p/b", "p"]
    assert (fate.end, fate.seen_by) == ("kept", ("p/after",))
    gone = call_view(transcript, "p/b/n2")
    assert (gone.left_out, gone.answer, gone.fate) == (True, None, None)
    assert "It was skipped\n  the budget of p/b, 2 calls, is not enough" in to_text(gone)
    assert [seen.text for seen in gone.seen] == ["Say 0.", "x", "Say 1.", "x", "Say 2."]


def test_show_tells_what_went_with_a_block_that_was_left_out() -> None:
    """An answer inside of a block that a budget ended is lost with it."""
    recorder = Recorder()
    interpret(deep(), model=model(), recorder=recorder, run_id="r")
    transcript = Transcript.of(recorder.journal.records, deep(), run_id="r", at="p")
    view = call_view(transcript, "p/b/inner/n1")
    assert "skipped with p/b/inner (last_response), budget exceeded" in to_text(view)
