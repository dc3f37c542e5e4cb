"""replan: a model decides what is tried next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import lru_cache, partial
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, create_model

from mergepoint.streams.asking import Asking, asked, failing, places
from mergepoint.streams.block import block
from mergepoint.streams.block_error import BlockError
from mergepoint.streams.context import BlockContext
from mergepoint.streams.proposal import PROPOSAL, Proposals
from mergepoint.streams.reading import failed
from mergepoint.streams.thing import Thing
from mergepoint.streams.why import shown

PROMPT = (
    "Decide what to try next on the following text: one stage after the other, each with its "
    "params; no stage at all where it is good as it is, or nothing is left to try.\n\n"
    "Text:\n{{ content }}\n\nWhat was done so far:\n{{ tried }}\n\n"
    "At most {{ max_stages }} of these stages:\n{{ known }}"
)

_EXTRA = ("tried", "known", "max_stages")
_LINES = 40


class Replan(Asking):
    """What a model may propose."""

    prompt: str = Field(
        default=PROMPT,
        description="asks for stages; `tried`, `known` and `max_stages` are filled in too",
    )
    allowed: list[str] | None = Field(
        default=None,
        min_length=1,
        description="blocks and recipes that may be proposed; by default all but those that reach "
        "files or code, and those that propose themselves",
    )
    max_stages: int = Field(default=8, ge=1, le=100, description="so many stages at most")
    depth: int = Field(
        default=1, ge=1, le=5, description="how deep proposals may stand in proposals"
    )


class Proposed(BaseModel):
    """One stage."""

    type: str = Field(description="the name of a block or recipe")
    params: dict[str, Any] = Field(default={}, description="what it is told")


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
    """Ask a model which stages each Thing should go through next; then they run on it.

    The stages are of the registry and the library; what is proposed is checked before it runs, and
    what is wrong goes back to the model. Writes `proposal`, a list of `type` and `params`, and
    the status `done` where the model proposes nothing. Where it proposes nothing that can run, the
    status is `failed`, with the `reason`. The stages run below this one, and leave in its place.
    """
    planner = ctx.proposals
    if planner is None:
        async for thing in items:
            raise BlockError("nobody is there to run what is proposed", item=thing.id)
        return
    known = planner.known(params.allowed)
    schema = _schema(known)
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
    """Say what is wrong with a proposal for a Thing, or None."""
    if len(found.stages) > params.max_stages:
        return f"{len(found.stages):,} stages; at most {params.max_stages} are possible"
    stages = [_within(stage, params, known) for stage in found.stages]
    props = list(thing.props)
    faults = planner.faults(stages, stage_id=stage_id, props=props, known=known, depth=params.depth)
    return "\n".join(faults) or None


def _within(stage: Proposed, params: Replan, known: tuple[str, ...]) -> dict[str, Any]:
    """Give a stage as data; a replan that was proposed has the limits of this one."""
    data = stage.model_dump(mode="json")
    if stage.type == "replan":
        limits = {"allowed": list(known), "max_stages": params.max_stages, "depth": params.depth}
        data["params"] |= limits
    return data


@lru_cache(maxsize=64)
def _schema(known: tuple[str, ...]) -> type[BaseModel]:
    """Give the schema of a proposal, in which a type is one of those that are known."""
    named = Annotated[str, WithJsonSchema({"type": "string", "enum": list(known)})]
    stage = create_model("Stage", __base__=Proposed, type=(named, ...))
    return create_model(
        "Proposal",
        reason=(str, Field(description="why, in a few words")),
        stages=(list[stage], Field(description="one after the other")),  # type: ignore[valid-type]
    )


def _tried(thing: Thing) -> str:
    """Tell which stages a Thing went through, and what they made of it; the last ones if many."""
    lines = [
        f"- {entry.block}: "
        + ", ".join(
            [
                *(["a new text"] if entry.drafts else []),
                *(f"{name} = {shown(value, width=60)}" for name, value in entry.added.items()),
            ]
        )
        for entry in thing.history[1:]
    ]
    return "\n".join(lines[-_LINES:]) or "nothing"
