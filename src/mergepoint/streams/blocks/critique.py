"""critique: how good each Thing is, and what could be better."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import BaseModel, Field

from mergepoint.streams.asking import Asking, asked, failing, places
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing

PROMPT = (
    "Judge the following text. Score it from 0 to 100, higher is better, and say in a few words "
    "what should be done better.\n\n<text>\n{{ content }}\n</text>"
)


class Critique(Asking):
    """How it is judged."""

    prompt: str = Field(default=PROMPT, description="asks for a score and for feedback")
    persona: str = Field(default="", description="who judges, for a {{ persona }} in the prompt")


class Judgement(BaseModel):
    """A score and what should be done better."""

    score: float = Field(ge=0, le=100, description="0 to 100, higher is better")
    feedback: str = Field(description="what should be done better")


@block(
    "critique",
    params=Critique,
    needs=lambda params: places(params.prompt, params.system, extra=["persona"]),
    adds=["score", "feedback"],
)
async def critique(
    items: AsyncIterator[Thing], params: Critique, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Ask a model how good each Thing is.

    Writes `score` (0 to 100) and `feedback`. Where a model gives no such score, the status is
    `failed`, with the `reason`. Self-refine: Madaan et al. 2023, https://arxiv.org/abs/2303.17651
    """

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        found = await asked(
            ctx,
            thing,
            params,
            params.prompt,
            schema=Judgement,
            extra={"persona": params.persona},
        )
        if found.value is None:
            return failing(thing, found.reason)
        return thing.plus(score=found.value.score, feedback=found.value.feedback)

    async for judged in ctx.map(items, one):
        yield judged
