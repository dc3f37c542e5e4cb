"""Progress: sums of calls, times and tokens, from events."""

from __future__ import annotations

import pytest

from mergepoint.apps.cli.progress import Progress, recorded_progress
from mergepoint.engine.callbacks import Event
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block

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
        """Return the time."""
        return self.time


@pytest.fixture
def hands() -> Hands:
    """Return a clock."""
    return Hands()


def test_a_block_sums_up_its_calls(hands: Hands) -> None:
    """Calls, tokens and phases of a block follow from the calls in it."""
    watch = Progress(TREE, clock=hands)
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
    watch = Progress(TREE, clock=hands)
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
    watch = Progress(TREE, clock=hands)
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
    watch = Progress(TREE, clock=hands)
    watch.fail("t/stage/b")
    watch.fail("t/stage")
    watch.fail("not/there")
    stage = watch.part("t/stage")
    assert stage is not None
    assert (stage.failed, stage.phase, watch.root.failed) == (1, "failed", 1)


def test_events_of_other_calls_and_tokens_are_passed_over(hands: Hands) -> None:
    """A call that is no step of the tree changes nothing, and neither does a token."""
    watch = Progress(TREE, clock=hands)
    watch.note(Event("start", "elsewhere"))
    watch.note(Event("token", "t/draft", text="x"))
    assert watch.root.phase == "waiting"


def test_a_block_without_calls_is_done(hands: Hands) -> None:
    """There is nothing to wait for in an empty block."""
    empty = Progress(TREE, clock=hands).part("t/empty")
    assert empty is not None
    assert (empty.calls, empty.phase) == (0, "done")


def test_what_is_left_out_has_not_failed(hands: Hands) -> None:
    """A block whose budget is used up is done without the rest, and so is the whole."""
    watch = Progress(TREE, clock=hands)
    stage = watch.part("t/stage")
    assert stage is not None
    for kind in ("start", "end"):
        watch.note(Event(kind, "t/draft"))
    watch.note(Event("start", "t/stage/a"))
    watch.note(Event("left_out", "t/stage/a", text="no budget"))
    assert [part.phase for part in stage.parts] == ["skipped", "waiting"]
    assert stage.parts[0].seconds(9) is None
    assert (stage.phase, watch.root.failed, watch.root.left_out) == ("running", 0, 1)
    stage.end()
    watch.end()
    assert (stage.phase, watch.root.phase) == ("done", "done")


def test_tokens_that_are_streamed_count_until_their_answer_has_ended(hands: Hands) -> None:
    """Pieces are counted up to the root, and replaced by the tokens of the answer."""
    watch = Progress(TREE, clock=hands)
    draft = watch.part("t/draft")
    assert draft is not None
    watch.note(Event("start", "t/draft"))
    for _ in range(3):
        watch.note(Event("token", "t/draft", text="word "))
    assert (draft.streamed, watch.root.streamed, watch.root.tokens) == (3, 3, 0)
    watch.note(Event("retry", "t/draft"))
    assert (draft.streamed, draft.phase) == (0, "waiting")
    watch.note(Event("start", "t/draft"))
    watch.note(Event("token", "t/draft", text="word"))
    watch.note(Event("end", "t/draft", tokens=9))
    assert (draft.streamed, watch.root.streamed, watch.root.tokens) == (0, 0, 9)


def test_a_stopped_call_has_not_failed(hands: Hands) -> None:
    """A call that was interrupted is stopped, and so are those that run when the run stops."""
    watch = Progress(TREE, clock=hands)
    watch.note(Event("start", "t/draft"))
    watch.note(Event("stopped", "t/draft"))
    watch.note(Event("start", "t/stage/a"))
    watch.stop()
    phases = [part.phase for part in (watch.root, *watch.root.parts)]
    assert phases == ["stopped", "stopped", "stopped", "done"]
    assert (watch.root.failed, watch.root.running, watch.root.stopped) == (0, 0, 2)


def record(path: str, at: float, *, error: str = "", attempt: int = 1) -> CallRecord:
    """Return the record of a call that took a second."""
    return CallRecord(
        key=CallKey("r", "", path),
        prompt="x",
        response="" if error else "y",
        started=at,
        ended=at + 1,
        attempt=attempt,
        error={"type": error, "message": "broken"} if error else None,
    )


def test_a_recorded_run_looks_as_it_did_live() -> None:
    """Answers, failures, interrupts and times of parts come back from the records alone."""
    records = [
        record("t/draft", 5, error="APIError"),
        record("t/draft", 7, attempt=2),
        record("t/stage/a", 8, error="APIError"),
        record("t/stage/b", 8, error="KeyboardInterrupt"),
    ]
    watch = recorded_progress(TREE, records, open_gates=(), over=False)
    a, b = watch.root.parts[1].parts
    assert [part.phase for part in (watch.root.parts[0], a, b)] == ["done", "failed", "stopped"]
    assert watch.root.parts[0].seconds(99) == 1
