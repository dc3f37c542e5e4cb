"""Interpreter, subgraphs and fused graph, sync and async, mean the same as the reference."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from langchain_core.runnables import RunnableConfig
from tests.equivalence.engines import Observed, observe, observe_one_by_one, reference_of, referred

from mergepoint.engine.compiler import compile_graph
from mergepoint.testing.random_trees import WITH_TOOLS, Case, cases, seeded_case
from mergepoint.testing.tree_functions import AnswerTable, TableModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node, walk

FEW = 40
CHUNK = 100
CAMPAIGN = 9

Record = Callable[[str, object], None]


def differences(case: Case, loop: asyncio.Runner) -> list[str]:
    """Return what two engines say differently; nothing when all agree."""
    expected = referred(case)
    found: list[str] = []
    observed = observe(case, loop)
    oracle = observed["interpreter"]
    for name, actual in observed.items():
        found += _unlike(f"{name} and the reference", actual.claimed(), expected)
        found += _unlike(f"{name} and the interpreter", actual, oracle)
    return found


def _unlike(who: str, actual: Observed, expected: Observed) -> list[str]:
    return [
        f"{who}, {field.name}:\n  {one}\n  {other}"
        for field in dataclasses.fields(Observed)
        if (one := getattr(actual, field.name)) != (other := getattr(expected, field.name))
    ]


def features(case: Case) -> Counter[str]:
    """Count what a tree holds."""
    nodes = list(walk(case.tree))
    side_by_side = any(
        isinstance(node, Block) and node.parallel and len(node.nodes) > 1 for _, node in nodes
    )
    found = reference_of(case)
    error = found["error"]
    return Counter(
        {
            "trees": 1,
            "nodes": len(nodes),
            "with parallel blocks": side_by_side,
            "with captures": any(node.capture_key for _, node in nodes),
            "of depth 4 or more": max(path.count("/") for path, _ in nodes) >= 3,
            "that fail": error is not None,
            "that fail beside another failure": bool(error and error["noted"]),
            "with loops": any(isinstance(node, Loop) for _, node in nodes),
            "with gates": any(isinstance(node, Gate) for _, node in nodes),
            "with calls": any(isinstance(node, Call) for _, node in nodes),
            "with tools": any(isinstance(node, Step) and node.tools for _, node in nodes),
            "whose tools were executed": any("/tool_" in path for path in found["done"]),
            "with schemas": any(isinstance(node, Step) and node.schema for _, node in nodes),
            "with an exhausted loop": bool(found["exhausted"]),
        }
    )


def run_chunk(first: int, number: int, record: Record) -> None:
    """Run the cases of some seeds; the smallest tree that tells engines apart is shown."""
    counts: Counter[str] = Counter()
    worst: list[tuple[int, str]] = []
    with asyncio.Runner() as loop:
        for seed in range(first, first + number):
            case = seeded_case(seed, kinds=WITH_TOOLS)
            held = features(case)
            counts += held
            if found := differences(case, loop):
                worst.append((held["nodes"], f"seeded_case({seed})\n" + "\n".join(found)))
    record("trees", dict(counts))
    assert not worst, f"{len(worst)} trees tell engines apart, the smallest: {min(worst)[1]}"
    often = ("with parallel blocks", "with captures", "of depth 4 or more", "that fail")
    for what in often:
        assert counts[what] > number / 5, f"too few trees {what}"
    for what in ("with tools", "whose tools were executed"):  # a fifth of all, give or take
        assert counts[what] > number / 10, f"too few trees {what}"


def test_engines_agree_on_seeded_trees(record_property: Callable[[str, object], None]) -> None:
    """40 random trees have one meaning in all engines."""
    run_chunk(0, FEW, record_property)


@pytest.mark.campaign
@pytest.mark.parametrize("chunk", range(CAMPAIGN))
def test_engines_agree_in_a_campaign(
    chunk: int, record_property: Callable[[str, object], None]
) -> None:
    """900 random trees have one meaning in all engines."""
    run_chunk(chunk * CHUNK, CHUNK, record_property)


@given(case=cases(kinds=WITH_TOOLS))
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
def test_engines_agree_on_trees_that_shrink(case: Case) -> None:
    """Trees drawn by hypothesis, which shrinks one that tells engines apart, agree too."""
    with asyncio.Runner() as loop:
        assert differences(case, loop) == []


def test_engines_agree_one_call_at_a_time() -> None:
    """With max_concurrency=1 children start in declared order, and none after a failure."""
    with asyncio.Runner() as loop:
        for seed in range(20):
            case = seeded_case(seed, kinds=WITH_TOOLS)
            expected = referred(case, one_by_one=True)
            for name, actual in observe_one_by_one(case, loop).items():
                assert _unlike(f"{name}, seed {seed}", actual.claimed(), expected) == []


def test_a_delta_is_what_the_conversation_gained() -> None:
    """A graph that returns its delta gives what the other appends to what it was given."""
    config: RunnableConfig = {"configurable": {"mergepoint_run_id": "r1"}}
    for seed in range(30):
        case = seeded_case(seed, faulty=False)
        model = TableModel(table=case.answers)
        state = {"messages": case.messages, "inputs": case.inputs}
        whole = compile_graph(case.tree, model=model).invoke(state, config)
        delta = compile_graph(case.tree, model=model, returns="delta").invoke(state, config)
        assert whole["messages"] == [*case.messages, *delta["messages"]]
        assert whole["outputs"] == delta["outputs"]


def nested(depth: int) -> Node:
    """Return blocks inside of each other, with a step in the innermost."""
    node: Node = Step("Go on.")
    for _ in range(depth):
        node = Block([node, Step("And?", merge="last_response")])
    return node


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(Block([Step(f"Line {n}.") for n in range(60)]), id="60 in a row"),
        pytest.param(
            Block([Step(f"Line {n}.") for n in range(60)], parallel=True), id="60 side by side"
        ),
        pytest.param(Block([Block([Step("x.")] * 30)] * 2, parallel=True), id="2 times 30"),
        pytest.param(nested(12), id="12 levels"),
        pytest.param(Block([]), id="nothing"),
        pytest.param(Block([], parallel=True), id="nothing side by side"),
        pytest.param(Block([Block([], merge="none"), Step("x.")]), id="an empty child"),
        pytest.param(Step("x.", merge="none", capture_key="k"), id="a lone step"),
    ],
)
def test_engines_agree_on_extremes(tree: Node) -> None:
    """Wide, deep and empty trees have one meaning in all engines."""
    with asyncio.Runner() as loop:
        assert differences(Case(tree, [], {}, AnswerTable()), loop) == []
