"""verify: whether each Thing is right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from pydantic import BaseModel, Field

from mergepoint.streams.asking import Asking, asked, failing, places
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing

PROMPT = (
    "Check whether the following is right. Answer with the verdict pass or fail, and the "
    "reason.\n\n<text>\n{{ content }}\n</text>"
)


class Verify(Asking):
    """How it is checked."""

    prompt: str = Field(default=PROMPT, description="asks for a verdict and a reason")
    accept: bool = Field(
        default=False, description="a pass has the status done, so that its recipe can end"
    )


class Finding(BaseModel):
    """Whether it passes, and why."""

    verdict: Literal["pass", "fail"] = Field(description="pass or fail")
    reason: str = Field(default="", description="why, in a few words")


@block(
    "verify",
    params=Verify,
    needs=lambda params: places(params.prompt, params.system),
    adds=["verdict", "correct", "reason", "feedback"],
)
async def verify(
    items: AsyncIterator[Thing], params: Verify, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Ask a model whether each Thing is right.

    Writes `verdict` (pass or fail), `correct`, `reason`, and the same as `feedback` for who works
    on it again; with `accept` the status `done` for a pass. Where a model gives no verdict, the
    status is `failed`, with the `reason`.
    """

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        found = await asked(ctx, thing, params, params.prompt, schema=Finding)
        if found.value is None:
            return failing(thing, found.reason)
        passed = found.value.verdict == "pass"
        reason = found.value.reason
        told = thing.plus(
            verdict=found.value.verdict, correct=passed, reason=reason, feedback=reason
        )
        return told.plus(status="done") if passed and params.accept else told

    async for checked in ctx.map(items, one):
        yield checked
