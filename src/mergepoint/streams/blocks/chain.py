"""chain: the Things of a group one after the other, each with what came before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from pydantic import Field

from mergepoint.streams.asking import Answered, Asking, asked, failing, places
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.groups import Grouped, groups
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing

PROMPT = (
    "Answer the next of several questions, by what was answered before.\n\n"
    "<before>\n{{ earlier }}\n</before>\n\n<question>\n{{ content }}\n</question>"
)
NOTHING = "none"


class Chain(Asking, Grouped):
    """How each is asked for."""

    prompt: str = Field(
        default=PROMPT, description="shows {{ earlier }}: what was asked and answered before"
    )


@block(
    "chain",
    params=Chain,
    needs=lambda params: places(params.prompt, params.system, extra=["earlier"]),
    adds=["earlier"],
    in_order=True,
)
async def chain(
    items: AsyncIterator[Thing], params: Chain, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Ask a model for the Things of a group in order, each with the answers to those before.

    What it answers is the new content. Writes `earlier`: contents and answers of those before.
    Where a model answers nothing, the status is `failed`, with the `reason`, and the rest goes on
    without it. Least-to-most: Zhou et al. 2022, https://arxiv.org/abs/2205.10625
    """
    async with aclosing(groups(items, params.per)) as found:
        async for group in found:
            told: list[str] = []
            for member in group.members:
                if failed(member):
                    yield member
                    continue
                earlier = {"earlier": "\n\n".join(told) or NOTHING}
                answered: Answered[Any] = await asked(
                    ctx, member, params, params.prompt, extra=earlier
                )
                if answered.answer is None:
                    yield failing(member, answered.reason)
                    continue
                told.append(f"{member.content}\n{answered.answer.text}")
                yield member.plus(earlier).redrafted(answered.answer.text)
