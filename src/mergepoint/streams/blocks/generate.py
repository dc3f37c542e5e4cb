"""generate: samples of what answers a prompt."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from mergepoint.streams.asking import Answered, Asking, asked, failing, places
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.groups import group_marks
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing
from mergepoint.streams.where import pattern

_EXTRA = ("persona",)


class Generate(Asking):
    """What is asked, and how often."""

    prompt: str = Field(
        default="{{ content }}", description="{{ content }} and props are filled in"
    )
    n: int = Field(default=1, ge=1, description="samples of each Thing; with more than 1 a group")
    personas: list[str] = Field(
        default=[], description="voices, one for each sample, from the first on again"
    )
    answer: Annotated[str, AfterValidator(pattern)] | None = Field(
        default=None,
        description="a regular expression; its first group, else all of it, is the prop answer",
    )


@block(
    "generate",
    params=Generate,
    needs=lambda params: places(params.prompt, params.system, extra=_EXTRA),
    adds=lambda params: [
        "kind",
        "status",
        *(["sample", "question"] if params.n > 1 else []),
        *(["persona"] if params.personas else []),
        *(["answer"] if params.answer else []),
    ],
)
async def generate(
    items: AsyncIterator[Thing], params: Generate, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Ask a model, `n` times for each Thing; what it answers is the new content.

    One sample is the Thing with a new draft, several are its children: a group, each asked for
    when it is wanted. Writes the kind `answer`, the status `candidate`, and for samples `sample`
    (from 0) and `question`; with `personas` the `persona`, with `answer` the `answer`. Where a
    model answers nothing that fits, the status is `failed`, with the `reason`.
    """

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        voice = {"persona": thing.props.get("persona", "")}
        found: Answered[Any] = await asked(
            ctx, thing, params, params.prompt, extra=voice, check=_blank
        )
        if found.answer is None:
            return failing(thing, found.reason)
        made = thing.plus(kind="answer", status="candidate").redrafted(found.answer.text)
        return made if params.answer is None else _short(made, params.answer)

    async with aclosing(ctx.map(_wanted(items, params, ctx), one)) as results:  # it reads ahead
        async for made in results:
            yield made


async def _wanted(
    items: AsyncIterator[Thing], params: Generate, ctx: BlockContext
) -> AsyncGenerator[Thing, None]:
    """Give the samples to be, each when it is asked for."""
    async for thing in items:
        if params.n == 1 or failed(thing):
            yield thing.plus(persona=params.personas[0]) if params.personas else thing
            continue
        last = ctx.child(thing, params.n - 1)
        marks = {**group_marks(thing.id, [thing, last]), "group_size": params.n}
        for number in range(params.n):
            child = ctx.child(thing, number).plus(
                {**marks, "sample": number, "question": thing.content}
            )
            voices = params.personas
            yield child.plus(persona=voices[number % len(voices)]) if voices else child


def _blank(text: str) -> str | None:
    return None if text.strip() else "it is blank"


def _short(thing: Thing, expression: str) -> Thing:
    found = re.search(expression, str(thing.content))
    if found is None:
        return failing(thing, f"no answer in it that {expression!r} finds")
    return thing.plus(answer=found[1] if found.re.groups else found[0])
