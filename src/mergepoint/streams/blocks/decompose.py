"""decompose: parts of each Thing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from pydantic import BaseModel, Field

from mergepoint.streams.asking import Asking, asked, failing, places
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.groups import group_marks
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing

PROMPT = (
    "Break the following into at most {{ most }} parts that can be worked on one by one, in the "
    "order in which they should be.\n\n<task>\n{{ content }}\n</task>"
)


class Decompose(Asking):
    """How it is taken apart."""

    prompt: str = Field(default=PROMPT, description="asks for {{ most }} parts at most")
    most: int = Field(default=5, ge=1, description="so many parts at most")
    kind: str = Field(default="step", description="the kind of each part")


class Parts(BaseModel):
    """The parts, in order."""

    parts: list[str] = Field(min_length=1, description="what to do, one by one")


@block(
    "decompose",
    params=Decompose,
    needs=lambda params: places(params.prompt, params.system, extra=["most"]),
    adds=["kind", "question", "rank"],
)
async def decompose(
    items: AsyncIterator[Thing], params: Decompose, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Ask a model for the parts of each Thing; each part is a child, together they are a group.

    Writes `kind`, `question` (the whole) and `rank` (the part's number, from 1). A Thing of which
    a model gives no parts goes on with the status `failed` and the `reason`.
    """

    async def parted(thing: Thing) -> list[Thing]:
        if failed(thing):
            return [thing]
        found = await asked(
            ctx,
            thing,
            params,
            params.prompt,
            schema=Parts,
            extra={"most": params.most},
            check=lambda parts: _too_many(parts, params.most),
        )
        if found.value is None:
            return [failing(thing, found.reason)]
        return _children(thing, found.value.parts, params.kind, ctx)

    async with aclosing(_parts(ctx, items, parted)) as stream:
        async for part in stream:
            yield part


def _too_many(parts: Parts, most: int) -> str | None:
    if any(not part.strip() for part in parts.parts):
        return "a part is blank"
    found = len(parts.parts)
    return None if found <= most else f"{found} parts, at most {most}"


def _children(thing: Thing, parts: list[str], kind: str, ctx: BlockContext) -> list[Thing]:
    marks = group_marks(thing.id, [thing, ctx.child(thing, len(parts) - 1)])
    return [
        ctx.child(thing, number)
        .plus({**marks, "group_size": len(parts)})
        .plus(kind=kind, question=thing.content, rank=number + 1)
        .redrafted(part)
        for number, part in enumerate(parts)
    ]


async def _parts(
    ctx: BlockContext,
    items: AsyncIterator[Thing],
    parted: Callable[[Thing], Awaitable[list[Thing]]],
) -> AsyncGenerator[Thing, None]:
    async for parts in ctx.map(items, parted):
        for part in parts:
            yield part
