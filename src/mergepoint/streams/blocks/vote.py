"""vote: elect the most frequent answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from pydantic import Field, model_validator

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT
from mergepoint.streams.grouping import decided
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing
from mergepoint.streams.vote_counting import ADDS, Ballot, EarlyStop, elected, enough_of


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
