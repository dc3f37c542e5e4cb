"""annotate: props that a model extracts from each Thing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import failed
from mergepoint.streams.prompting import PromptParams, asked, failing, places
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

Type = Literal["text", "number", "whole", "flag", "list"]
_TYPES: dict[str, Any] = {
    "text": str,
    "number": float,
    "whole": int,
    "flag": bool,
    "list": list[str],
}


class Annotate(PromptParams):
    """The props to extract, and the prompt."""

    prompt: str = Field(
        default="Read this and fill in what is asked for.\n\n<text>\n{{ content }}\n</text>",
        description="asks for the fields",
    )
    fields: dict[str, Type | list[str]] = Field(
        min_length=1, description="props by name: their type, or the allowed words"
    )


@block(
    "annotate",
    params=Annotate,
    needs=lambda params: places(params.prompt, params.system),
    adds=lambda params: list(params.fields),
)
async def annotate(
    items: AsyncIterator[Thing], params: Annotate, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Extract named props from each Thing with a model.

    If the model doesn't return all of them, the status is `failed`, with the `reason`.
    """
    schema = schema_of(params.fields)

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        found = await asked(ctx, thing, params, params.prompt, schema=schema)
        if found.value is None:
            return failing(thing, found.reason)
        return thing.plus(found.value.model_dump(mode="json"))

    async for made in ctx.map(items, one):
        yield made


def schema_of(fields: dict[str, Any]) -> type[BaseModel]:
    """Return a pydantic model of an answer with these fields."""
    types: dict[str, Any] = {
        name: (Literal[tuple(kind)] if isinstance(kind, list) else _TYPES[kind], ...)
        for name, kind in fields.items()
    }
    # Extra fields are refused: they would become props that no later stage expects.
    return create_model("Fields", __config__=ConfigDict(extra="forbid"), **types)
