"""Blocks of whole recipes under test: few, so that what they mean can be written down twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.registry import PACKAGE, Registry, block
from mergepoint.streams.thing import Thing

REGISTRY = Registry(package=PACKAGE)


class Say(Params):
    """How often a Thing is asked about."""

    times: int = 1


class Number(Params):
    """One number."""

    n: int = 2


@block("say", params=Say, adds=["count"], registry=REGISTRY)
async def say(items: AsyncIterator[Thing], params: Say, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Ask about each Thing; the last answer is its content."""

    async def one(thing: Thing) -> Thing:
        text = str(thing.content)
        for _ in range(params.times):
            text = (await ctx.ask(thing, text)).text
        return thing.redrafted(text).plus(count=thing.props.get("count", 0) + 1)

    async with aclosing(ctx.map(items, one)) as results:
        async for thing in results:
            yield thing


@block("split", params=Number, registry=REGISTRY)
async def split(
    items: AsyncIterator[Thing], params: Number, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Yield each Thing's children, and forget to close the map."""

    async def parts(thing: Thing) -> AsyncIterator[Thing]:
        for number in range(params.n):
            await asyncio.sleep(0)
            yield ctx.child(thing, number).redrafted(f"{thing.content}.{number}")

    async for thing in ctx.map(items, parts):
        yield thing


@block("sift", params=Number, registry=REGISTRY)
async def sift(
    items: AsyncIterator[Thing], params: Number, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Let go of every Thing whose content is of such a length."""
    async for thing in items:
        if len(str(thing.content)) % params.n:
            yield thing


@block("join", params=Number, in_order=True, registry=REGISTRY)
async def join(
    items: AsyncIterator[Thing], params: Number, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Make one Thing of so many neighbours."""
    waiting: list[Thing] = []
    async for thing in items:
        waiting.append(thing)
        if len(waiting) == params.n:
            yield ctx.joined(waiting).redrafted("+".join(str(one.content) for one in waiting))
            waiting = []
    if waiting:
        yield ctx.joined(waiting).redrafted("+".join(str(one.content) for one in waiting))
