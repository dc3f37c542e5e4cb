"""Limits of nodes: retries, timeouts and budgets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Final, Literal, cast, get_args

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.paths import nearest

OnExhausted = Literal["raise", "keep"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on usage in USD, tokens, calls or seconds; None means no limit of that kind.

    Tokens count prompts and answers together; seconds are wall time.

    Args:
        usd: The maximum cost.
        tokens: The maximum number of tokens.
        calls: The maximum number of calls.
        seconds: The maximum time.
        on_exhausted: With "raise", a call that would exceed the limit raises BudgetExceeded. With
            "keep", the node skips its remaining children and keeps its result so far.

    Raises:
        TreeError: A limit is invalid; the error (a ValueError) lists all problems.
    """

    usd: float | None = None
    _: KW_ONLY
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None
    on_exhausted: OnExhausted = "raise"

    def __post_init__(self) -> None:
        problems = [
            _limit_problem("usd", self.usd, whole=False),
            _limit_problem("tokens", self.tokens, whole=True),
            _limit_problem("calls", self.calls, whole=True),
            _limit_problem("seconds", self.seconds, whole=False),
            _exhausted_problem(self.on_exhausted),
        ]
        if found := [problem for problem in problems if problem]:
            raise TreeError(Fault("", problem) for problem in found)


def as_budget(given: Any) -> Budget | None:
    """Return a budget from a Budget or a mapping of its fields; None stays None.

    Raises TreeError that lists all problems.
    """
    if given is None or isinstance(given, Budget):
        return given
    if not isinstance(given, Mapping):
        raise TreeError.of(f"budget is a Budget or a mapping of its fields, not {given!r}")
    budget, problems = _made(Budget, given, "a budget")
    _refuse(problems)
    return cast("Budget", budget)


def budget_of(given: Any) -> tuple[Any, list[str]]:
    """Return the budget of a field, and its problems."""
    try:
        return as_budget(given), []
    except TreeError as error:
        return given, [fault.problem for fault in error.faults]


LIMITS = tuple(known.name for known in fields(Budget))


def _limit_problem(name: str, given: Any, *, whole: bool) -> str | None:
    if given is None:
        return None
    kinds = int if whole else int | float
    # A bool is an int in Python: `calls: true` would be a budget of one call.
    number = isinstance(given, kinds) and not isinstance(given, bool)
    if number and math.isfinite(given) and given >= 0:
        return None
    wanted = "an integer" if whole else "a finite number"
    return f"budget: {name} is {wanted} of at least 0, not {given!r}"


def _exhausted_problem(given: object) -> str | None:
    allowed = get_args(OnExhausted)
    if given in allowed:
        return None
    near = nearest(str(given), allowed)
    return f"budget: on_exhausted={given!r}{near}; allowed are {', '.join(map(repr, allowed))}"


DEFAULT_TIMEOUT: Final = 600.0
"""The timeout, in seconds, of an attempt of a model call if none is set."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The number of attempts of a call, and the wait between two attempts.

    `attempts` includes the first one. Between attempts it waits `wait` seconds, doubled each time,
    at most `longest`, plus up to as much again at random (full jitter would starve short waits).
    If the provider sends Retry-After, it waits that long.

    Raises TreeError that lists everything that is wrong with it.
    """

    attempts: int = 3
    _: KW_ONLY
    wait: float = 1.0
    longest: float = 60.0

    def __post_init__(self) -> None:
        problems = [
            _attempts_problem(self.attempts),
            seconds_problem("wait", self.wait),
            seconds_problem("longest", self.longest),
        ]
        # Compared only if both are numbers.
        if not any(problems) and self.longest < self.wait:
            problems.append(f"longest is at least wait ({self.wait:g} s), not {self.longest:g}")
        _refuse(problem for problem in problems if problem)


@dataclass(frozen=True, slots=True)
class Policy:
    """Retries, timeout and budget of the call of a Step or a Call.

    Args:
        retry: A Retry, or the number of attempts; None means one attempt. For a Call, it applies to
            the function as a whole, and to each call of a model from `ctx.model()`.
        timeout: Seconds for each attempt. A step without one has that of its run, or
            DEFAULT_TIMEOUT. A Call's function has none by default, and its model calls have that
            of a step.
        budget: A Budget, or a mapping of its fields.
        accept_truncated: Use an answer that a token limit or a content filter cut off, and mark it
            as truncated in the record. By default, it is an error.

    Raises:
        TreeError: The policy is invalid; the error lists all problems.
    """

    _: KW_ONLY
    retry: Retry | int | None = None
    timeout: float | None = None
    budget: Budget | Mapping[str, Any] | None = None
    accept_truncated: bool = False

    def __post_init__(self) -> None:
        retry, problems = _retry_of(self.retry)
        if self.timeout is not None and (problem := seconds_problem("timeout", self.timeout)):
            problems.append(problem)
        accept: object = self.accept_truncated
        if not isinstance(accept, bool):
            problems.append(f"accept_truncated is true or false, not {accept!r}")
        budget, bad = budget_of(self.budget)
        _refuse([*problems, *bad])
        object.__setattr__(self, "retry", retry)
        object.__setattr__(self, "budget", budget)


def policy_of(given: object) -> tuple[Any, list[str]]:
    """Return the policy of a field, also from a mapping, and its problems."""
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
        return given, [f"retry is a Retry or a number of attempts, at least 1, not {given!r}"]


def _made(kind: type[Any], given: Mapping[Any, Any], name: str) -> tuple[Any, list[str]]:
    known = [field.name for field in dataclasses.fields(kind)]
    problems = [
        f"{name} has no {key!r}{nearest(str(key), known)}; its fields are: {', '.join(known)}"
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
    return f"attempts is an integer of at least 1, not {attempts!r}"


def seconds_problem(name: str, seconds: object) -> str | None:
    """Return the problem of a number of seconds, or None."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if is_number and math.isfinite(seconds) and seconds > 0:  # type: ignore[arg-type,operator]
        return None
    return f"{name} is a number of seconds above 0, not {seconds!r}"
