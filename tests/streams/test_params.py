"""Params: everything that is wrong with them is said at once, with its place."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint.core.errors import RecipeError
from mergepoint.streams.params import Params, check_params
from mergepoint.streams.registry import REGISTRY

FAULTY: list[tuple[str, Any, str]] = [
    (
        "vote",
        {"ties": "frist", "stopp": 1},
        r"ties: .*not 'frist' \(did you mean 'first'\?\); stopp: no such param .*'stop'.* per, by,",
    ),
    (
        "vote",
        {"stop": {"leed": 2}},
        r"stop.leed: no such param \(did you mean 'lead'\?\); available: lead, ",
    ),
    ("vote", {"stop": {}}, "stop: set exactly one of lead, confidence, window, voters"),
    ("vote", {"stop": {"lead": 1, "window": 2}}, "stop: set exactly one"),
    ("vote", {"stop": {"confidence": 1}}, "stop.confidence: input should be less than 1"),
    ("vote", {"weight": "w", "stop": {"lead": 1}}, "stop counts votes without weights"),
    ("vote", {"ties": "best"}, "ties: best and best_by belong together"),
    ("vote", {"exact": "yes"}, "exact: input should be a valid boolean, not 'yes'"),
    ("vote", 3, "params are a mapping, not 3"),
    ("synthesize", {}, "strategy: is missing"),
    (
        "synthesize",
        {"strategy": "cat"},
        r"strategy: is one of .*, not 'cat' \(did you mean 'concat'",
    ),
    (
        "synthesize",
        {"strategy": "concat", "k": 1},
        "k: no such param; available: per, collect, strategy, separator",
    ),
    ("synthesize", {"strategy": "top_k", "k": "1"}, "k: input should be a valid integer, not '1'"),
    ("filter", {}, "where: is missing"),
    ("filter", {"where": 3}, "where: input should be a valid dictionary, not 3"),
    ("filter", {"where": {}}, "where: dictionary should have at least 1 item"),
    ("filter", {"where": []}, "where: list should have at least 1 item"),
    ("filter", {"where": {"s": {}}}, "where.s: the condition has no test"),
    (
        "filter",
        {"where": {"s": {"matches": "("}}},
        "where.s.matches: the regular expression is invalid",
    ),
    (
        "filter",
        {"where": [{"s": {"at_lest": 1}}]},
        r"where.0.s.at_lest: no such param \(did you mean 'at_least'",
    ),
    (
        "filter",
        {"where": {"s": {"at_least": "7"}}},
        "where.s.at_least: input should be a valid number",
    ),
    ("route", {"cases": []}, "cases: list should have at least 1 item"),
    ("route", {"cases": [{"where": {"a": 1}}]}, "cases.0.to: is missing"),
    ("select", {}, "set at least one of top_k, threshold, take"),
    ("select", {"top_k": 0}, "top_k: input should be greater than or equal to 1, not 0"),
    ("accumulate", {"seconds": 0}, "seconds: input should be greater than 0, not 0"),
    ("accumulate", {"count": True}, "count: input should be a valid integer, not True"),
    ("accumulate", {"budget": {}}, "budget: dictionary should have at least 1 item"),
    ("accumulate", {"budget": {"cost": "x"}}, "budget.cost: input should be a valid number"),
    ("group_by", {}, "set exactly one of by and lineage"),
    ("group_by", {"by": "a", "lineage": "root"}, "set exactly one of by and lineage"),
    ("group_by", {"lineage": 0}, "lineage must be parent, root, or a number of levels"),
    ("group_by", {"lineage": True}, "lineage"),
    ("group_by", {"by": "a", "size": 2}, "size requires lineage"),
    ("tee", {"branches": []}, "branches: list should have at least 1 item"),
    ("tee", {"branches": ["a", "a"]}, "branches: branches must have distinct"),
    ("checkpoint", {}, "name: is missing"),
    ("retrieve", {}, "set exactly one of documents, folder, retriever"),
    ("retrieve", {"documents": ["a"], "folder": "b"}, "set exactly one"),
    ("retrieve", {"retriever": 3}, "retriever: a retriever must be a LangChain retriever"),
    ("retrieve", {"retriever": "module:name", "b": 0.5}, "b requires documents or folder"),
    ("retrieve", {"documents": ["a"], "b": 2}, "b: input should be less than or equal to 1"),
]


@pytest.mark.parametrize(("name", "given", "problem"), FAULTY)
def test_params_that_do_not_fit_are_refused(name: str, given: Any, problem: str) -> None:
    """Unknown and mistyped params are named with their place, near names and what was given."""
    with pytest.raises(RecipeError, match=f"^stage_1.{name}: .*{problem}"):
        REGISTRY.find(name).given(given, where=f"stage_1.{name}")


def test_faults_have_their_location() -> None:
    """Whoever knows the lines of a file can find the line of each fault."""
    filter_ = REGISTRY.find("filter")
    faults = check_params(filter_.params, {"where": [{"s": {"at_lest": 1}}, {}], "dorp": True})
    assert isinstance(faults, tuple)
    assert [fault.location for fault in faults] == [
        ("where", 0, "s", "at_lest"),
        ("where", 1),
        ("dorp",),
    ]


def test_no_params_are_the_defaults() -> None:
    """A block all of whose params have defaults needs none, and takes a made model as it is."""
    vote = REGISTRY.find("vote")
    assert vote.given(None) == vote.given({})
    made = vote.given({"by": "answer"})
    assert vote.given(made) is made


def test_params_are_frozen() -> None:
    """A block cannot change its params for the next stage."""
    with pytest.raises(ValueError, match="frozen"):
        REGISTRY.find("vote").given({}).by = "other"


def test_params_without_fields_take_nothing() -> None:
    """A block without params refuses any, and says that there are none."""
    faults = check_params(Params, {"a": 1})
    assert [str(fault) for fault in faults] == ["a: no such param; available: none"]
