"""decompose: split each Thing into parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from pydantic import BaseModel, Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import failed
from mergepoint.streams.prompting import ORIGIN, PromptParams, asked, failing, origin, places
from mergepoint.streams.provenance import children
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

PROMPT = (
    "Break the following into at most {{ most }} parts that can be worked on one by one, in the "
    "order in which they should be.\n\n<task>\n{{ content }}\n</task>"
)


class Decompose(PromptParams):
    """The prompt, and the number and kind of parts."""

    prompt: str = Field(default=PROMPT, description="asks for {{ most }} parts at most")
    most: int = Field(default=5, ge=1, description="maximum number of parts")
    kind: str = Field(default="sub-problem", description="the kind of each part")


class Parts(BaseModel):
    """The parts, in order."""

    parts: list[str] = Field(min_length=1, description="what to do, one by one")


@block(
    "decompose",
    params=Decompose,
    needs=lambda params: places(params.prompt, params.system, extra=["most"]),
    adds=["kind", "question", "part", *ORIGIN],
    rewrites=True,
)
async def decompose(
    items: AsyncIterator[Thing], params: Decompose, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Split each Thing into parts with a model; the parts are children that form a group.

    Writes `kind`, `question` (the whole), `part` (its number, from 1), and the origin of the call
    that wrote all parts (`model`, `source`, `cost`, `stage_id`). If the model returns no parts, the
    Thing continues with the status `failed` and the `reason`.
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
        if found.value is None or found.answer is None:
            return [failing(thing, found.reason)]
        about = {"kind": params.kind, "question": thing.content, **origin(ctx, found.answer)}
        parts = found.value.parts
        made = children(thing, [{**about, "part": number} for number, _ in enumerate(parts, 1)])
        return [one.redrafted(part) for one, part in zip(made, parts, strict=True)]

    async with aclosing(_parts(ctx, items, parted)) as stream:
        async for part in stream:
            yield part


def _too_many(parts: Parts, most: int) -> str | None:
    if any(not part.strip() for part in parts.parts):
        return "a part is blank"
    found = len(parts.parts)
    return None if found <= most else f"{found} parts, at most {most}"


async def _parts(
    ctx: BlockContext,
    items: AsyncIterator[Thing],
    parted: Callable[[Thing], Awaitable[list[Thing]]],
) -> AsyncGenerator[Thing, None]:
    async for parts in ctx.map(items, parted):
        for part in parts:
            yield part
