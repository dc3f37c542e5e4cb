"""compare: judge Things in pairs, or against a reference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from itertools import combinations
from typing import Literal

from pydantic import BaseModel, Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, failed, value
from mergepoint.streams.grouping import Grouped, decided, groups
from mergepoint.streams.prompting import PromptParams, PromptResult, asked, failing, places
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

PROMPT = (
    "Which of the two texts is better? Answer with first or second, and the reason.\n\n"
    "<first>\n{{ first }}\n</first>\n\n<second>\n{{ second }}\n</second>"
)
_FILLED = ("first", "second")


class Compare(PromptParams, Grouped):
    """The pairs that are compared, and the prompt."""

    prompt: str = Field(default=PROMPT, description="shows {{ first }} and {{ second }}")
    way: Literal["knockout", "pairs", "reference"] = Field(
        default="knockout",
        description="knockout: the winner of a group, by n - 1 comparisons; pairs: all Things with "
        "their rank, by comparing every pair; reference: each compared with a prop",
    )
    reference: str = Field(default="reference", description="for way: reference, the prop")
    swap: bool = Field(
        default=False, description="compare in both orders; if the answers differ, neither wins"
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
        "reference": ["preferred", "reason"],
    }[params.way],
    rewrites=lambda params: params.way == "knockout",
    in_order=True,
)
async def compare(
    items: AsyncIterator[Thing], params: Compare, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Judge with a model which of two texts is better.

    `knockout` returns one Thing per group, with the content of the winner, its id as `winner`, and
    the last `reason`; if neither of two wins, the first continues. `pairs` returns the Things of a
    group with `wins`, `score` (the share of wins, 0 to 100), and `rank` (from 1). `reference`
    returns each Thing with `preferred`, whether it is better than the reference, and the `reason`.
    Pairwise ranking: Qin et al. 2023, https://arxiv.org/abs/2306.17563
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
    ctx: BlockContext, client: Thing, first: object, second: object, params: Compare
) -> tuple[str, PromptResult[Preference]]:
    """Return which is better ("first", "second", or "" for neither), and the last answer."""
    found = await asked(
        ctx,
        client,
        params,
        params.prompt,
        schema=Preference,
        extra={"first": first, "second": second},
    )
    if found.value is None or not params.swap:
        return ("" if found.value is None else found.value.winner), found
    back = await asked(
        ctx,
        client,
        params,
        params.prompt,
        schema=Preference,
        extra={"first": second, "second": first},
    )
    # The same position won in both orders: the model prefers the position, not the text.
    if back.value is None or back.value.winner == found.value.winner:
        return "", back if back.value is None else found
    return found.value.winner, found


async def _winner(
    ctx: BlockContext, joined: Thing, members: Sequence[Thing], params: Compare
) -> Thing:
    """Return the winner of a knockout tournament of neighbors."""
    left, reason = list(members), ""
    while len(left) > 1:
        following: list[Thing] = []
        for first, second in zip(left[::2], left[1::2], strict=False):
            better, found = await _preferred(ctx, joined, first.content, second.content, params)
            if found.value is None:
                return failing(joined, found.reason)
            reason = found.value.reason
            # Without a preference, the first continues: a round must always halve the field.
            following.append(second if better == "second" else first)
        left = following + (left[-1:] if len(left) % 2 else [])
    told = joined.plus(winner=left[0].id, reason=reason).redrafted(left[0].content)
    return told.taken_from(left[:1], CONTENT)


async def _ranked(ctx: BlockContext, members: Sequence[Thing], params: Compare) -> Sequence[Thing]:
    """Return the members with their wins over all others; the first of a pair makes the call."""
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
    return thing.plus(preferred=better == "first", reason=found.value.reason)
