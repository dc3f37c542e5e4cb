"""Random recipes of plain blocks, to check laws on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from pydantic import Field

from mergepoint.aio.stream import from_iterable
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.registry import Registry, block
from mergepoint.streams.stage_run import entered, run_stage
from mergepoint.streams.thing import Thing
from mergepoint.testing.simulated_time import SimulatedLoop

# How long an example takes says nothing about the law that it is an example of.
UNHURRIED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

NAMES = ("a", "b", "c")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3)
    ),
    max_leaves=8,
)
props = st.dictionaries(st.sampled_from(NAMES), json_values, max_size=3)


class Work(Params):
    """What a stage does to its items."""

    verb: Literal["grow", "split", "join", "pass", "drop"]
    props: dict[str, Any] = Field(default_factory=dict)
    content: Any = None
    number: int = 1
    slow: int = 0


RANDOM = Registry()


@block("work", params=Work, registry=RANDOM)
async def work(
    items: AsyncIterator[Thing], params: Work, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Do what the params say, each item after some time that its id decides."""

    async def one(thing: Thing) -> list[Thing]:
        await asyncio.sleep(ctx.rng(thing).randrange(params.slow + 1))
        return made(thing, params, ctx)

    waiting: list[Thing] = []
    async with aclosing(ctx.map(items, one)) as results:
        async for things in results:
            for thing in things:
                if params.verb != "join":
                    yield thing
                    continue
                waiting.append(thing)
                if len(waiting) == params.number:
                    yield ctx.joined(waiting).plus(params.props).redrafted(params.content)
                    waiting = []


def made(thing: Thing, params: Work, ctx: BlockContext) -> list[Thing]:
    """Return what the stage makes of one item."""
    match params.verb:
        case "grow":
            return [thing.plus(params.props).redrafted([params.content, thing.id])]
        case "split":
            return [
                ctx.child(thing, number).plus(params.props).redrafted(number)
                for number in range(params.number)
            ]
        case "drop":
            return [] if ctx.rng(thing).random() < 0.3 else [thing]
        case _:
            return [thing]


works = st.builds(
    Work,
    verb=st.sampled_from(["grow", "split", "join", "pass", "drop"]),
    props=props,
    content=json_values,
    number=st.integers(1, 3),
    slow=st.integers(0, 4),
)
recipes = st.lists(works, max_size=5)
inputs = st.lists(st.builds(Thing, json_values, props), max_size=4)


def run(
    things: Sequence[Thing], recipe: Sequence[Work], *, width: int = 1, schedule: int = 0
) -> list[list[Thing]]:
    """Return what leaves each stage of a recipe, one stage after the other; the input first.

    `schedule` decides which of the tasks that could go on does.
    """
    streams = [list(entered(things))]
    for number, params in enumerate(recipe):
        ctx = BlockContext(f"stage_{number}", width=width)
        through = partial(_through, streams[-1], params, ctx)
        streams.append(SimulatedLoop(seed=schedule).run(through))
    return streams


def run_lazily(
    things: Sequence[Thing], recipe: Sequence[Work], *, width: int, schedule: int, wanted: int
) -> list[Thing]:
    """Return the first Things that leave a recipe whose stages run at once, pulled by the last."""

    async def pulled() -> list[Thing]:
        stream: Any = from_iterable(list(entered(things)))
        for number, params in enumerate(recipe):
            ctx = BlockContext(f"stage_{number}", width=width)
            stream = run_stage(work, stream, params, ctx)
        found: list[Thing] = []
        async with aclosing(stream):
            while len(found) < wanted and (thing := await anext(stream, None)) is not None:
                found.append(thing)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return SimulatedLoop(seed=schedule).run(pulled)


def everything(things: Sequence[Thing], recipe: Sequence[Work]) -> list[Thing]:
    """Return what leaves all stages of a recipe."""
    return [thing for stream in run(things, recipe) for thing in stream]


async def _through(things: Sequence[Thing], params: Work, ctx: BlockContext) -> list[Thing]:
    async with aclosing(run_stage(work, from_iterable(things), params, ctx)) as stage:
        return [thing async for thing in stage]
