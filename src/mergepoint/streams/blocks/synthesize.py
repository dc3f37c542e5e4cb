"""synthesize: several Things made one.

A strategy is a class of params with the literal `strategy`, and a function in STRATEGIES under
that class: `async def strategy(joined, members, params, ctx)`, which gives the joined Thing with a
content. One that asks a model asks it for the joined Thing: `ctx.ask(joined, ...)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from mergepoint.streams.asked_strategies import Choose, Combine, choose, combine
from mergepoint.streams.asking import places
from mergepoint.streams.ballot import ADDS, Ballot, elected
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.decided import decided
from mergepoint.streams.groups import Grouped
from mergepoint.streams.params import Params
from mergepoint.streams.ranking import Ranking, ranked
from mergepoint.streams.reading import CONTENT, canonical
from mergepoint.streams.thing import Thing


class Collecting(Params):
    """What is taken over from all members."""

    collect: list[str] = Field(
        default=[],
        description="props of the members that are kept as one list each, every value once",
    )


class TopK(Collecting, Grouped, Ranking):
    """The content of the best, or the contents of the k best, best first."""

    strategy: Literal["top_k"]
    k: int = Field(
        default=1, ge=1, description="how many; with 1 the content is that of the best itself"
    )


class Majority(Collecting, Ballot):
    """The answer that most give, as vote counts it."""

    strategy: Literal["majority"]


class Concat(Collecting, Grouped):
    """All contents as one text, in the order of lineage or of a number; no text is JSON."""

    strategy: Literal["concat"]
    separator: str = Field(default="\n\n", description="what stands between two")
    order_by: str | None = Field(
        default=None, description="a prop that is a number, the lowest first"
    )


Strategy = Callable[[Thing, Sequence[Thing], Any, BlockContext], Awaitable[Thing]]


class Combined(Collecting, Combine):
    """A new text that a model writes of all."""


class ChosenOne(Collecting, Choose):
    """The content of the one that a model chooses (universal self-consistency)."""


Chosen = Annotated[TopK | Majority | Concat | Combined | ChosenOne, Field(discriminator="strategy")]


class Synthesize(RootModel[Chosen]):
    """A strategy and what belongs to it."""


async def top_k(joined: Thing, members: Sequence[Thing], params: TopK, ctx: BlockContext) -> Thing:
    """Take the best, and note which they are."""
    best = ranked(members, params)[: params.k]
    contents = [one.content for one in best]
    first = best[0]
    named = joined.plus({"winner": first.id, params.by: first.props[params.by]})
    return named.redrafted(contents[0] if params.k == 1 else contents)


async def majority(
    joined: Thing, members: Sequence[Thing], params: Majority, ctx: BlockContext
) -> Thing:
    """Take the answer that most give."""
    return elected(joined, members, params, lambda: ctx.rng(joined))


async def concat(
    joined: Thing, members: Sequence[Thing], params: Concat, ctx: BlockContext
) -> Thing:
    """Put all contents one after the other."""
    ordered = list(members)
    if params.order_by is not None:
        ordered = ranked(members, Ranking(by=params.order_by, lowest=True))
    texts = [
        one.content if isinstance(one.content, str) else canonical(one.content) for one in ordered
    ]
    return joined.redrafted(params.separator.join(texts))


STRATEGIES: Mapping[type[Any], Strategy] = {
    TopK: top_k,
    Majority: majority,
    Concat: concat,
    Combined: combine,
    ChosenOne: choose,
}


def _needs(params: Synthesize) -> list[str]:
    return [*_read(params), *params.root.collect]


def _read(params: Synthesize) -> list[str]:
    match params.root:
        case TopK(by=by):
            return [by]
        case Majority(by=by, weight=weight, best_by=best_by):
            return [name for name in (by, weight, best_by) if name not in (None, CONTENT)]
        case Concat(order_by=order_by):
            return [] if order_by is None else [order_by]
        case Combine(prompt=prompt, system=system) | Choose(prompt=prompt, system=system):
            return places(prompt, system, extra=["listed", "count"])


def _adds(params: Synthesize) -> list[str]:
    return [*_written(params), *params.root.collect]


def _written(params: Synthesize) -> list[str]:
    match params.root:
        case TopK(by=by):
            return ["strategy", "winner", by]
        case Majority():
            return ["strategy", *ADDS]
        case Concat() | Combine():
            return ["strategy"]
        case Choose():
            return ["strategy", "winner", "choice", "reason"]


def _collected(members: Sequence[Thing], name: str) -> list[Any]:
    """Give the values of a prop, and those in its lists, in the order of members, each once.

    A source that was found twice is one, whatever its scores: they are those of two questions.
    """
    found: dict[str, Any] = {}
    for member in members:
        given = member.props.get(name)
        values = given if isinstance(given, list) else [] if given is None else [given]
        for one in values:
            known = {**one, "score": None} if isinstance(one, Mapping) else one
            found.setdefault(canonical(known), one)
    return list(found.values())


@block("synthesize", params=Synthesize, needs=_needs, adds=_adds, in_order=True)
async def synthesize(
    items: AsyncIterator[Thing], params: Synthesize, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Make one Thing of each group, by a strategy.

    Strategies: `top_k` (the best, or a list of the best; writes `winner`, the id of the best, and
    its number), `majority` (as vote does; writes `votes`, `agreement`, `lead` and `tie`) and
    `concat` (one text of all); and two that ask a model: `combine` (one text written of all) and
    `choose` (the one that it chooses; writes `winner`, `choice`, its number, and `reason`; Chen et
    al. 2023, https://arxiv.org/abs/2311.17311). All write `strategy`. Members that failed are left
    out; where all did, the Thing gets the status `failed` and the `reason`. Props that `collect`
    names, such as `sources`, are lists of what all members had.
    """
    chosen = params.root
    strategy = STRATEGIES[type(chosen)]

    async def made(joined: Thing, members: Sequence[Thing]) -> Thing:
        collected = {name: _collected(members, name) for name in chosen.collect}
        named = joined.plus(collected, strategy=chosen.strategy)
        return await strategy(named, members, chosen, ctx)

    async with aclosing(decided(items, chosen, ctx, made)) as syntheses:
        async for synthesis in syntheses:
            yield synthesis
