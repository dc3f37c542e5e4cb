"""Ranking: Things by a number, the best first."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from mergepoint.streams.params import Params
from mergepoint.streams.reading import failed, number
from mergepoint.streams.thing import Thing


class Ranking(Params):
    """Which number decides, and which way."""

    by: str = Field(default="score", description="a prop that is a number")
    lowest: bool = Field(default=False, description="the lower the better")


def strength(thing: Thing, ranking: Ranking) -> float:
    """Give the number by which a Thing is ranked, higher is better. Raises BlockError for none."""
    found = number(thing, ranking.by)
    return -found if ranking.lowest else found


def ranked(things: Iterable[Thing], ranking: Ranking) -> list[Thing]:
    """Give Things best first, without those that failed; equal ones stay in their order.

    Raises BlockError for a missing number.
    """
    able = (thing for thing in things if not failed(thing))
    return sorted(able, key=lambda thing: -strength(thing, ranking))
