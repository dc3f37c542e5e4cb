"""generate: sample answers to a prompt."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import failed, pattern
from mergepoint.streams.prompting import (
    ORIGIN,
    PromptParams,
    PromptResult,
    asked,
    failing,
    places,
    written,
)
from mergepoint.streams.provenance import children
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

_EXTRA = ("persona",)


class Generate(PromptParams):
    """The prompt, and the number of samples."""

    prompt: str = Field(
        default="{{ content }}", description="{{ content }} and props are filled in"
    )
    n: int = Field(default=1, ge=1, description="samples per Thing; several samples form a group")
    personas: list[str] = Field(
        default=[], description="roles, one per sample, repeated from the first"
    )
    answer: Annotated[str, AfterValidator(pattern)] | None = Field(
        default=None,
        description="a regular expression; its first group, or its match, becomes the prop answer",
    )


@block(
    "generate",
    params=Generate,
    needs=lambda params: places(params.prompt, params.system, extra=_EXTRA),
    adds=lambda params: [
        "kind",
        "status",
        *ORIGIN,
        *(["sample", "question"] if params.n > 1 else []),
        *(["persona"] if params.personas else []),
        *(["answer"] if params.answer else []),
    ],
    rewrites=True,
)
async def generate(
    items: AsyncIterator[Thing], params: Generate, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Call a model `n` times for each Thing; the answer is the new content.

    A single sample is the Thing with new content. Several samples are its children, which form a
    group; each call is made when its result is needed. Writes the kind `answer`, the status
    `candidate`, the call's origin (`model`, `source`, `cost`, `stage_id`), and for samples `sample`
    (from 0) and `question`; with `personas` the `persona`, with `answer` the `answer`. If the model
    returns no valid answer, the status is `failed`, with the `reason`.
    """

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        voice = {"persona": thing.props.get("persona", "")}
        found: PromptResult[Any] = await asked(
            ctx, thing, params, params.prompt, extra=voice, check=_blank
        )
        if found.answer is None:
            return failing(thing, found.reason)
        made = written(ctx, thing, found.answer, kind="answer", status="candidate")
        return made if params.answer is None else _short(made, params.answer)

    # Closed explicitly: the map may have calls in progress beyond the last result.
    async with aclosing(ctx.map(_wanted(items, params), one)) as results:
        async for made in results:
            yield made


async def _wanted(items: AsyncIterator[Thing], params: Generate) -> AsyncGenerator[Thing, None]:
    """Yield the Things to sample for, each on demand."""
    async for thing in items:
        if params.n == 1 or failed(thing):
            yield thing.plus(persona=params.personas[0]) if params.personas else thing
            continue
        voices = params.personas
        samples: list[dict[str, Any]] = []
        for number in range(params.n):
            voice = {"persona": voices[number % len(voices)]} if voices else {}
            samples.append({"sample": number, "question": thing.content, **voice})
        for sample in children(thing, samples):
            yield sample


def _blank(text: str) -> str | None:
    return None if text.strip() else "it is blank"


def _short(thing: Thing, expression: str) -> Thing:
    found = re.search(expression, str(thing.content))
    if found is None:
        return failing(thing, f"no answer in it that {expression!r} finds")
    return thing.plus(answer=found[1] if found.re.groups else found[0])
