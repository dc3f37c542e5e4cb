"""vote: the answer that most give."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from pydantic import Field, model_validator

from mergepoint.streams.ballot import ADDS, Ballot, elected
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.decided import decided
from mergepoint.streams.enough import Stop, enough_of
from mergepoint.streams.reading import CONTENT
from mergepoint.streams.thing import Thing


class Vote(Ballot):
    """How votes are counted, who wins a tie, and when enough have voted."""

    stop: Stop | None = Field(default=None, description="end the vote before all have voted")

    @model_validator(mode="after")
    def _whole_votes(self) -> Vote:
        if self.stop is not None and self.weight is not None:
            raise ValueError("stop counts whole votes; take out weight or stop")
        return self


@block(
    "vote",
    params=Vote,
    needs=lambda params: [
        name for name in (params.by, params.weight, params.best_by) if name not in (None, CONTENT)
    ],
    adds=ADDS,
    in_order=True,
)
async def vote(
    items: AsyncIterator[Thing], params: Vote, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Make one Thing of each group: the content of the first Thing with the winning answer.

    Votes are counted in the order of lineage, without Things that failed. With `stop` no more
    items are pulled than it takes, so calls that would make them are never made. Writes `votes`
    (by answer), `agreement` (the winner's share, 0 to 1), `lead` (votes ahead of the next) and
    `tie`; where nobody wins a tie, the status `stuck` and the `reason`. Self-consistency: Wang et
    al. 2022, https://arxiv.org/abs/2203.11171
    """

    async def made(joined: Thing, members: Sequence[Thing]) -> Thing:
        return elected(joined, members, params, lambda: ctx.rng(joined))

    enough = enough_of(params.stop, params)
    async with aclosing(decided(items, params, ctx, made, enough=enough)) as winners:
        async for winner in winners:
            yield winner
