"""Policies: what they take, what they refuse, and how they are written."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint.core.errors import TreeError
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.policy import Budget, Policy, Retry
from mergepoint.tree.transform import with_overrides
from mergepoint.tree.tree_yaml import from_yaml, to_yaml


def problems(make: Any) -> list[str]:
    """Return what is wrong."""
    with pytest.raises(TreeError) as caught:
        make()
    return [fault.problem for fault in caught.value.faults]


def test_a_policy_says_nothing_by_default() -> None:
    """One attempt, no limit of time, and every step without one has the same."""
    assert (Policy().retry, Policy().timeout, Policy().budget) == (None, None, None)
    assert Step("x").policy == Policy()


def test_a_number_of_attempts_is_a_retry() -> None:
    """A number or a mapping stands for the Retry that it makes."""
    assert Policy(retry=3).retry == Retry(3)
    assert Policy(retry={"attempts": 2, "wait": 0.5}).retry == Retry(2, wait=0.5)  # type: ignore[arg-type]
    assert Policy(retry=Retry(4)).retry == Retry(4)


def test_a_mapping_is_a_policy_of_a_step() -> None:
    """So text and overrides can give one."""
    step = Step("x", policy={"retry": 2, "timeout": 5})  # type: ignore[arg-type]
    assert step.policy == Policy(retry=2, timeout=5)
    tree = with_overrides(Block([step]), {"step_01": {"policy": {"timeout": 1}}})
    assert isinstance(tree, Block)
    assert isinstance(tree.nodes[0], Step)
    assert tree.nodes[0].policy == Policy(timeout=1)


def test_a_call_has_the_policy_of_a_step() -> None:
    """A mapping stands for one, overrides set it, and what is wrong with it is a fault."""
    call = Call(print, name="f", policy={"retry": 2, "timeout": 5})  # type: ignore[arg-type]
    assert call.policy == Policy(retry=2, timeout=5)
    tree = with_overrides(Block([call]), {"f": {"policy": {"budget": {"calls": 3}}}})
    assert isinstance(tree, Block)
    assert isinstance(tree.nodes[0], Call)
    assert tree.nodes[0].policy == Policy(budget=Budget(calls=3))
    made: Any = Call
    assert problems(lambda: made(print, policy={"retries": 2})) == [
        (
            "policy has no 'retries' (did you mean 'retry'?); its fields are: retry, timeout, "
            "budget, accept_truncated"
        )
    ]
    assert problems(lambda: made(print, policy=3)) == [
        "policy is a Policy or a mapping of its fields, not 3"
    ]


@pytest.mark.parametrize("attempts", [0, -1, True, 1.5, "3", None])
def test_attempts_are_a_whole_number_from_1(attempts: Any) -> None:
    """Anything else is refused, by the Retry and by the policy that makes one of it."""
    assert problems(lambda: Retry(attempts)) == [
        f"attempts is an integer of at least 1, not {attempts!r}"
    ]
    if attempts is not None:
        assert problems(lambda: Policy(retry=attempts)) == [
            f"retry is a Retry or a number of attempts, at least 1, not {attempts!r}"
        ]


@pytest.mark.parametrize("seconds", [0, -1.0, True, "5", float("nan"), float("inf")])
def test_seconds_are_finite_and_above_0(seconds: Any) -> None:
    """A timeout or wait that is no time is refused."""
    said = f"is a number of seconds above 0, not {seconds!r}"
    assert problems(lambda: Policy(timeout=seconds)) == [f"timeout {said}"]
    assert problems(lambda: Retry(wait=seconds)) == [f"wait {said}"]
    assert problems(lambda: Retry(longest=seconds)) == [f"longest {said}"]


def test_the_longest_wait_is_not_shorter_than_the_first() -> None:
    """Two numbers that contradict each other are refused."""
    assert problems(lambda: Retry(wait=5, longest=2)) == ["longest is at least wait (5 s), not 2"]


def test_all_faults_of_a_policy_come_at_once() -> None:
    """Those of the step stand beside them."""
    assert problems(
        lambda: Step("", policy={"retry": {"attempts": 0, "wiat": 2}, "timeout": -1})  # type: ignore[arg-type]
    ) == [
        "the prompt is blank; to send it, set allow_empty_prompt=True",
        "retry has no 'wiat' (did you mean 'wait'?); its fields are: attempts, wait, longest",
        "attempts is an integer of at least 1, not 0",
        "timeout is a number of seconds above 0, not -1",
    ]
    assert problems(lambda: Step("x", policy=3)) == [  # type: ignore[arg-type]
        "policy is a Policy or a mapping of its fields, not 3"
    ]
    assert problems(lambda: Step("x", policy={"retires": 3})) == [  # type: ignore[arg-type]
        (
            "policy has no 'retires' (did you mean 'retry'?); its fields are: retry, timeout, "
            "budget, accept_truncated"
        )
    ]


TEXT = """\
nodes:
  - prompt: One.
    policy:
      retry: 3
      timeout: 30
  - prompt: Two.
    policy:
      retry:
        attempts: 5
        wait: 0.5
  - prompt: Three.
"""


def test_a_policy_is_read_and_written_as_yaml() -> None:
    """Fields with their default are left out, and the number of attempts stands for a Retry."""
    tree = Block(
        [
            Step("One.", policy=Policy(retry=3, timeout=30)),
            Step("Two.", policy=Policy(retry=Retry(5, wait=0.5))),
            Step("Three."),
        ]
    )
    assert to_yaml(tree) == TEXT
    assert from_yaml(TEXT) == tree


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("3", ["f.yaml:3: policy is a mapping, not 3"]),
        (
            "{tries: 3}",
            [
                (
                    "f.yaml:3: no key 'tries' here; the keys are: retry, timeout, "
                    "accept_truncated, budget"
                )
            ],
        ),
        (
            "\n    retry: 0\n    timeout: soon",
            [
                "f.yaml:4: retry is a Retry or a number of attempts, at least 1, not 0",
                "f.yaml:5: timeout is a number of seconds above 0, not 'soon'",
            ],
        ),
        (
            "\n    retry:\n      attempts: 2\n      wiat: 1",
            [
                (
                    "f.yaml:6: no key 'wiat' here (did you mean 'wait'?); the keys are: attempts, "
                    "wait, longest"
                )
            ],
        ),
        (
            "\n    retry: {wait: 0}",
            ["f.yaml:4: wait is a number of seconds above 0, not 0"],
        ),
    ],
)
def test_a_fault_of_a_policy_has_its_line(policy: str, expected: list[str]) -> None:
    """Each is named where it stands, and once."""
    text = f"nodes:\n- prompt: x\n  policy: {policy}\n"
    assert problems(lambda: from_yaml(text, source="f.yaml")) == expected
