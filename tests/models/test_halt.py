"""Halts: a run that is told to stop starts no further attempt, and lets those in flight land."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.interpreter import interpret
from mergepoint.models.timeouts import STOP_SIGNAL, stop_signal
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.simulated_time import FakeClock
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.policy import Policy


def stopping(answer: Any) -> Any:
    """Return an answer that tells the run to stop while its call is in flight."""

    def made(messages: object) -> Any:
        halt = STOP_SIGNAL.get()
        assert halt is not None
        assert halt.stop() is True
        return answer

    return made


def test_a_stopped_run_lands_its_call_and_makes_no_other() -> None:
    """The answer is on record, and the next call is a KeyboardInterrupt that is not."""
    model, recorder = ScriptedModel([stopping("landed"), "never"]), Recorder()
    with stop_signal() as halt, pytest.raises(KeyboardInterrupt):
        interpret(Block([Step("A."), Step("B.")]), model=model, recorder=recorder)
    assert [record.response for record in recorder.journal.records] == ["landed"]
    assert len(model.calls) == 1
    assert halt.stop() is False


def test_a_stopped_run_tries_nothing_again() -> None:
    """A failure while the run stops is on record, and no attempt follows it."""
    model, recorder = ScriptedModel([stopping(ConnectionError("cut")), "never"]), Recorder()
    with stop_signal(), FakeClock() as clock, pytest.raises(KeyboardInterrupt):
        interpret(Step("A.", policy=Policy(retry=3)), model=model, recorder=recorder)
    assert [record.answered for record in recorder.journal.records] == [False]
    assert (len(model.calls), clock.waits) == (1, [])


def test_the_threads_of_siblings_stop_too() -> None:
    """Each lands the call that it is in, however deep, and goes no further."""
    inner = [Block([Step("A."), Step("B.")], name=name) for name in ("x", "y")]
    model = ScriptedModel(by_prompt={"A.": [stopping("a"), "a"]}, default="never")
    recorder = Recorder()
    with stop_signal(), pytest.raises(KeyboardInterrupt):
        interpret(Block(inner, parallel=True), model=model, recorder=recorder)
    assert {record.response for record in recorder.journal.records} == {"a"}


def test_without_a_halt_there_is_none() -> None:
    """Runs outside of `stop_signal` are not held up, those after it neither."""
    with stop_signal() as halt:
        halt.stop()
    assert STOP_SIGNAL.get() is None
    assert interpret(Step("A."), model=ScriptedModel(["a"])).messages[-1].text == "a"
