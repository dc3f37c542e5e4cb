"""Assertions about the context of calls, by path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mergepoint.core.paths import select
from mergepoint.testing.scripted_model import ScriptedModel, Seen


class Responded(Protocol):
    """A recorded call: its path and its answer."""

    @property
    def path(self) -> str:
        """Return the call's path."""
        ...

    @property
    def response(self) -> str:
        """Return the call's answer."""
        ...


class AnsweredRun(Protocol):
    """A run with its answered calls: a RunContext, or the result of run_generation."""

    @property
    def steps(self) -> Sequence[Responded]:
        """Return the answered calls."""
        ...


def assert_paths(model: ScriptedModel, expected: Sequence[str]) -> None:
    """Assert that the model was called at these paths, in this order."""
    found = [call.path for call in model.calls]
    assert found == list(expected), f"calls were made at {found}, not at {list(expected)}"


def assert_not_in_context(model: ScriptedModel, path: str, *texts: str) -> None:
    """Assert that no call at the selected paths received any of the texts.

    `path` is an exact path, a unique suffix, or a glob.
    """
    for call in _calls(model, path):
        for text in texts:
            place = _place(call, text)
            assert place is None, f"{call.path} was given {text!r} in message {place}"


def assert_isolated(model: ScriptedModel, run: AnsweredRun, path: str) -> None:
    """Assert that none of the selected calls received another one's answer.

    Raise AssertionError too if fewer than two calls are selected: that would prove nothing.
    """
    calls = _calls(model, path)
    paths = {call.path for call in calls}
    assert len(paths) > 1, f"{path!r} selects {len(paths)} path; isolation needs two or more"
    responses = {step.path: step.response for step in run.steps if step.path in paths}
    assert len(responses) > 1, f"{path!r} selects {len(responses)} call that was answered"
    for call in calls:
        for other, response in responses.items():
            place = _place(call, response) if other != call.path else None
            assert place is None, f"{call.path} was given the answer of {other} in message {place}"


def _calls(model: ScriptedModel, selector: str) -> list[Seen]:
    paths = list(dict.fromkeys(call.path for call in model.calls))
    try:
        chosen = set(select(selector, paths))
    except LookupError as error:
        raise AssertionError(f"no call matches: {error}") from error
    return [call for call in model.calls if call.path in chosen]


def _place(call: Seen, text: str) -> int | None:
    for number, message in enumerate(call.messages):
        if text in str(message.text):
            return number
    return None
