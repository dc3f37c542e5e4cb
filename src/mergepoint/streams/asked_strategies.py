"""Asked strategies: how synthesize makes one Thing of several by asking a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from mergepoint.streams.asking import Answered, Asking, asked, failing
from mergepoint.streams.context import BlockContext
from mergepoint.streams.groups import Grouped
from mergepoint.streams.reading import canonical
from mergepoint.streams.thing import Thing

COMBINE = (
    "Write one text that takes the best of these {{ count }}, without naming them.\n\n"
    "<texts>\n{{ listed }}\n</texts>"
)
CHOOSE = (
    "Which of these {{ count }} is the best, or the one that most of them agree with? Answer with "
    "its number, from 1, and the reason.\n\n<texts>\n{{ listed }}\n</texts>"
)


class Combine(Asking, Grouped):
    """A new text that a model writes of all."""

    strategy: Literal["combine"]
    prompt: str = Field(default=COMBINE, description="shows {{ listed }}, {{ count }} of them")


class Choose(Asking, Grouped):
    """The content of the one that a model chooses (universal self-consistency)."""

    strategy: Literal["choose"]
    prompt: str = Field(default=CHOOSE, description="shows {{ listed }}, {{ count }} of them")


class Chosen(BaseModel):
    """The number of the one that is chosen, and why."""

    choice: int = Field(description="its number, from 1")
    reason: str = Field(default="", description="why, in a few words")


async def combine(
    joined: Thing, members: Sequence[Thing], params: Combine, ctx: BlockContext
) -> Thing:
    """Let a model write one text of all."""
    found: Answered[Any] = await asked(ctx, joined, params, params.prompt, extra=listed(members))
    if found.answer is None:
        return failing(joined, found.reason)
    return joined.redrafted(found.answer.text)


async def choose(
    joined: Thing, members: Sequence[Thing], params: Choose, ctx: BlockContext
) -> Thing:
    """Let a model choose; its number has to be one that there is."""
    count = len(members)

    def there(chosen: Chosen) -> str | None:
        return None if 1 <= chosen.choice <= count else f"there is no number {chosen.choice}"

    found = await asked(
        ctx, joined, params, params.prompt, schema=Chosen, extra=listed(members), check=there
    )
    if found.value is None:
        return failing(joined, found.reason)
    winner = members[found.value.choice - 1]
    told = joined.plus(winner=winner.id, choice=found.value.choice, reason=found.value.reason)
    return told.redrafted(winner.content)


def listed(members: Sequence[Thing]) -> dict[str, Any]:
    """Give what a prompt shows of several: their contents with numbers, and how many they are."""
    texts = (
        one.content if isinstance(one.content, str) else canonical(one.content) for one in members
    )
    lines = [f"{number}. {text}" for number, text in enumerate(texts, 1)]
    return {"listed": "\n\n".join(lines), "count": str(len(members))}
