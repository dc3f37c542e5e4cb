"""Budget: what the calls of a run or of a node may use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal, get_args

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.path import nearest

OnExhausted = Literal["raise", "keep"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used: USD, tokens, calls, seconds; None means no limit of that kind.

    Tokens are those of prompts and answers together, seconds those of wall time. With
    `on_exhausted="raise"` a call that no longer fits raises BudgetExceeded; with `"keep"` it goes
    on as if the remaining children were not there.

    Raises TreeError (a ValueError) that lists everything that is wrong with it.
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
    """Give a budget, from one or from the mapping of its fields; None stays None.

    Raises TreeError that lists everything that is wrong with it.
    """
    if given is None or isinstance(given, Budget):
        return given
    if not isinstance(given, Mapping):
        raise TreeError.of(f"budget is a Budget or a mapping of its fields, not {given!r}")
    faults = [
        Fault(
            "", f"a budget has no {key!r}{nearest(str(key), LIMITS)}; there are: {_listed(LIMITS)}"
        )
        for key in given
        if key not in LIMITS
    ]
    try:
        budget = Budget(**{key: value for key, value in given.items() if key in LIMITS})
    except TreeError as error:
        raise TreeError([*faults, *error.faults]) from None
    if faults:
        raise TreeError(faults)
    return budget


def budget_of(given: Any) -> tuple[Any, list[str]]:
    """Give the budget that a field holds, and what is wrong with it."""
    try:
        return as_budget(given), []
    except TreeError as error:
        return given, [fault.problem for fault in error.faults]


LIMITS = tuple(known.name for known in fields(Budget))


def _limit_problem(name: str, given: Any, *, whole: bool) -> str | None:
    if given is None:
        return None
    kinds = int if whole else int | float
    number = isinstance(given, kinds) and not isinstance(given, bool)
    if number and math.isfinite(given) and given >= 0:
        return None
    wanted = "a whole number" if whole else "a finite number"
    return f"budget: {name} is {wanted} from 0 on, not {given!r}"


def _exhausted_problem(given: object) -> str | None:
    allowed = get_args(OnExhausted)
    if given in allowed:
        return None
    near = nearest(str(given), allowed)
    return f"budget: on_exhausted={given!r}{near}; allowed are {_listed(map(repr, allowed))}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
