"""set: props and contents that follow from what is there, without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field, JsonValue, model_validator

from mergepoint.streams.asking import filled, places
from mergepoint.streams.block import block
from mergepoint.streams.context import BlockContext
from mergepoint.streams.knobs import read_knobs
from mergepoint.streams.params import Params
from mergepoint.streams.thing import Thing


class Set(Params):
    """What is written."""

    props: dict[str, JsonValue] = Field(
        default={}, description="props with their values; in texts {{ places }} are filled in"
    )
    content: str | None = Field(
        default=None, description="a new content; {{ content }} and props are filled in"
    )
    keep: bool = Field(default=False, description="a prop that is there already stays as it is")

    @model_validator(mode="after")
    def _some(self) -> Set:
        if not self.props and self.content is None:
            raise ValueError("give props, content, or both")
        return self


def _needs(params: Set) -> list[str]:
    read = [] if params.keep else [*read_knobs(dict(params.props))]
    return places(*(f"{{{{ {name} }}}}" for name in read), params.content)


@block("set", params=Set, needs=_needs, adds=lambda params: list(params.props))
async def set_(items: AsyncIterator[Thing], params: Set, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Write props and a content that are given, with what is there filled in.

    All of it is read before any of it is written. With `keep` a prop that is there stays: so what
    the rounds of a recurrent recipe begin with is set in the first alone.
    """
    async for thing in items:
        given = {
            name: _given(value, thing)
            for name, value in params.props.items()
            if not (params.keep and name in thing.props)
        }
        after = thing.plus(given) if given else thing
        yield after if params.content is None else after.redrafted(filled(params.content, thing))


def _given(value: Any, thing: Thing) -> Any:
    return filled(value, thing) if isinstance(value, str) else value
