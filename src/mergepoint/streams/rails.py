"""Limits of a recipe (its rails), and why one stopped it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from mergepoint.core.errors import BudgetExceeded, RailError
from mergepoint.streams.params import Params, read_knobs
from mergepoint.tree.policy import Budget


class Rails(Params):
    """The limits of a recipe's work; null removes a limit.

    Calls, usd, tokens, and deadline apply to the whole recipe. A call beyond a limit isn't made,
    finished results are still returned, and the prop `stopped` names the limit. The defaults of
    calls and deadlock belong to the run: a nested recipe has only the limits that it sets. Explicit
    limits bound everything nested; a default deadlock yields to a nested one.
    """

    max_iterations: int = Field(
        default=10, ge=1, description="maximum number of rounds of a recurrent recipe per Thing"
    )
    calls: int | None = Field(default=1_000, ge=0, description="maximum number of model calls")
    usd: float | None = Field(default=None, ge=0, description="maximum cost in USD")
    tokens: int | None = Field(
        default=None, ge=0, description="maximum tokens of prompts and answers"
    )
    deadline: float | None = Field(
        default=None, gt=0, description="maximum seconds from the first item (depends on time)"
    )
    patience: int | None = Field(
        default=None, ge=1, description="maximum rounds without a better score or changed props"
    )
    deadlock: float | None = Field(
        default=60.0,
        gt=0,
        description="maximum seconds without progress while no call is in progress",
    )

    @property
    def inside(self) -> Rails:
        """Return the rails as they apply to a nested recipe: without the run's defaults."""
        own = self.model_fields_set
        limits = {name: getattr(self, name) for name in type(self).model_fields}
        limits |= {name: None for name in ("calls", "deadlock") if name not in own}
        # model_construct keeps `model_fields_set`, which tells explicit limits from defaults.
        return self.model_construct(own, **limits)

    @property
    def budget(self) -> Budget | None:
        """Return the limits of calls as a budget, or None if there are none."""
        if self.calls is None and self.usd is None and self.tokens is None:
            return None
        return Budget(self.usd, tokens=self.tokens, calls=self.calls)


def _or_open(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    # Placeholders can't be validated yet; the other fields can.
    if not isinstance(given, Mapping) or not any(read_knobs(given)):
        return check(given)
    check({name: value for name, value in given.items() if not any(read_knobs(value))})
    return given


OpenRails = Annotated[Rails, WrapValidator(_or_open)]
"""Rails, or rails with placeholders, which stay as written."""


DEADLOCK: Final = "deadlock"


class TimeLimitStop(RailError):
    """A time limit that ended a part of a recipe; `rail` is deadline or deadlock."""

    def __init__(self, rail: str, problem: str) -> None:
        super().__init__(problem)
        self.rail = rail

    # The default __reduce__ would call __init__ with the message only.
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rail, str(self)), self.__dict__


@dataclass(frozen=True, slots=True)
class StopReason:
    """The rail that ended a stage, the stage, and the message."""

    rail: str
    stage_id: str
    problem: str

    def __str__(self) -> str:
        return f"{self.rail} at {self.stage_id}: {self.problem}"


class Stops:
    """The stops of one run, in order."""

    def __init__(self) -> None:
        self.all: list[StopReason] = []

    def note(self, stage_id: str, error: RailError) -> None:
        """Record that a rail ended a stage."""
        rail = "rail"
        if isinstance(error, BudgetExceeded):
            rail = error.kind
        elif isinstance(error, TimeLimitStop):
            rail = error.rail
        self.all.append(StopReason(rail, stage_id, str(error)))

    @property
    def reason(self) -> str:
        """Return the rail of the first stop, or "" if nothing was stopped."""
        return self.all[0].rail if self.all else ""
