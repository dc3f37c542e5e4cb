"""Blocks of all manners, for the tests of stages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.registry import BlockFunction, BlockType
from mergepoint.streams.thing import Thing

Each = Callable[[Thing, BlockContext], Any]


def each(make: Each, *, name: str = "odd") -> BlockType[Params]:
    """Return the block that yields what a function makes of each item; of a list, each of it."""

    async def function(
        items: AsyncIterator[Thing], params: Params, ctx: BlockContext
    ) -> AsyncIterator[Thing]:
        """Yield what was made."""
        async for thing in items:
            made = make(thing, ctx)
            for one in made if isinstance(made, list) else [made]:
                yield one

    return typed(function, name=name)


def mapping(make: Callable[[Thing, BlockContext], Any], *, name: str = "odd") -> BlockType[Params]:
    """Return the block that yields what an async function makes of each item, several at once."""

    async def function(
        items: AsyncIterator[Thing], params: Params, ctx: BlockContext
    ) -> AsyncIterator[Thing]:
        """Yield what was made, and forget to close the map."""

        async def one(thing: Thing) -> Thing:
            made: Thing = await make(thing, ctx)
            return made

        async for thing in ctx.map(items, one):
            yield thing

    return typed(function, name=name)


def typed(function: BlockFunction[Params], *, name: str = "odd") -> BlockType[Params]:
    """Return the type of a block without params."""
    return BlockType(name, function, params=Params)


async def careless(
    items: AsyncIterator[Thing], params: Params, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Take one item, and neither close the rest nor mind being closed."""
    yield await anext(items)


async def endless(
    items: AsyncIterator[Thing], params: Params, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Wait for what never comes."""
    await asyncio.Event().wait()
    yield await anext(items)
