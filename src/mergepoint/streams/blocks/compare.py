"""compare: which of several Things is better, two at a time, or against a reference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from itertools import combinations
from typing import Literal

from pydantic import BaseModel, Field

from mergepoint.streams.asking import Answered, Asking, asked, failing, places
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.decided import decided
from mergepoint.streams.groups import Grouped, groups
from mergepoint.streams.reading import failed, value
from mergepoint.streams.thing import Thing

PROMPT = (
    "Which of the two texts is better? Answer with first or second, and the reason.\n\n"
    "<first>\n{{ first }}\n</first>\n\n<second>\n{{ second }}\n</second>"
)
_FILLED = ("first", "second")


class Compare(Asking, Grouped):
    """Who is compared with whom, and how it is asked."""

    prompt: str = Field(default=PROMPT, description="shows {{ first }} and {{ second }}")
    way: Literal["knockout", "pairs", "reference"] = Field(
        default="knockout",
        description="knockout: the winner of a group, by n - 1 comparisons; pairs: every two, all "
        "come back with their rank; reference: each with a prop",
    )
    reference: str = Field(default="reference", description="for way: reference, the prop")
    swap: bool = Field(
        default=False, description="ask in both orders; where the answers differ nobody wins"
    )


class Preference(BaseModel):
    """Which is better, and why."""

    winner: Literal["first", "second"] = Field(description="first or second")
    reason: str = Field(default="", description="why, in a few words")


@block(
    "compare",
    params=Compare,
    needs=lambda params: [
        *places(params.prompt, params.system, extra=_FILLED),
        *([params.reference] if params.way == "reference" else []),
    ],
    adds=lambda params: {
        "knockout": ["winner", "reason"],
        "pairs": ["wins", "score", "rank"],
        "reference": ["verdict", "reason"],
    }[params.way],
    in_order=True,
)
async def compare(
    items: AsyncIterator[Thing], params: Compare, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Ask a model which of two is better.

    `knockout` gives one Thing a group, with the content of the winner, its id as `winner` and the
    last `reason`: of two where nobody wins the first goes on. `pairs` gives the Things of a group
    back with `wins`, `score` (the share of wins, 0 to 100) and `rank` (from 1). `reference` gives
    each with the `verdict` pass where it is better than the reference, else fail, and the
    `reason`. Pairwise ranking: Qin et al. 2023, https://arxiv.org/abs/2306.17563
    """
    if params.way == "reference":

        async def beside(thing: Thing) -> Thing:
            return thing if failed(thing) else await _against(ctx, thing, params)

        async for judged in ctx.map(items, beside):
            yield judged
    elif params.way == "pairs":
        async with aclosing(groups(items, params.per)) as found:
            async for group in found:
                for ranked in await _ranked(ctx, group.members, params):
                    yield ranked
    else:

        async def won(joined: Thing, members: Sequence[Thing]) -> Thing:
            return await _winner(ctx, joined, members, params)

        async with aclosing(decided(items, params, ctx, won)) as winners:
            async for winner in winners:
                yield winner


async def _preferred(
    ctx: BlockContext, asker: Thing, first: object, second: object, params: Compare
) -> tuple[str, Answered[Preference]]:
    """Give who is better: first, second, or blank for nobody; and the last answer."""
    found = await asked(
        ctx,
        asker,
        params,
        params.prompt,
        schema=Preference,
        extra={"first": first, "second": second},
    )
    if found.value is None or not params.swap:
        return ("" if found.value is None else found.value.winner), found
    back = await asked(
        ctx,
        asker,
        params,
        params.prompt,
        schema=Preference,
        extra={"first": second, "second": first},
    )
    if back.value is None or back.value.winner == found.value.winner:
        return "", back if back.value is None else found
    return found.value.winner, found


async def _winner(
    ctx: BlockContext, joined: Thing, members: Sequence[Thing], params: Compare
) -> Thing:
    """Let neighbours meet, round after round, until one is left."""
    left, reason = list(members), ""
    while len(left) > 1:
        following: list[Thing] = []
        for first, second in zip(left[::2], left[1::2], strict=False):
            better, found = await _preferred(ctx, joined, first.content, second.content, params)
            if found.value is None:
                return failing(joined, found.reason)
            reason = found.value.reason
            following.append(second if better == "second" else first)
        left = following + (left[-1:] if len(left) % 2 else [])
    return joined.plus(winner=left[0].id, reason=reason).redrafted(left[0].content)


async def _ranked(ctx: BlockContext, members: Sequence[Thing], params: Compare) -> Sequence[Thing]:
    """Let every two meet; each is asked for by the first of them."""
    here = [member for member in members if not failed(member)]
    wins = dict.fromkeys((one.id for one in here), 0.0)
    for first, second in combinations(here, 2):
        better, found = await _preferred(ctx, first, first.content, second.content, params)
        if found.value is None:
            return [failing(one, found.reason) for one in here]
        share = {"first": (1.0, 0.0), "second": (0.0, 1.0)}.get(better, (0.5, 0.5))
        wins[first.id] += share[0]
        wins[second.id] += share[1]
    order = sorted(here, key=lambda one: -wins[one.id])
    most = max(1, len(here) - 1)
    told = {
        one.id: one.plus(wins=wins[one.id], score=100 * wins[one.id] / most, rank=rank)
        for rank, one in enumerate(order, 1)
    }
    return [told.get(one.id, one) for one in members]


async def _against(ctx: BlockContext, thing: Thing, params: Compare) -> Thing:
    reference = value(thing, params.reference)
    better, found = await _preferred(ctx, thing, thing.content, reference, params)
    if found.value is None:
        return failing(thing, found.reason)
    verdict = "pass" if better == "first" else "fail"
    return thing.plus(verdict=verdict, reason=found.value.reason)
