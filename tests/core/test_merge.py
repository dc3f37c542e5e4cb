"""The merge: what each mode lets out of what a node made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepoint.core.errors import MergeError
from mergepoint.core.merge import (
    MERGE_MODES,
    NO_RESPONSE,
    MergeMode,
    State,
    keep,
    last_response,
    merge,
    mode_problem,
)

# How long an example takes says nothing about the law that it is an example of.
UNHURRIED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Line:
    """The least a message can be."""

    type: str
    text: str


Q, A, Q2, A2 = Line("human", "q"), Line("ai", "a"), Line("human", "q2"), Line("ai", "a2")
MADE = State.of([Q, A, Q2, A2, Q], {"k": 1})

lines = st.builds(Line, st.sampled_from(["human", "ai", "system"]), st.text(max_size=3))
states = st.builds(
    State.of,
    st.lists(lines, max_size=4),
    st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
)


def test_modes_are_these_three() -> None:
    """The allowed modes are fixed."""
    assert MERGE_MODES == ("all_messages", "last_response", "none")


@pytest.mark.parametrize("mode", MERGE_MODES)
def test_allowed_modes_have_no_problem(mode: str) -> None:
    """Each allowed mode passes."""
    assert mode_problem(mode, "step") is None


@pytest.mark.parametrize("mode", ["all", "", "NONE", None, True, ["none"]])
def test_other_modes_are_refused_with_the_allowed_ones(mode: object) -> None:
    """What is no mode is shown beside those that are allowed."""
    problem = mode_problem(mode, "step")
    assert problem is not None
    assert repr(mode) in problem
    assert "'all_messages', 'last_response', 'none'" in problem


def test_all_messages_keeps_what_was_made() -> None:
    """A fast-forward lets everything out."""
    assert keep("all_messages", MADE) is MADE


def test_last_response_keeps_the_last_assistant_message() -> None:
    """A squash lets one assistant message out, also when another message came after it."""
    assert keep("last_response", MADE) == State.of([A2], {"k": 1})


def test_none_keeps_no_message() -> None:
    """A dropped branch lets no message out."""
    assert keep("none", MADE).messages == ()


@pytest.mark.parametrize("mode", MERGE_MODES)
def test_outputs_survive_every_mode(mode: MergeMode) -> None:
    """Modes govern messages; what was captured stays."""
    assert keep(mode, MADE).outputs == {"k": 1}


def test_last_response_without_assistant_message_is_an_error() -> None:
    """A squash of nothing is not silently empty."""
    with pytest.raises(MergeError, match=f"^{NO_RESPONSE}$"):
        keep("last_response", State.of([Q]))


def test_no_response_has_the_agreed_words() -> None:
    """The text of the error is part of the contract."""
    assert NO_RESPONSE == "last_response requested but no assistant output exists"


def test_last_response_of_no_messages_is_none() -> None:
    """Where nothing was said there is no last response."""
    assert last_response([]) is None


@UNHURRIED
@given(states, states, st.sampled_from(MERGE_MODES))
def test_the_old_parent_is_a_prefix_of_the_new(
    parent: State[Line], made: State[Line], mode: Any
) -> None:
    """A merge appends: it never takes out, changes or moves what was there."""
    made = made + State.of([A])
    merged = merge(parent, mode, made)
    assert merged.messages[: len(parent.messages)] == parent.messages
    assert merged == parent + keep(mode, made)
