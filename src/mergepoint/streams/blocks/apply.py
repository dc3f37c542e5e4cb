"""apply: rewrite each Thing by an instruction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import failed
from mergepoint.streams.prompting import (
    ORIGIN,
    PromptParams,
    PromptResult,
    asked,
    failing,
    places,
    written,
)
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

PROMPT = (
    "Revise the following text by the feedback.\n\n"
    "<text>\n{{ content }}\n</text>\n\n<feedback>\n{{ feedback }}\n</feedback>"
)


class Apply(PromptParams):
    """The instruction, and where the answer goes."""

    prompt: str = Field(default=PROMPT, description="what to do; the answer is the new content")
    to: str | None = Field(
        default=None, description="the prop that gets the answer, instead of the content"
    )


@block(
    "apply",
    params=Apply,
    needs=lambda params: places(params.prompt, params.system),
    adds=lambda params: ORIGIN if params.to is None else [params.to],
    rewrites=lambda params: params.to is None,
)
async def apply(
    items: AsyncIterator[Thing], params: Apply, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Rewrite each Thing with a model; the answer is the new content, or a prop.

    By default, a text is revised by the prop `feedback`. With new content, writes the call's origin
    (`model`, `source`, `cost`, `stage_id`). If the model returns nothing, the status is `failed`,
    with the `reason`.
    """

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        found: PromptResult[Any] = await asked(ctx, thing, params, params.prompt)
        if found.answer is None:
            return failing(thing, found.reason)
        if params.to is None:
            return written(ctx, thing, found.answer)
        return thing.plus({params.to: found.answer.text})

    async for made in ctx.map(items, one):
        yield made
