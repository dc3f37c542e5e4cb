"""verify: check whether each Thing is right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from pydantic import BaseModel, Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import failed
from mergepoint.streams.prompting import PromptParams, asked, failing, places
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

PROMPT = (
    "Check whether the following is right. Answer with the verdict pass or fail, and the "
    "reason.\n\n<text>\n{{ content }}\n</text>"
)


class Verify(PromptParams):
    """The prompt, and the status of a pass."""

    prompt: str = Field(default=PROMPT, description="asks for a verdict and a reason")
    accept: bool = Field(
        default=False,
        description="give a pass the status done, which ends a recurrent recipe's rounds",
    )


class Finding(BaseModel):
    """Whether it passes, and why."""

    verdict: Literal["pass", "fail"] = Field(description="pass or fail")
    reason: str = Field(default="", description="why, in a few words")


@block(
    "verify",
    params=Verify,
    needs=lambda params: places(params.prompt, params.system),
    adds=["verified", "reason", "feedback"],
)
async def verify(
    items: AsyncIterator[Thing], params: Verify, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Check with a model whether each Thing is right.

    Writes `verified` (true or false), the `reason`, and the same text as `feedback` for the next
    revision; with `accept`, also the status `done` if it is verified. If the model returns no
    verdict, the status is `failed`, with the `reason`.
    """

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        found = await asked(ctx, thing, params, params.prompt, schema=Finding)
        if found.value is None:
            return failing(thing, found.reason)
        passed = found.value.verdict == "pass"
        reason = found.value.reason
        told = thing.plus(verified=passed, reason=reason, feedback=reason)
        return told.plus(status="done") if passed and params.accept else told

    async for checked in ctx.map(items, one):
        yield checked
