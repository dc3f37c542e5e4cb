"""set: write props or content without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field, JsonValue, model_validator

from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params, read_knobs
from mergepoint.streams.prompting import filled, places
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


class Set(Params):
    """The props and content to write."""

    props: dict[str, JsonValue] = Field(
        default={},
        description="props with their values; {{ placeholders }} in strings are filled in",
    )
    content: str | None = Field(
        default=None, description="new content; {{ content }} and props are filled in"
    )
    keep: bool = Field(default=False, description="whether existing props keep their value")

    @model_validator(mode="after")
    def _some(self) -> Set:
        if not self.props and self.content is None:
            raise ValueError("set props, content, or both")
        return self


def _needs(params: Set) -> list[str]:
    read = [] if params.keep else [*read_knobs(dict(params.props))]
    return places(*(f"{{{{ {name} }}}}" for name in read), params.content)


@block(
    "set",
    params=Set,
    needs=_needs,
    adds=lambda params: list(params.props),
    rewrites=lambda params: params.content is not None,
)
async def set_(items: AsyncIterator[Thing], params: Set, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Write props and content, with placeholders filled in.

    All values are read before any is written. With `keep`, existing props keep their value: so a
    recurrent recipe sets its initial values only in the first round.
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
