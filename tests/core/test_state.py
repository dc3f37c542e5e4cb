"""State: a monoid of messages and outputs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepoint.core.merge import State

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


lines = st.builds(Line, st.sampled_from(["human", "ai", "system"]))
states = st.builds(
    State.of,
    st.lists(lines, max_size=4),
    st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
)


@UNHURRIED
@given(states, states, states)
def test_plus_is_associative(a: State[Line], b: State[Line], c: State[Line]) -> None:
    """It does not matter which two neighbours are added first."""
    assert (a + b) + c == a + (b + c)


@UNHURRIED
@given(states)
def test_the_empty_state_is_neutral(a: State[Line]) -> None:
    """Adding nothing, on either side, changes nothing."""
    nothing: State[Line] = State()
    assert nothing + a == a == a + nothing


@UNHURRIED
@given(states, states)
def test_the_left_is_a_prefix_of_the_sum(a: State[Line], b: State[Line]) -> None:
    """A sum grows at its end, in messages, and forgets no key."""
    total = a + b
    assert total.messages[: len(a.messages)] == a.messages
    assert total.messages[len(a.messages) :] == b.messages
    assert set(total.outputs) == {*a.outputs, *b.outputs}


@UNHURRIED
@given(states, states)
def test_the_right_wins_where_both_hold_an_output(a: State[Line], b: State[Line]) -> None:
    """The newer value of an output stands, the others stay."""
    assert (a + b).outputs == {**a.outputs, **b.outputs}


@UNHURRIED
@given(states, states)
def test_plus_changes_neither_side(a: State[Line], b: State[Line]) -> None:
    """States are values: a sum is a new one."""
    before = (a.messages, dict(a.outputs), b.messages, dict(b.outputs))
    _ = a + b
    assert (a.messages, dict(a.outputs), b.messages, dict(b.outputs)) == before


def test_outputs_are_sealed() -> None:
    """Nobody can write into the outputs of a state, nor through the mapping it was made of."""
    given_outputs = {"a": 1}
    state: State[Line] = State.of([], given_outputs)
    given_outputs["a"] = 2
    written: Any = state.outputs
    with pytest.raises(TypeError):
        written["a"] = 3
    assert state.outputs == {"a": 1}


def test_the_outputs_of_a_sum_are_sealed() -> None:
    """A sum of two states with outputs is as sealed as they are."""
    written: Any = (State.of([], {"a": 1}) + State.of([], {"b": 2})).outputs
    with pytest.raises(TypeError):
        written["a"] = 3


def test_a_state_is_frozen() -> None:
    """The messages of a state cannot be replaced."""
    state: State[Line] = State.of([Line("human")])
    with pytest.raises(FrozenInstanceError):
        state.messages = (Line("ai"),)  # type: ignore[misc]


def test_a_state_can_be_made_from_its_typed_name() -> None:
    """`State[Line]()` is `State()`, as for any generic class."""
    assert State[Line]().messages == ()


def test_messages_are_taken_out_of_any_iterable() -> None:
    """A state keeps its messages in a tuple of its own."""
    assert State.of(iter([Line("ai")])).messages == (Line("ai"),)
