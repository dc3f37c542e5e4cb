"""critique: score each Thing, and suggest improvements."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import failed
from mergepoint.streams.params import NAMED, name_of, named, named_problem
from mergepoint.streams.prompting import PromptParams, asked, failing, places
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing

PROMPT = (
    "Judge the following text. Score it from 0 to 100, higher is better, and say in a few words "
    "what should be done better.\n\n<text>\n{{ content }}\n</text>"
)

_RUBRIC = "rubric"
_TOLD = {"score", "reason", "feedback"}


def _scorer(given: Any) -> Any:
    if given is None or callable(given):
        return given
    if problem := named_problem(given):
        raise ValueError(f"a scorer is a function, or {problem}")
    return given


class Critique(PromptParams):
    """The prompt, rubric, or function that judges."""

    prompt: str = Field(default=PROMPT, description="asks for a score and for feedback")
    persona: str = Field(
        default="", description="the judge's role, for a {{ persona }} in the prompt"
    )
    rubric: str | None = Field(
        default=None,
        min_length=1,
        description="criteria: replaces {{ rubric }} in the prompt, or is added below it; "
        "default: the first paragraph of the prompt",
    )
    scorer: Annotated[
        Any,
        AfterValidator(_scorer),
        NAMED,
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = Field(
        default=None,
        description="a function that judges instead of a model; in YAML, "
        "`module:name`; it receives the Thing and returns a number, or a mapping with score, "
        "reason, and feedback",
    )

    @property
    def asks_for(self) -> str:
        """The prompt including the rubric."""
        if self.rubric is None or _RUBRIC in places(self.prompt):
            return self.prompt
        return f"{self.prompt}\n\n<rubric>\n{{{{ {_RUBRIC} }}}}\n</rubric>"

    @property
    def judged_by(self) -> str:
        """The rubric as it is recorded."""
        if self.rubric is not None:
            return self.rubric
        if self.scorer is not None:
            return name_of(self.scorer)
        return self.prompt.partition("\n\n")[0]


class Judgement(BaseModel):
    """A score and what should be done better."""

    score: float = Field(ge=0, le=100, description="0 to 100, higher is better")
    feedback: str = Field(description="what should be done better")


def _needs(params: Critique) -> list[str]:
    if params.scorer is not None:
        return []
    return places(params.prompt, params.system, extra=["persona", _RUBRIC])


@block(
    "critique",
    params=Critique,
    needs=_needs,
    adds=["score", "reason", "rubric", "feedback"],
    reaches_out=("scorer",),
)
async def critique(
    items: AsyncIterator[Thing], params: Critique, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Score each Thing with a model or a function.

    Writes `score` (by a model 0 to 100), the suggested improvements as `reason` and `feedback`, and
    the `rubric`. If the model returns no valid score, the status is `failed`, with the `reason`.
    The result of a `scorer` is noted: a resumed run doesn't call it again. Self-refine: Madaan et
    al. 2023, https://arxiv.org/abs/2303.17651
    """
    function = named(params.scorer) if isinstance(params.scorer, str) else params.scorer
    extra = {"persona": params.persona, _RUBRIC: params.rubric or ""}
    prompt, rubric = params.asks_for, params.judged_by

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        if function is not None:
            # The history's length tells the rounds of a recurrent recipe apart.
            key = f"score of {thing.id} after {len(thing.history)}"
            told = await ctx.once(key, partial(_scored, function, thing))
            return thing.plus(told, rubric=rubric)
        found = await asked(ctx, thing, params, prompt, schema=Judgement, extra=extra)
        if found.value is None:
            return failing(thing, found.reason)
        feedback = found.value.feedback
        told = {"score": found.value.score, "reason": feedback, "feedback": feedback}
        return thing.plus(told, rubric=rubric)

    async for judged in ctx.map(items, one):
        yield judged


async def _scored(function: Any, thing: Thing) -> dict[str, Any]:
    """Return a scorer's result as props. Raise BlockError if it is invalid."""
    if inspect.iscoroutinefunction(function):
        found = await function(thing)
    else:
        # A blocking scorer must not stop the event loop.
        found = await asyncio.to_thread(function, thing)
    told = dict(found) if isinstance(found, Mapping) else {"score": found}
    score = told.get("score")
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if not is_number or not math.isfinite(score) or not told.keys() <= _TOLD:  # type: ignore[arg-type]
        raise BlockError(
            f"the scorer {name_of(function)} returned {found!r}; return a number, or a mapping "
            "with the number as score, and optionally reason and feedback",
            item=thing.id,
        )
    reason = str(told.get("reason", told.get("feedback", "")))
    return {"score": score, "reason": reason, "feedback": str(told.get("feedback", reason))}
