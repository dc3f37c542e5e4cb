"""The strategies give trees that can run, of every kind, and the same for the same number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from mergepoint.testing.random_trees import (
    Case,
    answers,
    cases,
    inputs,
    messages,
    seeded_case,
    trees,
)
from mergepoint.testing.tree_functions import FAILURES, AnswerTable, PartsPrompt
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node, Order, root_path, walk
from mergepoint.tree.prompts import Template
from mergepoint.tree.validate import check, inputs_of

FEW = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@given(tree=trees())
@FEW
def test_every_tree_passes_the_check(tree: Node) -> None:
    """A random tree has no fault, and no more than six levels."""
    assert check(tree) == []
    assert max(path.count("/") for path, _ in walk(tree)) < 6


def test_every_seeded_tree_passes_the_check() -> None:
    """Seeded trees have no fault either."""
    for seed in range(500):
        assert check(seeded_case(seed).tree) == []


@given(tree=trees(max_depth=2, max_nodes=3, parallel=False))
@FEW
def test_options_bound_the_trees(tree: Node) -> None:
    """Depth, size and parallel blocks are kept in bounds."""
    nodes = list(walk(tree))
    assert len(nodes) <= 4
    assert max(path.count("/") for path, _ in nodes) <= 1
    assert not any(isinstance(node, Block) and node.parallel for _, node in nodes)


HOLDS: dict[str, Callable[[Node], bool]] = {
    "parallel": lambda node: isinstance(node, Block) and node.parallel and len(node.nodes) > 1,
    "an empty block": lambda node: isinstance(node, Block) and not node.nodes,
    "a block that is squashed": lambda node: (
        isinstance(node, Block) and node.merge == "last_response"
    ),
    "a step that leaves nothing": lambda node: isinstance(node, Step) and node.merge == "none",
    "a captured block": lambda node: isinstance(node, Block) and bool(node.capture_key),
    "inputs": lambda node: isinstance(node, Block) and bool(node.inputs),
    "a template that reads": lambda node: (
        isinstance(node, Step) and isinstance(node.prompt, Template) and bool(node.prompt.keys)
    ),
    "an optional read": lambda node: (
        isinstance(node, Step)
        and isinstance(node.prompt, PartsPrompt)
        and bool(node.prompt.defaults)
    ),
    "a system template": lambda node: isinstance(node, Step) and isinstance(node.system, Template),
    "a schema": lambda node: isinstance(node, Step) and node.schema is not None,
    "a name": lambda node: node.name is not None,
}


@pytest.mark.parametrize("what", HOLDS)
def test_trees_of_every_kind_are_given(what: str) -> None:
    """Each feature is in more than one of thirty trees."""
    holding = [
        seed
        for seed in range(600)
        if any(HOLDS[what](node) for _, node in walk(seeded_case(seed).tree))
    ]
    assert len(holding) > 20


def test_a_tree_shrinks_to_what_matters() -> None:
    """What hypothesis reports is a small tree around the feature that was asked for."""

    def holds(tree: Node) -> bool:
        return any(isinstance(node, Block) and bool(node.capture_key) for _, node in walk(tree))

    found = find(trees(), holds, settings=settings(FEW, max_examples=500))
    assert len(list(walk(found))) <= 4


def test_trees_reach_six_levels() -> None:
    """The deepest trees have six names in a path."""
    depths = [
        max(path.count("/") + 1 for path, _ in walk(seeded_case(seed).tree)) for seed in range(200)
    ]
    assert max(depths) == 6


@given(data=st.data())
@FEW
def test_inputs_and_answers_fit_the_tree(data: st.DataObject) -> None:
    """Inputs are those the tree declares; failures are at paths of steps."""
    tree = data.draw(trees())
    given_inputs: dict[str, Any] = data.draw(inputs(tree))
    table = data.draw(answers(tree, failing=100))
    order = Order(tree, root_path(tree))
    steps = {path for path, node in walk(tree) if isinstance(node, Step)}
    assert set(given_inputs) <= {declared.name for declared in inputs_of(tree)}
    assert {order.static(path) for path in table.failures} <= steps
    assert bool(table.failures) == bool(steps)
    assert set(table.failures.values()) <= set(FAILURES)


@given(given_messages=messages())
@FEW
def test_messages_have_ids_of_their_own(given_messages: list[Any]) -> None:
    """Messages to start from can be told apart."""
    ids = [message.id for message in given_messages]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def test_a_seeded_case_is_the_same_again() -> None:
    """A number stands for one case, so a report of it can be run again."""
    assert seeded_case(11) == seeded_case(11)
    assert seeded_case(11) != seeded_case(12)


@given(case=cases(faulty=False))
@FEW
def test_cases_without_faults_have_no_failing_calls(case: Case) -> None:
    """With faulty=False every call is answered."""
    assert case.answers.failures == {}


def test_an_answer_depends_on_path_and_view() -> None:
    """The same call has the same answer; another path, view or seed another."""
    table = AnswerTable(1)
    digest = table.digest("a", [("user", "x")])
    assert digest == AnswerTable(1).digest("a", [("user", "x")])
    others = [
        table.digest("b", [("user", "x")]),
        table.digest("a", [("user", "y")]),
        table.digest("a", [("assistant", "x")]),
        AnswerTable(2).digest("a", [("user", "x")]),
    ]
    assert digest not in others


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_fails(name: str) -> None:
    """A failing path raises, or answers with blank text."""
    table = AnswerTable(failures={"a": name})
    failure = FAILURES[name]
    if isinstance(failure, str):
        assert table("a", []).strip() == ""
    else:
        with pytest.raises(type(failure("x"))):
            table("a", [])
