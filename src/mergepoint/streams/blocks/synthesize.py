"""synthesize: combine several Things into one.

A strategy is a params class with the literal `strategy`, and a function in STRATEGIES under that
class: `async def strategy(joined, members, params, ctx)`, which returns the joined Thing with
content. Strategies that call a model do so on behalf of the joined Thing: `ctx.ask(joined, ...)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.blocks.vote import ADDS, Ballot, Ranking, elected, ranked
from mergepoint.streams.conditions import CONTENT, canonical
from mergepoint.streams.grouping import Grouped, decided
from mergepoint.streams.params import Params
from mergepoint.streams.prompting import ORIGIN, Choose, Combine, choose, combine, places
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Collecting(Params):
    """Props that are collected from all members."""

    collect: list[str] = Field(
        default=[],
        description="props to collect from the members, each as one list of distinct values",
    )


class TopK(Collecting, Grouped, Ranking):
    """The content of the best member, or a list of the k best contents, best first."""

    strategy: Literal["top_k"]
    k: int = Field(
        default=1,
        ge=1,
        description="number of contents; with 1, the content is that of the best itself",
    )


class Majority(Collecting, Ballot):
    """The most frequent answer, counted as in vote."""

    strategy: Literal["majority"]


class Concat(Collecting, Grouped):
    """All contents as one text, in lineage order or by a number; other values become JSON."""

    strategy: Literal["concat"]
    separator: str = Field(default="\n\n", description="text between two contents")
    order_by: str | None = Field(default=None, description="a numeric prop, lowest first")


Strategy = Callable[[Thing, Sequence[Thing], Any, BlockContext], Awaitable[Thing]]


class Combined(Collecting, Combine):
    """A new text that a model writes from all members."""


class ChosenOne(Collecting, Choose):
    """The content of the member that a model chooses (universal self-consistency)."""


Chosen = Annotated[TopK | Majority | Concat | Combined | ChosenOne, Field(discriminator="strategy")]


class Synthesize(RootModel[Chosen]):
    """A strategy and its params."""


async def top_k(joined: Thing, members: Sequence[Thing], params: TopK, ctx: BlockContext) -> Thing:
    """Return the best contents, and record the winner."""
    best = ranked(members, params)[: params.k]
    contents = [one.content for one in best]
    first = best[0]
    named = {"winner": first.id, params.by: first.props[params.by]}
    taken = joined.redrafted(contents[0] if params.k == 1 else contents, **named)
    return taken.taken_from([first], params.by).taken_from(best, CONTENT)


async def majority(
    joined: Thing, members: Sequence[Thing], params: Majority, ctx: BlockContext
) -> Thing:
    """Return the most frequent answer."""
    return elected(joined, members, params, lambda: ctx.rng(joined))


async def concat(
    joined: Thing, members: Sequence[Thing], params: Concat, ctx: BlockContext
) -> Thing:
    """Return all contents as one text."""
    ordered = list(members)
    if params.order_by is not None:
        ordered = ranked(members, Ranking(by=params.order_by, lowest=True))
    texts = [
        one.content if isinstance(one.content, str) else canonical(one.content) for one in ordered
    ]
    return joined.redrafted(params.separator.join(texts)).taken_from(ordered, CONTENT)


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
        case Concat():
            return ["strategy"]
        case Combine():
            return ["strategy", *ORIGIN]
        case Choose():
            return ["strategy", "winner", "choice", "reason"]


def _collected(members: Sequence[Thing], name: str) -> list[Any]:
    """Return the distinct values of a prop, including those in lists, in member order.

    A source that was found twice counts once, regardless of its scores: they belong to different
    queries.
    """
    found: dict[str, Any] = {}
    for member in members:
        given = member.props.get(name)
        values = given if isinstance(given, list) else [] if given is None else [given]
        for one in values:
            # Compare sources without their scores.
            known = {**one, "score": None} if isinstance(one, Mapping) else one
            found.setdefault(canonical(known), one)
    return list(found.values())


@block("synthesize", params=Synthesize, needs=_needs, adds=_adds, rewrites=True, in_order=True)
async def synthesize(
    items: AsyncIterator[Thing], params: Synthesize, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Combine each group into one Thing by a strategy.

    Strategies without a model: `top_k` (the best, or a list of the best; writes `winner`, the id of
    the best, and its number), `majority` (as in vote; writes `votes`, `agreement`, `lead`, and
    `tie`), and `concat` (one text of all). Strategies with a model: `combine` (a new text from all;
    writes the call's origin: `model`, `source`, `cost`, `stage_id`) and `choose` (the member that
    the model chooses; writes `winner`, `choice`, its number, and `reason`; Chen et al. 2023,
    https://arxiv.org/abs/2311.17311). All write `strategy`. Failed members are skipped; if all
    failed, the result has the status `failed`, with the `reason`. The props in `collect`, such as
    `sources`, become lists of all members' values.
    """
    chosen = params.root
    strategy = STRATEGIES[type(chosen)]

    async def made(joined: Thing, members: Sequence[Thing]) -> Thing:
        collected = {name: _collected(members, name) for name in chosen.collect}
        named = joined.plus(collected, strategy=chosen.strategy).taken_from(members, *collected)
        return await strategy(named, members, chosen, ctx)

    async with aclosing(decided(items, chosen, ctx, made)) as syntheses:
        async for synthesis in syntheses:
            yield synthesis
