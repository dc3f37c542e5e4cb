"""replan: let a model decide which stages run next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, create_model
from pydantic.json_schema import SkipJsonSchema

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import PROPOSAL, BlockContext, Proposals
from mergepoint.streams.conditions import failed
from mergepoint.streams.prompting import PromptParams, asked, failing, places
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing, shown

PROMPT = (
    "Decide what to try next on the following text: one stage after the other, each with its "
    "params; no stage at all where it is good as it is, or nothing is left to try.\n\n"
    "Text:\n{{ content }}\n\nWhat was done so far:\n{{ tried }}\n\n"
    "At most {{ max_stages }} of these stages:\n{{ known }}"
)

_EXTRA = ("tried", "known", "max_stages")
_LINES = 40


class Replan(PromptParams):
    """The stages that a model may propose."""

    prompt: str = Field(
        default=PROMPT,
        description="asks for stages; `tried`, `known`, and `max_stages` are filled in too",
    )
    allowed: list[str] | None = Field(
        default=None,
        min_length=1,
        description="blocks and recipes that may be proposed; default: all except those that reach "
        "files or code, and those that propose stages",
    )
    models: list[str] | None = Field(
        default=None,
        description="models that may be proposed for a stage, as provider:name; default: any "
        "available model, with a price if there is a limit in USD",
    )
    max_stages: int = Field(default=8, ge=1, le=100, description="maximum number of stages")
    depth: int = Field(default=1, ge=1, le=5, description="maximum depth of proposals in proposals")


class Proposed(BaseModel):
    """One stage."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="the name of a block or recipe")
    params: dict[str, Any] = Field(default={}, description="what it is told")
    # Only in the schema if the params name models: others must not be offered.
    model: Annotated[str | None, SkipJsonSchema()] = None


@block(
    "replan",
    params=Replan,
    needs=lambda params: places(params.prompt, params.system, extra=_EXTRA),
    adds=[PROPOSAL],
    follows=True,
)
async def replan(
    items: AsyncIterator[Thing], params: Replan, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Choose the next stages for each Thing with a model, and run them.

    The stages come from the registry and the library. A proposal is checked before it runs, and its
    problems go back to the model. Writes `proposal`, a list of `type`, `params`, and optionally
    `model`; if the model proposes nothing, the status `done`. If no proposal can run, the status is
    `failed`, with the `reason`. The stages run below this one, and their results leave instead of
    its own.
    """
    planner = ctx.proposals
    if planner is None:
        async for thing in items:
            raise BlockError(
                "this stage can't run proposals; run it as part of a recipe", item=thing.id
            )
        return
    known = planner.known(params.allowed)
    schema = _schema(known, None if params.models is None else tuple(params.models))
    about = {"known": planner.about(known), "max_stages": params.max_stages}

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        check = partial(_problem, planner, thing, params, known, ctx.stage_id)
        extra = {**about, "tried": _tried(thing)}
        found = await asked(
            ctx, thing, params, params.prompt, schema=schema, extra=extra, check=check
        )
        if found.value is None:
            return failing(thing, found.reason)
        answer: Any = found.value
        proposal = [_within(stage, params, known) for stage in answer.stages]
        made = thing.plus({PROPOSAL: proposal})
        return made if proposal else made.plus(status="done", reason=answer.reason)

    async for made in ctx.map(items, one):
        yield made


def _problem(
    planner: Proposals,
    thing: Thing,
    params: Replan,
    known: tuple[str, ...],
    stage_id: str,
    found: Any,
) -> str | None:
    """Return the problems of a proposal for a Thing, or None."""
    if len(found.stages) > params.max_stages:
        return f"{len(found.stages):,} stages; at most {params.max_stages} are possible"
    if refused := [*_refused_models(found.stages, params.models)]:
        return "\n".join(refused)
    stages = [_within(stage, params, known) for stage in found.stages]
    props = list(thing.props)
    faults = planner.faults(stages, stage_id=stage_id, props=props, known=known, depth=params.depth)
    return "\n".join(faults) or None


def _within(stage: Proposed, params: Replan, known: tuple[str, ...]) -> dict[str, Any]:
    """Return a stage as data; a proposed replan gets this stage's limits."""
    data = stage.model_dump(mode="json", exclude_none=True)
    if stage.type == "replan":
        limits = {"allowed": list(known), "max_stages": params.max_stages, "depth": params.depth}
        data["params"] |= limits if params.models is None else {**limits, "models": params.models}
    return data


def _refused_models(stages: Sequence[Proposed], models: Sequence[str] | None) -> Iterator[str]:
    """Yield a problem for each stage with a model that may not be proposed."""
    for number, stage in enumerate(stages):
        if stage.model is not None and models is not None and stage.model not in models:
            problem = f"the model {stage.model!r} may not be proposed"
            yield f"stages[{number}]: {problem}; may be: {', '.join(models) or 'none'}"


# Pydantic builds a class per schema, and all Things of a stage share one.
@lru_cache(maxsize=64)
def _schema(known: tuple[str, ...], models: tuple[str, ...] | None) -> type[BaseModel]:
    """Return the schema of a proposal, with the allowed types and models."""
    fields: dict[str, Any] = {"type": (_one_of(known), ...)}
    if models:
        own = Field(default=None, description="the model that is asked, in place of the usual")
        fields["model"] = (_one_of(models) | None, own)
    stage = create_model("Stage", __base__=Proposed, **fields)
    return create_model(
        "Proposal",
        reason=(str, Field(description="why, in a few words")),
        stages=(list[stage], Field(description="one after the other")),  # type: ignore[valid-type]
    )


def _one_of(names: Sequence[str]) -> Any:
    return Annotated[str, WithJsonSchema({"type": "string", "enum": list(names)})]


def _tried(thing: Thing) -> str:
    """Return the stages that a Thing passed and their results, up to the latest 40."""
    lines = [
        f"- {entry.block}: "
        + ", ".join(
            [
                *(["a new text"] if entry.drafts else []),
                *(f"{name} = {shown(value, width=60)}" for name, value in entry.added.items()),
            ]
        )
        # The first entry is the input, which no stage tried.
        for entry in thing.history[1:]
    ]
    return "\n".join(lines[-_LINES:]) or "nothing"
