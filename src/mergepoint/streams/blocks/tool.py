"""tool: what a function says of each Thing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any

from langchain_core.tools import BaseTool
from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema

from mergepoint.streams.asking import filled
from mergepoint.streams.block import block
from mergepoint.streams.block_error import BlockError
from mergepoint.streams.context import BlockContext
from mergepoint.streams.knobs import read_knobs
from mergepoint.streams.named import NAMED, named, named_problem
from mergepoint.streams.params import Params
from mergepoint.streams.reading import CONTENT, failed
from mergepoint.streams.sealed import plain, sealed
from mergepoint.streams.thing import Thing


def _tool(given: Any) -> Any:
    if callable(given) or isinstance(given, BaseTool):
        return given
    if problem := named_problem(given):
        raise ValueError(f"a tool is a function, a LangChain tool, or {problem}")
    return given


class Tool(Params):
    """Which function is called, with what, and where its result goes."""

    tool: Annotated[Any, AfterValidator(_tool), NAMED, WithJsonSchema({"type": "string"})] = Field(
        description="a function or LangChain tool: in Python itself, in YAML `module:name`"
    )
    args: dict[str, JsonValue] = Field(
        default={"text": "{{ content }}"},
        description="arguments by name; in texts {{ content }} and props are filled in",
    )
    into: str = Field(default="observation", min_length=1, description="the prop that is written")


@block(
    "tool",
    params=Tool,
    needs=lambda params: [
        name for name in dict.fromkeys(read_knobs(dict(params.args))) if name != CONTENT
    ],
    adds=lambda params: [params.into],
    reaches_out=True,
)
async def tool(
    items: AsyncIterator[Thing], params: Tool, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Call a function for each Thing; what it returns, as JSON data, is a prop.

    Writes `observation`. An error of the function is written there too, `error: ...`, since it is
    what a critic goes by; it ends nothing. A function that is not async runs in a thread. What it
    gave is noted, and a resumed run does not call it again; one that was killed meanwhile may, so
    it should be fit to be called twice. Tools for critics: Gou et al. 2023,
    https://arxiv.org/abs/2305.11738
    """
    function = named(params.tool) if isinstance(params.tool, str) else params.tool
    if not callable(function) and not isinstance(function, BaseTool):
        raise BlockError(f"{params.tool!r} is a {type(function).__name__}, which nobody can call")

    async def called(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        given = {
            name: filled(value, thing) if isinstance(value, str) else plain(value)
            for name, value in params.args.items()
        }
        key = f"result for {thing.id} after {len(thing.history)}"
        return thing.plus({params.into: await ctx.once(key, partial(_result, function, given))})

    async for told in ctx.map(items, called):
        yield told


async def _result(function: Any, given: Mapping[str, Any]) -> Any:
    try:
        if isinstance(function, BaseTool):
            found = await function.ainvoke(dict(given))
        elif inspect.iscoroutinefunction(function):
            found = await function(**given)
        else:
            found = await asyncio.to_thread(function, **given)
        return sealed(found)
    except Exception as error:  # noqa: BLE001  (whatever it is, the critic is told)
        return f"error: {type(error).__name__}: {error}"
