"""Enough: when a vote is as good as decided, so that no more samples need to be made."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from pydantic import Field, model_validator

from mergepoint.streams.ballot import Ballot, Tally
from mergepoint.streams.groups import Enough
from mergepoint.streams.params import Params
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing


class Stop(Params):
    """When a vote ends before all have voted; exactly one rule."""

    lead: int | None = Field(
        default=None, ge=1, description="the first is so many votes ahead of the next"
    )
    confidence: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="so sure that the first would stay ahead of the next "
        "(adaptive consistency, arXiv 2305.11860)",
    )
    window: int | None = Field(
        default=None,
        ge=2,
        description="a window agrees: the first so many, or the next so many, and on "
        "(early stopping, arXiv 2401.10480)",
    )
    voters: int | None = Field(
        default=None,
        ge=1,
        description="of so many votes in all, those to come cannot change the winner",
    )

    @model_validator(mode="after")
    def _one(self) -> Stop:
        if len(self.model_fields_set) != 1:
            raise ValueError("give exactly one of lead, confidence, window, voters")
        return self


def beta_above_half(first: float, second: float) -> float:
    """Give how probable it is that an answer is the more frequent one of two, by their votes.

    The mass above 1/2 of Beta(first + 1, second + 1): the chance of at most `first` heads in
    `first + second + 1` throws of a coin.
    """
    throws = int(first + second) + 1
    return sum(comb(throws, heads) for heads in range(int(first) + 1)) / float(2**throws)


def enough_of(stop: Stop | None, ballot: Ballot) -> Enough | None:
    """Give the function that says after each member of a group whether the vote can end."""
    return None if stop is None else _Counting(stop, ballot)


class _Counting:
    """Counts as the members come; a first member begins a new group."""

    def __init__(self, stop: Stop, ballot: Ballot) -> None:
        self._stop = stop
        self._ballot = ballot
        self._start()

    def _start(self) -> None:
        self._tally = Tally()
        self._keys: list[str] = []

    def __call__(self, members: Sequence[Thing]) -> bool:
        if len(members) == 1:
            self._start()
        if not failed(members[-1]):
            self._keys.append(self._tally.add(members[-1], self._ballot))
        first, second = self._tally.two_best()
        stop = self._stop
        if stop.lead is not None:
            return first - second >= stop.lead
        if stop.confidence is not None:
            return beta_above_half(first, second) >= stop.confidence
        if stop.window is not None:
            whole = len(self._keys) % stop.window == 0
            return whole and len(set(self._keys[-stop.window :])) == 1
        left = (stop.voters or 0) - len(members)
        return first > second + left
