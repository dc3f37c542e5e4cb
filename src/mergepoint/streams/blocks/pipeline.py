"""pipeline: a conversation tree at work on each Thing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from mergepoint.core.path import nearest
from mergepoint.streams.ask import Unfitting
from mergepoint.streams.asking import failing
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.reading import CONTENT, canonical, failed, value
from mergepoint.streams.thing import RESERVED, Thing
from mergepoint.streams.trees import captures, tree_of, tree_on_wire
from mergepoint.tree.block import REQUIRED
from mergepoint.tree.check import inputs_of


class Pipeline(Params):
    """Which tree, what it is given, and what is kept of it."""

    tree: Annotated[
        Any,
        AfterValidator(tree_of),
        PlainSerializer(tree_on_wire),
        WithJsonSchema({"type": ["string", "object"]}),
    ] = Field(
        description="a tree: the name of a graph that comes along, a .yaml file, YAML as it stands "
        "or as text; in Python a node"
    )
    inputs: dict[str, str] = Field(
        default={},
        description="the prop, or content, for each input of the tree; by default one input alone "
        "is given the content, and of several those that are required the prop of their name",
    )
    props: dict[str, str] | None = Field(
        default=None, description="captures that are kept, and as which props; by default all"
    )

    @model_validator(mode="after")
    def _fits(self) -> Pipeline:
        declared, written = [one.name for one in inputs_of(self.tree)], captures(self.tree)
        for kind, given, known in (
            ("input", self.inputs, declared),
            ("capture", self.props, written),
        ):
            for name in given or {}:
                if name not in known:
                    near, listed = nearest(name, known), ", ".join(known) or "none"
                    raise ValueError(f"the tree has no {kind} {name!r}{near}; there are: {listed}")
        if taken := [name for name in self.kept().values() if name in RESERVED]:
            raise ValueError(
                f"{taken[0]!r} is a field of every Thing; name the prop for it: "
                f"props: {{{taken[0]}: ...}}"
            )
        return self

    def kept(self) -> dict[str, str]:
        """Give the prop of each capture."""
        if self.props is not None:
            return self.props
        return {key: key for key in captures(self.tree)}

    def given(self) -> dict[str, str]:
        """Give the prop, or content, for each input."""
        declared = inputs_of(self.tree)
        alone = len(declared) == 1 and not self.inputs
        return {
            one.name: self.inputs.get(one.name, CONTENT if alone else one.name)
            for one in declared
            if one.name in self.inputs or alone or one.name == CONTENT or one.default is REQUIRED
        }


@block(
    "pipeline",
    params=Pipeline,
    needs=lambda params: sorted({*params.given().values()} - {CONTENT}),
    adds=lambda params: [*params.kept().values()],
    reaches_out=True,
)
async def pipeline(
    items: AsyncIterator[Thing], params: Pipeline, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Run a conversation tree for each Thing; its last response is the new content.

    The content goes in as the input that takes it, else as the first message. What the tree
    captures becomes props; its calls are in the history. Gates are refused: nobody is there to
    answer. Where a step's answer cannot be used, or a limit of the tree's own ends it, the status
    is `failed`, with the `reason`.
    """
    given, kept = params.given(), params.kept()

    async def one(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        content = thing.content if isinstance(thing.content, str) else canonical(thing.content)
        inputs = {
            name: content if prop == CONTENT else value(thing, prop) for name, prop in given.items()
        }
        message = None if CONTENT in given.values() else content
        try:
            talked = await ctx.talk(thing, params.tree, message=message, inputs=inputs)
        except Unfitting as error:
            return failing(thing, str(error))
        made = thing.plus(
            {kept[key]: found for key, found in talked.outputs.items() if key in kept}
        )
        return made.redrafted(talked.text) if talked.text else made

    async for made in ctx.map(items, one):
        yield made
