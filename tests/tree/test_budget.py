"""Budgets: what they may hold, and where they may stand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mergepoint import Block, Budget, Step, TreeError, from_yaml, to_yaml, with_overrides
from mergepoint.tree.policy import as_budget


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"usd": True}, "usd is a finite number of at least 0, not True"),
        ({"usd": -0.1}, "usd is a finite number"),
        ({"usd": math.nan}, "usd is a finite number"),
        ({"seconds": math.inf}, "seconds is a finite number"),
        ({"seconds": "60"}, "seconds is a finite number of at least 0, not '60'"),
        ({"calls": 1.0}, "calls is an integer of at least 0, not 1.0"),
        ({"tokens": False}, "tokens is an integer"),
        ({"on_exhausted": "stop"}, "on_exhausted='stop'; allowed are 'raise', 'keep'"),
    ],
)
def test_a_limit_that_is_none_is_refused(fields: dict[str, Any], problem: str) -> None:
    """Each limit says what it takes, also where it is given in a mapping."""
    with pytest.raises(TreeError) as alone:
        Budget(**fields)
    with pytest.raises(TreeError) as mapped:
        as_budget(fields)
    for caught in (alone, mapped):
        assert [problem in str(fault) for fault in caught.value.faults] == [True]


def test_all_faults_of_a_budget_are_listed_at_once() -> None:
    """An unknown key and three bad limits are four faults, with a near word."""
    with pytest.raises(TreeError) as caught:
        as_budget({"call": 3, "usd": "x", "tokens": -1, "calls": None, "seconds": []})
    problems = [fault.problem for fault in caught.value.faults]
    assert len(problems) == 4
    assert problems[0].startswith("a budget has no 'call' (did you mean 'calls'?)")


def test_a_budget_of_nothing_is_a_budget() -> None:
    """Zero is a limit, None is no limit, and None in place of a budget stays None."""
    assert as_budget({"usd": 0, "calls": None}) == Budget(0)
    assert as_budget(None) is None


def test_a_block_makes_a_budget_of_a_mapping() -> None:
    """A block holds a Budget, however it was given; it can be set by path."""
    tree = Block([Block([Step("A.")], name="inner")], budget={"calls": 3})
    assert tree.budget == Budget(calls=3)
    changed = with_overrides(tree, {"inner": {"budget": {"usd": 0.5}}})
    assert isinstance(changed, Block)
    assert changed.nodes[0].budget == Budget(0.5)  # type: ignore[union-attr]


def test_faults_of_a_budget_stand_with_the_block_s_others() -> None:
    """Nothing is told one by one."""
    with pytest.raises(TreeError) as caught:
        Block([], merge="all", budget={"usd": -1, "tokens": 1.5})  # type: ignore[arg-type]
    assert len(caught.value.faults) == 3


def test_what_is_no_budget_is_refused() -> None:
    """A number alone does not say of what."""
    with pytest.raises(TreeError, match="a Budget or a mapping of its fields, not 5"):
        Block([], budget=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "budget", [Budget(0.5), Budget(tokens=10, calls=3, seconds=1.5, on_exhausted="keep")]
)
def test_a_budget_comes_back_from_yaml(budget: Budget) -> None:
    """The text of a tree holds the limits that are set, and gives an equal tree."""
    tree = Block([Step("A.")], budget=budget)
    text = to_yaml(tree)
    assert from_yaml(text) == tree
    assert "null" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", ["t.yaml:1: budget is a mapping of limits, not 3"]),
        ("{call: 3}", ["t.yaml:1: no key 'call' here (did you mean 'calls'?)"]),
        (
            "\n  usd: -1\n  calls: 1.5",
            ["t.yaml:2: budget: usd is a finite", "t.yaml:3: budget: calls is an integer"],
        ),
    ],
)
def test_a_bad_budget_in_yaml_is_named_by_its_line(text: str, expected: list[str]) -> None:
    """Each fault has file and line, and stands alone."""
    with pytest.raises(TreeError) as caught:
        from_yaml(f"budget: {text}\nnodes: [{{prompt: A.}}]", source="t.yaml")
    found = [fault.problem for fault in caught.value.faults]
    assert len(found) == len(expected)
    assert all(one.startswith(start) for one, start in zip(found, expected, strict=True)), found
