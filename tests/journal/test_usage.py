"""Usage by path: parents add up, whatever failed or was replayed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from mergepoint import CallRecord, Usage
from mergepoint.core.paths import ancestors
from mergepoint.journal.call_records import CallKey
from mergepoint.journal.transcript import usage_by_path, usage_of


def record(path: str, given: int = 2, made: int = 3, **fields: Any) -> CallRecord:
    """Return the record of a call that used so many tokens."""
    total = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
    message = AIMessage("x", usage_metadata=total)
    about = {"message": message, "cost": 0.1, **fields}
    return CallRecord(key=CallKey("r", "", path), prompt="A.", **about)


def test_what_a_call_used_is_at_its_path_and_all_above() -> None:
    """The order is that of the tree, and what was not called is left out."""
    found = usage_by_path(
        [record("p/b/two"), record("p/a"), record("p/b/one", 10, 20)],
        ["p", "p/a", "p/b", "p/b/one", "p/b/two", "p/c"].index,
    )
    assert list(found) == ["p", "p/a", "p/b", "p/b/one", "p/b/two"]
    assert found["p"].total_tokens == 40
    assert found["p/b"] == found["p/b/one"] + found["p/b/two"]
    assert (found["p"].calls, found["p"].cost) == (3, 0.3)


def test_failed_attempts_count_and_replayed_answers_do_not() -> None:
    """What a failed attempt cost was paid; what another run paid was not paid again."""
    error = {"type": "TimeoutError", "message": ""}
    found = usage_of(
        [
            record("p/a", error=error, message=None, cost=None),
            record("p/a", attempt=2),
            record("p/b", source="replayed"),
            record("p/c", kind="gate"),
            record("p/d/inner", kind="inner"),
        ]
    )
    assert (found.calls, found.total_tokens, found.cost) == (3, 10, 0.2)
    assert (found.unknown_cost_calls, found.estimated) == (1, 0)


def test_an_answer_without_usage_is_marked_as_estimated() -> None:
    """A cost without the provider's count is what it was at most."""
    found = usage_of([record("p/a", message=AIMessage("x"))])
    assert (found.estimated, found.unknown_cost_calls, found.cost) == (1, 0, 0.1)
    assert found.known_cost == 0.1
    assert usage_of([record("p/a", cost=None)]).known_cost is None


names = st.sampled_from("abc")
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/".join(["p", *parts]))


@given(st.lists(st.tuples(paths, st.integers(0, 99), st.floats(0, 1)), max_size=30))
def test_parents_add_up(calls: list[tuple[str, int, float]]) -> None:
    """A path holds what was called at it and what its children hold, in any tree."""
    records = [record(path, number, cost=round(cost, 12)) for path, number, cost in calls]
    found = usage_by_path(records, str)
    for path, used in found.items():
        own = [one for one in records if one.path == path]
        below = [at for at in found if ancestors(at)[:1] == [path]]
        total = sum((found[at] for at in below), usage_of(own))
        assert used.to_json() | {"cost": 0} == total.to_json() | {"cost": 0}
        assert abs(used.cost - total.cost) < 1e-9
    if calls:
        assert found["p"].calls == len(calls)


def test_usage_comes_back_from_json() -> None:
    """What a transcript's file holds gives the same value."""
    used = Usage(calls=2, total_tokens=5, cost=0.25, estimated=1)
    assert Usage.from_json(used.to_json()) == used
