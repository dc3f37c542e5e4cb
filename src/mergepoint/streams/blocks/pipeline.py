"""pipeline: run a conversation tree on each Thing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from mergepoint.core.paths import nearest
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, canonical, failed, value
from mergepoint.streams.model_calls import InvalidAnswer, captures, tree_of, tree_on_wire
from mergepoint.streams.params import Params
from mergepoint.streams.prompting import failing
from mergepoint.streams.registry import block
from mergepoint.streams.thing import RESERVED, Thing
from mergepoint.tree.nodes import REQUIRED
from mergepoint.tree.validate import inputs_of


class Pipeline(Params):
    """The tree, its inputs, and the captures that become props."""

    tree: Annotated[
        Any,
        AfterValidator(tree_of),
        PlainSerializer(tree_on_wire),
        WithJsonSchema({"type": ["string", "object"]}),
    ] = Field(
        description="a tree: the name of a bundled graph, a .yaml file, YAML as data "
        "or text; in Python, a node"
    )
    inputs: dict[str, str] = Field(
        default={},
        description="the prop, or content, for each input of the tree; by default, a single input "
        "gets the content, and several required inputs get the props of their names",
    )
    props: dict[str, str] | None = Field(
        default=None,
        description="captures to keep, and their props; default: all, under their own names",
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
                    raise ValueError(f"the tree has no {kind} {name!r}{near}; available: {listed}")
        if taken := [name for name in self.kept().values() if name in RESERVED]:
            raise ValueError(
                f"{taken[0]!r} is a field of every Thing; choose another prop: "
                f"props: {{{taken[0]}: ...}}"
            )
        return self

    def kept(self) -> dict[str, str]:
        """Return the prop of each capture."""
        if self.props is not None:
            return self.props
        return {key: key for key in captures(self.tree)}

    def given(self) -> dict[str, str]:
        """Return the prop, or content, for each input."""
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
    rewrites=True,
    reaches_out=True,
)
async def pipeline(
    items: AsyncIterator[Thing], params: Pipeline, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Run a conversation tree on each Thing; its last response is the new content.

    The content is passed as the input that takes it, or as the first message. Captures of the tree
    become props, and its calls are in the history. Trees with gates are refused, because no one can
    answer them in a stream. If a step's answer is invalid, or a limit of the tree itself ends it,
    the status is `failed`, with the `reason`.
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
        except InvalidAnswer as error:
            return failing(thing, str(error))
        made = thing.plus(
            {kept[key]: found for key, found in talked.outputs.items() if key in kept}
        )
        return made.redrafted(talked.text) if talked.text else made

    async for made in ctx.map(items, one):
        yield made
