"""Evidence about calls, and the fixtures that give it to users' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.testing import scripted_model
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block


@dataclass(frozen=True)
class Ran:
    """A run and the model that it asked."""

    model: ScriptedModel
    ctx: RunContext


@dataclass
class Told:
    """Steps by hand."""

    steps: Sequence[Any] = field(default_factory=tuple)


@pytest.fixture
def ran() -> Ran:
    """Return a run of two voices side by side and an end that sees both."""
    voices = [Step("As one.", name="one"), Step("As two.", name="two")]
    tree = Block([Block(voices, name="threads", parallel=True), Step("Agree.", name="end")])
    model = ScriptedModel(
        by_path={
            "pipeline/threads/one": "the first voice",
            "pipeline/threads/two": "the second voice",
            "pipeline/end": "agreed",
        }
    )
    return Ran(model, ChatRunner(model, form="fused").run(RunContext(), tree))


def test_assert_isolated_passes_for_siblings(
    ran: Ran, assert_isolated: Callable[..., None]
) -> None:
    """Siblings of a parallel block did not see each other."""
    assert_isolated(ran.model, ran.ctx, "**/threads/*")


def test_assert_isolated_fails_where_one_saw_another(
    ran: Ran, assert_isolated: Callable[..., None]
) -> None:
    """The end was given what the voices said, and the message says which and where."""
    with pytest.raises(
        AssertionError,
        match="pipeline/end was given the answer of pipeline/threads/one in message 1",
    ):
        assert_isolated(ran.model, ran.ctx, "**")


def test_assert_isolated_needs_two_calls(ran: Ran, assert_isolated: Callable[..., None]) -> None:
    """One call alone proves nothing."""
    with pytest.raises(AssertionError, match="selects 1 path; isolation needs two or more"):
        assert_isolated(ran.model, ran.ctx, "pipeline/end")


def test_assert_isolated_needs_calls_that_answered(
    ran: Ran, assert_isolated: Callable[..., None]
) -> None:
    """Where the run knows no answers there is nothing that could have been seen."""
    with pytest.raises(AssertionError):
        assert_isolated(ran.model, Told(), "**/threads/*")


def test_assert_not_in_context_passes_for_what_was_not_given(
    ran: Ran, assert_not_in_context: Callable[..., None]
) -> None:
    """A text that no selected call was given is not there."""
    assert_not_in_context(ran.model, "threads/two", "the first voice", "As one.")


def test_assert_not_in_context_fails_with_the_place(
    ran: Ran, assert_not_in_context: Callable[..., None]
) -> None:
    """A text that was given is named with its path and message."""
    with pytest.raises(AssertionError, match="pipeline/end was given 'second' in message 3"):
        assert_not_in_context(ran.model, "end", "absent", "second")


def test_a_selector_that_fits_no_call_fails(
    ran: Ran, assert_not_in_context: Callable[..., None]
) -> None:
    """An assertion about calls that were never made is no proof."""
    with pytest.raises(AssertionError, match="no call matches: no path matches 'threds/one'"):
        assert_not_in_context(ran.model, "threds/one", "x")


def test_assert_paths_passes_for_the_calls_in_order(assert_paths: Callable[..., None]) -> None:
    """The paths of all calls, in the order of their start."""
    model = ScriptedModel(default="x")
    ChatRunner(model).run(RunContext(), Block([Step("A."), Step("B.", name="b")]))
    assert_paths(model, ["pipeline/step_01", "pipeline/b"])


@pytest.mark.parametrize("expected", [[], ["pipeline/b", "pipeline/step_01"], ["pipeline/step_01"]])
def test_assert_paths_fails_for_other_paths(
    expected: list[str], assert_paths: Callable[..., None]
) -> None:
    """Calls that are missing, too many or in another order are shown."""
    model = ScriptedModel(default="x")
    ChatRunner(model).run(RunContext(), Block([Step("A."), Step("B.", name="b")]))
    with pytest.raises(AssertionError, match=r"calls were made at .*pipeline/b"):
        assert_paths(model, expected)


def test_fixtures_are_the_functions_of_the_package(
    assert_paths: object, assert_isolated: object, assert_not_in_context: object
) -> None:
    """Who does not use pytest's fixtures imports the same functions."""
    assert (assert_paths, assert_isolated, assert_not_in_context) == (
        scripted_model.assert_paths,
        scripted_model.assert_isolated,
        scripted_model.assert_not_in_context,
    )
