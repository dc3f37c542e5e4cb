"""Where: which conditions hold for which Things."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint.core.errors import BlockError
from mergepoint.streams.conditions import read_props
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import run_block

PROPS: dict[str, Any] = {"score": 70, "status": "done", "tags": ["a", 1], "ok": True, "none": None}

HOLDS: list[Any] = [
    {"status": "done"},
    {"score": 70},
    {"score": 70.0},
    {"ok": True},
    {"none": None},
    {"none": {"equals": None}},
    {"tags": ["a", 1]},
    {"score": {"at_least": 70, "at_most": 70}},
    {"score": {"above": 69.5, "below": 71}},
    {"score": {"one_of": [1, 70]}},
    {"score": {"isnt": 71}},
    {"missing": {"isnt": 1}},
    {"missing": {"exists": False}},
    {"missing": {"exists": False, "isnt": 1}},
    {"score": {"exists": True}},
    {"tags": {"contains": "a"}},
    {"content": {"contains": "cat", "matches": "^The .* sat$"}},
    {"content": "The cat sat"},
    {"status": "done", "score": {"at_least": 1}},
    [{"status": "failed"}, {"status": "done"}],
]

FALSE: list[Any] = [
    {"status": "failed"},
    {"score": "70"},
    {"score": True},
    {"ok": 1},
    {"missing": None},
    {"missing": 1},
    {"missing": {"at_least": 0}},
    {"missing": {"exists": False, "equals": 1}},
    {"missing": {"exists": True}},
    {"score": {"exists": False}},
    {"score": {"at_least": 70, "below": 70}},
    {"score": {"isnt": 70}},
    {"score": {"one_of": []}},
    {"score": {"one_of": None}},
    {"tags": {"contains": True}},
    {"tags": {"matches": "a"}},
    {"score": {"contains": 7}},
    {"content": {"contains": 3}},
    {"content": {"matches": "dog"}},
    {"status": "done", "score": 1},
    [{"status": "failed"}, {"score": 1}],
]


@pytest.mark.parametrize("where", HOLDS)
def test_a_condition_holds(where: Any) -> None:
    """A filter lets the Thing pass, and one that drops does not."""
    item = Thing("The cat sat", PROPS)
    assert len(run_block("filter", [item], {"where": where})) == 1
    assert run_block("filter", [item], {"where": where, "drop": True}) == []


@pytest.mark.parametrize("where", FALSE)
def test_a_condition_does_not_hold(where: Any) -> None:
    """A filter keeps the Thing back, and one that drops lets it pass."""
    item = Thing("The cat sat", PROPS)
    assert run_block("filter", [item], {"where": where}) == []
    assert len(run_block("filter", [item], {"where": where, "drop": True})) == 1


@pytest.mark.parametrize("name", ["status", "ok", "tags", "none"])
def test_what_is_no_number_is_not_compared(name: str) -> None:
    """A number that is asked of a prop which is none is an error that shows it."""
    with pytest.raises(BlockError, match=f"item 0: {name} must be a number, not "):
        run_block("filter", [Thing("x", PROPS)], {"where": {name: {"at_least": 1}}})


def test_the_props_that_a_condition_reads_are_known() -> None:
    """All props of all lines are told, each once, without the content."""
    assert read_props({"a": 1, "content": "x"}) == ["a"]
    assert read_props([{"a": 1}, {"b": 2, "a": 3}]) == ["a", "b"]
    assert read_props(None) == []
