"""vote: elect the most frequent answer; with counting, early stopping, and rankings."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from math import comb
from typing import Any, Literal

from pydantic import Field, model_validator

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, answer_key, canonical, failed, number, value
from mergepoint.streams.grouping import Enough, Grouped, decided
from mergepoint.streams.params import Params
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

Ties = Literal["first", "random", "best", "undecided"]


class Ballot(Grouped):
    """The prop that is voted on, the weights, and the rule for ties."""

    by: str = Field(default="content", description="the prop that is voted on, or content")
    exact: bool = Field(
        default=False,
        description="distinguish strings that differ only in case, spaces, or end punctuation",
    )
    weight: str | None = Field(default=None, description="a prop with the weight of each vote")
    ties: Ties = Field(
        default="first",
        description="winner of a tie: the first answer in lineage order; a random "
        "answer (seeded); the answer with the best vote by `best_by`; or none",
    )
    best_by: str | None = Field(default=None, description="for ties: best, a numeric prop")

    @model_validator(mode="after")
    def _best_by(self) -> Ballot:
        if (self.ties == "best") is not (self.best_by is not None):
            raise ValueError("ties: best and best_by belong together; set both or neither")
        return self


@dataclass(slots=True)
class Tally:
    """Votes by answer, in the order in which the answers first occurred."""

    votes: dict[str, float] = field(default_factory=dict)
    voters: dict[str, list[Thing]] = field(default_factory=dict)

    def add(self, thing: Thing, ballot: Ballot) -> str:
        """Count a vote, and return the key of its answer."""
        key = answer_key(thing, ballot.by, exact=ballot.exact)
        weight = 1 if ballot.weight is None else _weight(thing, ballot.weight)
        self.votes[key] = self.votes.get(key, 0) + weight
        self.voters.setdefault(key, []).append(thing)
        return key

    def two_best(self) -> tuple[float, float]:
        """Return the votes of the leading answer and of the next."""
        first, second, *_ = [*sorted(self.votes.values(), reverse=True), 0, 0]
        return first, second


def _weight(thing: Thing, name: str) -> float:
    weight = number(thing, name)
    if weight < 0:
        raise BlockError(
            f"{name} is {weight:g}; the weight of a vote must be at least 0", item=thing.id
        )
    return weight


ADDS = ("votes", "agreement", "lead", "tie")


def elected(
    joined: Thing, members: Sequence[Thing], ballot: Ballot, rng: Callable[[], random.Random]
) -> Thing:
    """Return the joined Thing with the vote count and the winner's content.

    The content is that of the first member with the winning answer. `rng` is called only for a
    random tie break. Without a winner, the status is `stuck`.
    """
    tally = Tally()
    for member in members:
        tally.add(member, ballot)
    most, second = tally.two_best()
    tied = [key for key, votes in tally.votes.items() if votes == most]
    # rng is a function, so that runs without a tie draw no random numbers.
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
        return counted.plus(status="stuck", reason="several answers have equally many votes")
    winner = tally.voters[key][0]
    return counted.redrafted(winner.content).taken_from([winner], CONTENT)


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


class EarlyStop(Params):
    """When a vote ends before all members have voted; exactly one rule."""

    lead: int | None = Field(
        default=None, ge=1, description="end when the leader is this many votes ahead"
    )
    confidence: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="end at this probability that the leader stays ahead "
        "(adaptive consistency, arXiv 2305.11860)",
    )
    window: int | None = Field(
        default=None,
        ge=2,
        description="end when all votes of a window of this size agree "
        "(early stopping, arXiv 2401.10480)",
    )
    voters: int | None = Field(
        default=None,
        ge=1,
        description="end when the remaining votes, of this total, can't change the winner",
    )

    @model_validator(mode="after")
    def _one(self) -> EarlyStop:
        if len(self.model_fields_set) != 1:
            raise ValueError("set exactly one of lead, confidence, window, voters")
        return self


def beta_above_half(first: float, second: float) -> float:
    """Return the probability that the first of two answers is the more frequent one.

    This is the mass above 1/2 of Beta(first + 1, second + 1): the chance of at most `first` heads
    in `first + second + 1` throws of a fair coin.
    """
    throws = int(first + second) + 1
    return sum(comb(throws, heads) for heads in range(int(first) + 1)) / float(2**throws)


def enough_of(stop: EarlyStop | None, ballot: Ballot) -> Enough | None:
    """Return a function that tells after each member of a group whether the vote can end."""
    return None if stop is None else _Counting(stop, ballot)


class _Counting:
    """Counter of one group's votes; a first member starts a new group."""

    def __init__(self, stop: EarlyStop, ballot: Ballot) -> None:
        self._stop = stop
        self._ballot = ballot
        self._start()

    def _start(self) -> None:
        self._tally = Tally()
        self._keys: list[str] = []

    def __call__(self, members: Sequence[Thing]) -> bool:
        # One counter serves all groups of a stage: they arrive one after the other.
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
            # Windows follow one another, as in the paper; sliding ones would end votes earlier.
            whole = len(self._keys) % stop.window == 0
            return whole and len(set(self._keys[-stop.window :])) == 1
        # Failed members count here: they have had their turn and won't vote later.
        left = (stop.voters or 0) - len(members)
        return first > second + left


class Ranking(Params):
    """The number by which Things are ranked."""

    by: str = Field(default="score", description="a numeric prop")
    lowest: bool = Field(default=False, description="whether lower is better")


def strength(thing: Thing, ranking: Ranking) -> float:
    """Return the number by which a Thing is ranked, higher is better.

    Raise BlockError if it is missing.
    """
    found = number(thing, ranking.by)
    return -found if ranking.lowest else found


def ranked(things: Iterable[Thing], ranking: Ranking) -> list[Thing]:
    """Return Things best first, without failed ones; ties keep their order.

    Raise BlockError for a missing number.
    """
    able = [thing for thing in things if not failed(thing)]
    return sorted(able, key=lambda thing: -strength(thing, ranking))


class Vote(Ballot):
    """The vote count, the rule for ties, and when to stop early."""

    stop: EarlyStop | None = Field(default=None, description="rule for ending the vote early")

    @model_validator(mode="after")
    def _whole_votes(self) -> Vote:
        if self.stop is not None and self.weight is not None:
            raise ValueError("stop counts votes without weights; remove weight or stop")
        return self


@block(
    "vote",
    params=Vote,
    needs=lambda params: [
        name for name in (params.by, params.weight, params.best_by) if name not in (None, CONTENT)
    ],
    adds=ADDS,
    rewrites=True,
    in_order=True,
)
async def vote(
    items: AsyncIterator[Thing], params: Vote, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Elect the most frequent answer of each group: one Thing with the winner's content.

    Votes are counted in lineage order, without failed Things. With `stop`, only as many items are
    pulled as the decision needs, so the other calls are never made. Writes `votes` (by answer),
    `agreement` (the winner's share, 0 to 1), `lead` (votes ahead of the next), and `tie`; without a
    winner, the status `stuck` and the `reason`. Self-consistency: Wang et al. 2022,
    https://arxiv.org/abs/2203.11171
    """

    async def made(joined: Thing, members: Sequence[Thing]) -> Thing:
        return elected(joined, members, params, lambda: ctx.rng(joined))

    enough = enough_of(params.stop, params)
    async with aclosing(decided(items, params, ctx, made, enough=enough)) as winners:
        async for winner in winners:
            yield winner
