"""Policy: how a call is made: how often it is tried, how long it may take, what it may use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.path import nearest
from mergepoint.tree.budget import Budget, budget_of


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call is tried, and how long it waits between two attempts.

    `attempts` counts the first one. Between attempts it waits `wait` seconds, doubled each time,
    at most `longest`, with up to as much again at random (full jitter would starve short waits);
    where the provider says Retry-After, that long.

    Raises TreeError that lists everything that is wrong with it.
    """

    attempts: int = 3
    _: KW_ONLY
    wait: float = 1.0
    longest: float = 60.0

    def __post_init__(self) -> None:
        problems = [
            _attempts_problem(self.attempts),
            _seconds_problem("wait", self.wait),
            _seconds_problem("longest", self.longest),
        ]
        if not any(problems) and self.longest < self.wait:
            problems.append(f"longest is at least wait ({self.wait:g} s), not {self.longest:g}")
        _refuse(problem for problem in problems if problem)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a step's or a Call's call is made. `timeout` is in seconds, for each attempt.

    `retry=3` means `Retry(3)`, and None one attempt. A Call's holds for its function as a whole;
    each call of a model inside, of those that `ctx.model()` gives, is tried as often.

    Raises TreeError that lists everything that is wrong with it.
    """

    _: KW_ONLY
    retry: Retry | int | None = None
    timeout: float | None = None
    budget: Budget | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        retry, problems = _retry_of(self.retry)
        if self.timeout is not None and (problem := _seconds_problem("timeout", self.timeout)):
            problems.append(problem)
        budget, bad = budget_of(self.budget)
        _refuse([*problems, *bad])
        object.__setattr__(self, "retry", retry)
        object.__setattr__(self, "budget", budget)


def policy_of(given: object) -> tuple[Any, list[str]]:
    """Give the policy that a field holds, a mapping as one, and what is wrong with it."""
    if isinstance(given, Policy):
        return given, []
    if isinstance(given, Mapping):
        return _made(Policy, given, "policy")
    return given, [f"policy is a Policy or a mapping of its fields, not {given!r}"]


def _retry_of(given: Any) -> tuple[Any, list[str]]:
    if given is None or isinstance(given, Retry):
        return given, []
    if isinstance(given, Mapping):
        return _made(Retry, given, "retry")
    try:
        return Retry(given), []
    except TreeError:
        return given, [f"retry is a Retry or a number of attempts from 1 on, not {given!r}"]


def _made(kind: type[Any], given: Mapping[Any, Any], name: str) -> tuple[Any, list[str]]:
    known = [field.name for field in dataclasses.fields(kind)]
    problems = [
        f"{name} has no {key!r}{nearest(str(key), known)}; there are: {', '.join(known)}"
        for key in given
        if key not in known
    ]
    try:
        made = kind(**{key: value for key, value in given.items() if key in known})
    except TreeError as error:
        return given, [*problems, *(fault.problem for fault in error.faults)]
    return (given if problems else made), problems


def _refuse(problems: Any) -> None:
    if faults := [Fault("", problem) for problem in problems]:
        raise TreeError(faults)


def _attempts_problem(attempts: object) -> str | None:
    if isinstance(attempts, int) and not isinstance(attempts, bool) and attempts >= 1:
        return None
    return f"attempts is a whole number from 1 on, not {attempts!r}"


def _seconds_problem(name: str, seconds: object) -> str | None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if is_number and math.isfinite(seconds) and seconds > 0:  # type: ignore[arg-type,operator]
        return None
    return f"{name} is a number of seconds above 0, not {seconds!r}"
