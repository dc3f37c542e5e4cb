"""chain: answer the Things of a group in sequence, each with the earlier answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from pydantic import Field

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import failed
from mergepoint.streams.grouping import Grouped, groups
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
    "Answer the next of several questions, by what was answered before.\n\n"
    "<before>\n{{ earlier }}\n</before>\n\n<question>\n{{ content }}\n</question>"
)
NOTHING = "none"


class Chain(PromptParams, Grouped):
    """The prompt of each call."""

    prompt: str = Field(
        default=PROMPT, description="shows {{ earlier }}: the earlier questions and answers"
    )


@block(
    "chain",
    params=Chain,
    needs=lambda params: places(params.prompt, params.system, extra=["earlier"]),
    adds=["earlier", *ORIGIN],
    rewrites=True,
    in_order=True,
)
async def chain(
    items: AsyncIterator[Thing], params: Chain, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Answer the Things of a group in order with a model, each with the earlier answers.

    The answer is the new content. Writes `earlier`, the contents and answers of the Things before,
    and the call's origin (`model`, `source`, `cost`, `stage_id`). If the model returns nothing, the
    status is `failed`, with the `reason`, and the others continue without it. Least-to-most: Zhou
    et al. 2022, https://arxiv.org/abs/2205.10625
    """
    async with aclosing(groups(items, params.per)) as found:
        async for group in found:
            told: list[str] = []
            for member in group.members:
                if failed(member):
                    yield member
                    continue
                earlier = {"earlier": "\n\n".join(told) or NOTHING}
                answered: PromptResult[Any] = await asked(
                    ctx, member, params, params.prompt, extra=earlier
                )
                if answered.answer is None:
                    yield failing(member, answered.reason)
                    continue
                told.append(f"{member.content}\n{answered.answer.text}")
                yield written(ctx, member, answered.answer, **earlier)
