"""Stops: why the work of a recipe ended before its items did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mergepoint.core.errors import BudgetExceeded, RailError


class Stopped(RailError):
    """A rail of time that ended a part of a recipe: `rail` is deadline or deadlock."""

    def __init__(self, rail: str, problem: str) -> None:
        super().__init__(problem)
        self.rail = rail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rail, str(self)), self.__dict__


@dataclass(frozen=True, slots=True)
class Stop:
    """A rail that ended a stage: which, where, and what it said."""

    rail: str
    stage_id: str
    problem: str

    def __str__(self) -> str:
        return f"{self.rail} at {self.stage_id}: {self.problem}"


class Stops:
    """The stops of one run, in the order in which they came."""

    def __init__(self) -> None:
        self.all: list[Stop] = []

    def note(self, stage_id: str, error: RailError) -> None:
        """Take down that a rail ended a stage."""
        rail = "rail"
        if isinstance(error, BudgetExceeded):
            rail = error.kind
        elif isinstance(error, Stopped):
            rail = error.rail
        self.all.append(Stop(rail, stage_id, str(error)))

    @property
    def reason(self) -> str:
        """Give the first, in a word; blank where nothing was stopped."""
        return self.all[0].rail if self.all else ""
