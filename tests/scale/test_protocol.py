"""What drivers and workers exchange: JSON data that comes back equal, and ids of runs."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mergepoint.journal.stores import checked_run_id
from mergepoint.scale import BatchError, BatchInput, BatchResult, RunSpec
from mergepoint.scale.protocol import run_id_of

VALUES = (
    BatchInput(id="q1", value={"question": "Why?"}, number=3),
    BatchResult(
        id="q1",
        status="failed",
        calls=2,
        usage={"input_tokens": 7, "output_tokens": 2, "cost": None},
        error={"type": "StepError", "message": "no", "path": "t/a"},
        run_id="b.q1",
        attempts=2,
        number=3,
    ),
    RunSpec(
        batch="b", target="t", kind="name", store="runs", options={"model": "offline"},
        limits={"budget": {"usd": 1.5}}, version="0.1.0", fingerprint="f",
    ),
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda one: type(one).__name__)
def test_values_survive_json(value: BatchInput | BatchResult | RunSpec) -> None:
    """Inputs, results and specs are equal after a way through JSON that adds newer fields."""
    plain = json.loads(json.dumps(value.to_plain()))
    assert type(value).from_plain({**plain, "newer": 1}) == value


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"status": "done"}, "BatchResult is incomplete: .*'id'"),
        ({"id": 7, "status": "done"}, "id of a BatchResult is str, not 7"),
        ({"id": "7", "status": "maybe"}, "'done' or 'failed', not 'maybe'"),
        ({"id": "7", "status": "done", "calls": True}, "calls of a BatchResult is int, not True"),
        ([], "a BatchResult is an object"),
    ],
)
def test_broken_data_names_its_field(plain: dict[str, object], said: str) -> None:
    """Data of a result that can't be one is refused with the name of the field."""
    with pytest.raises(BatchError, match=said):
        BatchResult.from_plain(plain)


IDS = st.text(max_size=80)


@given(IDS, IDS, IDS, IDS)
@example("a", "b.c", "a.b", "c")
@example("a", "Q1", "a", "q1")
@example("a", "x" * 300, "a", "x" * 301)
@example("a", "\ud800", "a", "_")
def test_run_ids_are_valid_and_differ(batch: str, one: str, other_batch: str, other: str) -> None:
    """Every pair of batch and input has a valid run id, also where file names have no case."""
    first, second = run_id_of(batch, one), run_id_of(other_batch, other)
    assert checked_run_id(first) == first
    assert len(first) < 200
    assert first.isascii()
    assert (first.lower() == second.lower()) == ((batch, one) == (other_batch, other))


def test_simple_run_ids_can_be_read() -> None:
    """The id of a run shows batch and input where both are simple."""
    assert run_id_of("nightly", "q-17") == "nightly.q-17"
