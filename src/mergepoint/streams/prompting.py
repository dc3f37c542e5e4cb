"""Blocks that call a model: their params, prompts, and failures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, RootModel, ValidationError

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, canonical, value
from mergepoint.streams.grouping import Grouped
from mergepoint.streams.model_calls import InvalidAnswer, ModelAnswer
from mergepoint.streams.params import Params
from mergepoint.streams.thing import Thing

_PLACE: Final = re.compile(r"\{\{\s*([^\s{}]+)\s*\}\}")

M = TypeVar("M", bound=BaseModel)


class PromptParams(Params):
    """Params of blocks that call a model."""

    system: str | None = Field(default=None, description="a system message, with placeholders")
    tries: int = Field(
        default=2, ge=1, description="maximum number of attempts to get a valid answer"
    )


def asks(params: BaseModel) -> bool:
    """Return whether a block with these params calls its stage's model."""
    return isinstance(params.root if isinstance(params, RootModel) else params, PromptParams)


@dataclass(frozen=True, slots=True)
class PromptResult(Generic[M]):
    """The answer to a prompt and its parsed `value`, or the reason why there is none."""

    answer: ModelAnswer | None
    value: M | None
    reason: str = ""


def places(*texts: str | None, extra: Iterable[str] = ()) -> list[str]:
    """Return the props that prompts read, except the content and `extra`."""
    names = dict.fromkeys(name for text in texts if text for name in _PLACE.findall(text))
    return [name for name in names if name not in {CONTENT, *extra}]


def filled(text: str, thing: Thing, extra: Mapping[str, Any] | None = None) -> str:
    """Return a prompt with its placeholders filled from `extra`, the content, and the props.

    Sources from `retrieve` become texts under their ids; other values that aren't strings become
    JSON. Raise BlockError, with similar names, for a missing prop.
    """
    known = extra or {}

    def read(place: re.Match[str]) -> str:
        name = place[1]
        found = known[name] if name in known else value(thing, name)
        return found if isinstance(found, str) else _written(found)

    return _PLACE.sub(read, text)


def _written(found: Any) -> str:
    if isinstance(found, list) and found and all(_is_source(one) for one in found):
        return "\n\n".join(f"[{one['id']}]\n{one['text']}" for one in found)
    return canonical(found)


def _is_source(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("text"), str) and "id" in one


async def asked(
    ctx: BlockContext,
    thing: Thing,
    params: PromptParams,
    prompt: str,
    *,
    schema: type[M] | None = None,
    extra: Mapping[str, Any] | None = None,
    sample: int = 0,
    check: Callable[[Any], str | None] | None = None,
) -> PromptResult[M]:
    """Call the model for a Thing until an answer is valid, at most `tries` times.

    An answer that doesn't match the schema, or for which `check` returns a problem, is a failed
    attempt of the call; the next prompt contains the reason. Errors of the model and limits are
    raised.
    """
    text = filled(prompt, thing, extra)
    system = None if params.system is None else filled(params.system, thing, extra)
    parsed: M | None = None
    reason = ""

    def problem(said: str, given: Any) -> str | None:
        nonlocal parsed
        try:
            parsed = None if schema is None else schema.model_validate(given)
        except ValidationError as error:
            return _told(error)
        return None if check is None else check(said if schema is None else parsed)

    # The first prompt stays free of the correction: its fingerprint has to match recorded answers.
    for number in range(params.tries):
        told = f"{text}\n\nYour last answer could not be used: {reason}" if number else text
        try:
            answer = await ctx.ask(
                thing,
                told,
                system=system,
                schema=schema,
                sample=sample,
                # Without both, any answer is valid.
                check=None if schema is None and check is None else problem,
                again=number > 0,
            )
        except InvalidAnswer as error:
            reason = str(error)
            continue
        return PromptResult(answer, parsed)
    return PromptResult(None, None, f"no answer that fits in {params.tries}: {reason}")


ORIGIN: Final = ("model", "source", "cost", "stage_id")
"""The props that record which model call wrote a content."""


def origin(ctx: BlockContext, answer: ModelAnswer) -> dict[str, Any]:
    """Return the props that record which call of which stage wrote a content."""
    return {
        "model": answer.model,
        "source": answer.call,
        "cost": answer.cost,
        "stage_id": ctx.stage_id,
    }


def written(ctx: BlockContext, thing: Thing, answer: ModelAnswer, **props: Any) -> Thing:
    """Return the Thing with a model's answer as its content, the call's origin, and more props."""
    return thing.redrafted(answer.text, **props, **origin(ctx, answer))


def failing(thing: Thing, reason: str) -> Thing:
    """Return the Thing marked as failed."""
    return thing.plus(status="failed", reason=reason)


def _told(error: ValidationError) -> str:
    problems = [
        f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg'].lower()}" for one in error.errors()
    ]
    return "; ".join(problems)


COMBINE = (
    "Write one text that takes the best of these {{ count }}, without naming them.\n\n"
    "<texts>\n{{ listed }}\n</texts>"
)
CHOOSE = (
    "Which of these {{ count }} is the best, or the one that most of them agree with? Answer with "
    "its number, from 1, and the reason.\n\n<texts>\n{{ listed }}\n</texts>"
)


class Combine(PromptParams, Grouped):
    """A new text that a model writes from all members."""

    strategy: Literal["combine"]
    prompt: str = Field(default=COMBINE, description="shows {{ listed }}, {{ count }} of them")


class Choose(PromptParams, Grouped):
    """The content of the member that a model chooses (universal self-consistency)."""

    strategy: Literal["choose"]
    prompt: str = Field(default=CHOOSE, description="shows {{ listed }}, {{ count }} of them")


class Chosen(BaseModel):
    """The number of the one that is chosen, and why."""

    choice: int = Field(description="its number, from 1")
    reason: str = Field(default="", description="why, in a few words")


async def combine(
    joined: Thing, members: Sequence[Thing], params: Combine, ctx: BlockContext
) -> Thing:
    """Write one text from all members with the model."""
    found: PromptResult[Any] = await asked(
        ctx, joined, params, params.prompt, extra=listed(members)
    )
    if found.answer is None:
        return failing(joined, found.reason)
    return written(ctx, joined, found.answer)


async def choose(
    joined: Thing, members: Sequence[Thing], params: Choose, ctx: BlockContext
) -> Thing:
    """Choose a member with the model; the answer must be an existing number."""
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
    return told.redrafted(winner.content).taken_from([winner], CONTENT)


def listed(members: Sequence[Thing]) -> dict[str, Any]:
    """Return what a prompt shows of several Things: their numbered contents, and their count."""
    texts = (
        one.content if isinstance(one.content, str) else canonical(one.content) for one in members
    )
    lines = [f"{number}. {text}" for number, text in enumerate(texts, 1)]
    return {"listed": "\n\n".join(lines), "count": str(len(members))}
