"""Halts: a run that is told to stop starts no further attempt, and lets those in flight land."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint.models.halt import HALT, halting
from mergepoint.run.interpret import interpret
from mergepoint.run.recorder import Recorder
from mergepoint.testing.clock import FakeClock
from mergepoint.testing.scripted import ScriptedModel
from mergepoint.tree.block import Block
from mergepoint.tree.policy import Policy
from mergepoint.tree.step import Step


def stopping(answer: Any) -> Any:
    """Give an answer that tells the run to stop while its call is in flight."""

    def made(messages: object) -> Any:
        halt = HALT.get()
        assert halt is not None
        assert halt.stop() is True
        return answer

    return made


def test_a_stopped_run_lands_its_call_and_makes_no_other() -> None:
    """The answer is on record, and the next call is a KeyboardInterrupt that is not."""
    model, recorder = ScriptedModel([stopping("landed"), "never"]), Recorder()
    with halting() as halt, pytest.raises(KeyboardInterrupt):
        interpret(Block([Step("A."), Step("B.")]), model=model, recorder=recorder)
    assert [record.response for record in recorder.journal.records] == ["landed"]
    assert len(model.calls) == 1
    assert halt.stop() is False


def test_a_stopped_run_tries_nothing_again() -> None:
    """A failure while the run stops is on record, and no attempt follows it."""
    model, recorder = ScriptedModel([stopping(ConnectionError("cut")), "never"]), Recorder()
    with halting(), FakeClock() as clock, pytest.raises(KeyboardInterrupt):
        interpret(Step("A.", policy=Policy(retry=3)), model=model, recorder=recorder)
    assert [record.answered for record in recorder.journal.records] == [False]
    assert (len(model.calls), clock.waits) == (1, [])


def test_the_threads_of_siblings_stop_too() -> None:
    """Each lands the call that it is in, however deep, and goes no further."""
    inner = [Block([Step("A."), Step("B.")], name=name) for name in ("x", "y")]
    model = ScriptedModel(by_prompt={"A.": [stopping("a"), "a"]}, default="never")
    recorder = Recorder()
    with halting(), pytest.raises(KeyboardInterrupt):
        interpret(Block(inner, parallel=True), model=model, recorder=recorder)
    assert {record.response for record in recorder.journal.records} == {"a"}


def test_without_a_halt_there_is_none() -> None:
    """Runs outside of `halting` are not held up, those after it neither."""
    with halting() as halt:
        halt.stop()
    assert HALT.get() is None
    assert interpret(Step("A."), model=ScriptedModel(["a"])).messages[-1].text == "a"
