"""apply: work on each Thing by an instruction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field

from mergepoint.streams.asking import Answered, Asking, asked, failing, places
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing

PROMPT = (
    "Revise the following text by the feedback.\n\n"
    "<text>\n{{ content }}\n</text>\n\n<feedback>\n{{ feedback }}\n</feedback>"
)


class Apply(Asking):
    """What is to be done with it."""

    prompt: str = Field(default=PROMPT, description="what to do; the answer is the new content")
    to: str | None = Field(
        default=None, description="a prop that gets the answer, in place of the content"
    )


@block(
    "apply",
    params=Apply,
    needs=lambda params: places(params.prompt, params.system),
    adds=lambda params: [] if params.to is None else [params.to],
)
async def apply(
    items: AsyncIterator[Thing], params: Apply, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Ask a model to work on each Thing; what it answers is the new content, or a prop.

    By default a text is revised by the prop `feedback`. Where a model answers nothing, the status
    is `failed`, with the `reason`.
    """

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        found: Answered[Any] = await asked(ctx, thing, params, params.prompt)
        if found.answer is None:
            return failing(thing, found.reason)
        text = found.answer.text
        return thing.redrafted(text) if params.to is None else thing.plus({params.to: text})

    async for made in ctx.map(items, one):
        yield made
