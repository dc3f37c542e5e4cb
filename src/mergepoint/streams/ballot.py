"""Ballot: what several Things say, counted; which answer leads, and what a tie means."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, model_validator

from mergepoint.streams.block_error import BlockError
from mergepoint.streams.groups import Grouped
from mergepoint.streams.reading import answer_key, canonical, number, value
from mergepoint.streams.thing import Thing

Ties = Literal["first", "random", "best", "undecided"]


class Ballot(Grouped):
    """How votes are counted, and who wins a tie."""

    by: str = Field(default="content", description="the prop that is voted on, or content")
    exact: bool = Field(
        default=False,
        description="tell apart texts that differ in case, spaces, or marks at their ends",
    )
    weight: str | None = Field(default=None, description="a prop with the weight of each vote")
    ties: Ties = Field(
        default="first",
        description="who wins a tie: the answer given first in the order of lineage; a random "
        "one (seeded); the one with the best vote by `best_by`; or nobody",
    )
    best_by: str | None = Field(default=None, description="for ties: best, a prop that is a number")

    @model_validator(mode="after")
    def _best_by(self) -> Ballot:
        if (self.ties == "best") is not (self.best_by is not None):
            raise ValueError("ties: best and best_by go together; give both or neither")
        return self


@dataclass(slots=True)
class Tally:
    """Votes by answer, in the order in which the answers were first given."""

    votes: dict[str, float] = field(default_factory=dict)
    voters: dict[str, list[Thing]] = field(default_factory=dict)

    def add(self, thing: Thing, ballot: Ballot) -> str:
        """Count a vote; give the key of its answer."""
        key = answer_key(thing, ballot.by, exact=ballot.exact)
        weight = 1 if ballot.weight is None else _weight(thing, ballot.weight)
        self.votes[key] = self.votes.get(key, 0) + weight
        self.voters.setdefault(key, []).append(thing)
        return key

    def two_best(self) -> tuple[float, float]:
        """Give the votes of the leading answer and of the next."""
        first, second, *_ = [*sorted(self.votes.values(), reverse=True), 0, 0]
        return first, second


def _weight(thing: Thing, name: str) -> float:
    weight = number(thing, name)
    if weight < 0:
        raise BlockError(f"{name} is {weight:g}; the weight of a vote is 0 or more", item=thing.id)
    return weight


ADDS = ("votes", "agreement", "lead", "tie")


def elected(
    joined: Thing, members: Sequence[Thing], ballot: Ballot, rng: Callable[[], random.Random]
) -> Thing:
    """Give the joined Thing with the count, and the content of the first that gave the winner.

    `rng` is asked for where a tie is drawn by lot. Where nobody wins, the status is `stuck`.
    """
    tally = Tally()
    for member in members:
        tally.add(member, ballot)
    most, second = tally.two_best()
    tied = [key for key, votes in tally.votes.items() if votes == most]
    key = tied[0] if len(tied) == 1 else _tie_won(tied, tally, ballot, rng)
    total = sum(tally.votes.values())
    counted = joined.plus(
        votes={
            _shown(value(tally.voters[key][0], ballot.by)): votes
            for key, votes in tally.votes.items()
        },
        agreement=most / total if total else 0.0,
        lead=most - second,
        tie=len(tied) > 1,
    )
    if key is None:
        return counted.plus(status="stuck", reason="several answers have as many votes")
    return counted.redrafted(tally.voters[key][0].content)


def _tie_won(
    tied: Sequence[str], tally: Tally, ballot: Ballot, rng: Callable[[], random.Random]
) -> str | None:
    best_by = ballot.best_by
    if ballot.ties == "undecided":
        return None
    if ballot.ties == "random":
        return rng().choice(tied)
    if best_by is not None:
        return max(tied, key=lambda key: max(number(one, best_by) for one in tally.voters[key]))
    return tied[0]


def _shown(answer: Any) -> str:
    return answer if isinstance(answer, str) else canonical(answer)
