"""What nodes made and kept, from an outline and the answers."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.report.views import NodeResults

STEP: dict[str, Any] = {"path": "p/s", "kind": "step", "merge": "none"}
INSIDE = ("p/l/iteration_01", "p/l/iteration_01/s")


def body(loop: str) -> dict[str, Any]:
    """Return the outline of a loop's body."""
    path = f"{loop}/iteration_01"
    step = {**STEP, "path": f"{path}/s"}
    return {"path": path, "kind": "block", "merge": "all_messages", "nodes": [step]}


def answer(path: str) -> CallRecord:
    """Return the record of an answered call."""
    return CallRecord(key=CallKey("r1", "", path), prompt="Go.", response="Done.")


@pytest.mark.parametrize("about", [{"merge": "last_response"}, {"capture_key": "k"}])
def test_a_node_that_has_no_response_to_give_was_not_left(about: dict[str, Any]) -> None:
    """As in a run, an exit that asks for a response that nobody made is not passed."""
    tree = {"path": "p", "kind": "block", "merge": "all_messages", "nodes": [STEP], **about}
    work = NodeResults.of(tree, [answer("p/s")])
    assert set(work.made) == {"p/s"}
    assert work.response("p") is None
    assert work.answerer("p") is None
    assert work.kept_by("p", "r1/p/s/1") is None
    assert work.kept_by("p/s", "r1/p/s/1") is False


def test_a_part_that_ran_alone_ends_at_its_own_root() -> None:
    """Paths above the root of what ran are no exits of the run."""
    tree = {"path": "whole/p", "kind": "block", "merge": "all_messages", "nodes": []}
    work = NodeResults.of({**tree, "nodes": [{**STEP, "path": "whole/p/s"}]}, [answer("whole/p/s")])
    assert work.way_up("whole/p/s") == ["whole/p/s", "whole/p"]


def test_what_failed_at_its_own_exit_was_not_left() -> None:
    """A loop that never held made no exit, and none around it did, though all calls answered."""
    loop = {"path": "p/l", "kind": "loop", "merge": "all_messages", "nodes": [body("p/l")]}
    tree = {"path": "p", "kind": "block", "merge": "all_messages", "nodes": [loop]}
    records = [answer("p/l/iteration_01/s")]
    assert set(NodeResults.of(tree, records).kept) == {"p", "p/l", *INSIDE}
    assert set(NodeResults.of(tree, records, failed_at="p/l").kept) == set(INSIDE)
