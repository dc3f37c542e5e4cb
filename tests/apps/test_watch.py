"""Watch: sums of calls, times and tokens, from events."""

from __future__ import annotations

import pytest

from mergepoint.apps.cli.watch import Watch
from mergepoint.run.recorder import Event
from mergepoint.tree.block import Block
from mergepoint.tree.step import Step

TREE = Block(
    [
        Step("x", name="draft"),
        Block([Step("x", name="a"), Step("x", name="b")], name="stage"),
        Block([], name="empty"),
    ],
    name="t",
)


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        """Give the time."""
        return self.time


@pytest.fixture
def hands() -> Hands:
    """Give a clock."""
    return Hands()


def test_a_block_sums_up_its_calls(hands: Hands) -> None:
    """Calls, tokens and phases of a block follow from the calls in it."""
    watch = Watch(TREE, clock=hands)
    stage = watch.part("t/stage")
    assert stage is not None
    assert (watch.root.calls, stage.calls, stage.phase) == (3, 2, "waiting")
    watch.note(Event("start", "t/stage/a", model="m"))
    assert (stage.phase, watch.root.phase, stage.parts[0].model) == ("running", "running", "m")
    watch.note(Event("end", "t/stage/a", model="m", tokens=7))
    assert (stage.phase, stage.done, stage.tokens) == ("running", 1, 7)
    watch.note(Event("start", "t/stage/b"))
    watch.note(Event("end", "t/stage/b", tokens=5))
    assert (stage.phase, stage.tokens, watch.root.phase) == ("done", 12, "running")


def test_times_run_from_the_first_start_to_the_last_end(hands: Hands) -> None:
    """A part that runs is timed to now, one that is done to its last end."""
    watch = Watch(TREE, clock=hands)
    stage = watch.part("t/stage")
    assert stage is not None
    assert stage.seconds(9) is None
    hands.time = 1
    watch.note(Event("start", "t/stage/a"))
    watch.note(Event("start", "t/stage/b"))
    assert stage.seconds(4) == 3
    hands.time = 5
    watch.note(Event("end", "t/stage/a"))
    hands.time = 6
    watch.note(Event("end", "t/stage/b"))
    assert stage.seconds(60) == 5
    assert stage.parts[0].seconds(60) == 4


def test_a_failure_is_seen_from_the_call_to_the_root(hands: Hands) -> None:
    """A call that failed marks everything above it, and nothing beside it."""
    watch = Watch(TREE, clock=hands)
    watch.note(Event("start", "t/stage/a"))
    watch.note(Event("error", "t/stage/a"))
    phases = {
        path: part.phase
        for path in ("t", "t/draft", "t/stage/a", "t/stage/b")
        if (part := watch.part(path))
    }
    assert phases == {
        "t": "failed",
        "t/draft": "waiting",
        "t/stage/a": "failed",
        "t/stage/b": "waiting",
    }


def test_a_node_can_fail_without_a_call(hands: Hands) -> None:
    """A prompt that raises has no event; the failure is noted once, by path."""
    watch = Watch(TREE, clock=hands)
    watch.fail("t/stage/b")
    watch.fail("t/stage")
    watch.fail("not/there")
    stage = watch.part("t/stage")
    assert stage is not None
    assert (stage.failed, stage.phase, watch.root.failed) == (1, "failed", 1)


def test_events_of_other_calls_and_tokens_are_passed_over(hands: Hands) -> None:
    """A call that is no step of the tree changes nothing, and neither does a token."""
    watch = Watch(TREE, clock=hands)
    watch.note(Event("start", "elsewhere"))
    watch.note(Event("token", "t/draft", text="x"))
    assert watch.root.phase == "waiting"


def test_a_block_without_calls_is_done(hands: Hands) -> None:
    """There is nothing to wait for in an empty block."""
    empty = Watch(TREE, clock=hands).part("t/empty")
    assert empty is not None
    assert (empty.calls, empty.phase) == (0, "done")


def test_what_is_left_out_has_not_failed(hands: Hands) -> None:
    """A block whose budget is used up is done without the rest, and so is the whole."""
    watch = Watch(TREE, clock=hands)
    stage = watch.part("t/stage")
    assert stage is not None
    for kind in ("start", "end"):
        watch.note(Event(kind, "t/draft"))
    watch.note(Event("start", "t/stage/a"))
    watch.note(Event("left_out", "t/stage/a", text="no budget"))
    assert [part.phase for part in stage.parts] == ["left out", "waiting"]
    assert stage.parts[0].seconds(9) is None
    assert (stage.phase, watch.root.failed, watch.root.left_out) == ("running", 0, 1)
    stage.end()
    watch.end()
    assert (stage.phase, watch.root.phase) == ("done", "done")
