"""tool: call a function for each Thing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any

from langchain_core.tools import BaseTool
from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema

from mergepoint.core.errors import BlockError
from mergepoint.core.frozen_json import freeze, thaw
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import CONTENT, failed
from mergepoint.streams.params import NAMED, Params, named, named_problem, read_knobs
from mergepoint.streams.prompting import filled
from mergepoint.streams.registry import block
from mergepoint.streams.thing import Thing


def _tool(given: Any) -> Any:
    if callable(given) or isinstance(given, BaseTool):
        return given
    if problem := named_problem(given):
        raise ValueError(f"a tool must be a function, a LangChain tool, or {problem}")
    return given


class Tool(Params):
    """The function, its arguments, and the prop for its result."""

    tool: Annotated[Any, AfterValidator(_tool), NAMED, WithJsonSchema({"type": "string"})] = Field(
        description="a function or LangChain tool; in YAML, `module:name`"
    )
    args: dict[str, JsonValue] = Field(
        default={"text": "{{ content }}"},
        description="arguments by name; in strings, {{ content }} and props are filled in",
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
    """Call a function for each Thing, and write its result, as JSON data, to a prop.

    Writes `observation`. An error of the function is written there too, as `error: ...`, since
    critics need it; it doesn't end the stage. A function that isn't async runs in a thread. The
    result is noted, so a resumed run doesn't call the function again, unless it was killed during
    the call: functions should tolerate being called twice. Tools for critics: Gou et al. 2023,
    https://arxiv.org/abs/2305.11738
    """
    function = named(params.tool) if isinstance(params.tool, str) else params.tool
    if not callable(function) and not isinstance(function, BaseTool):
        raise BlockError(f"{params.tool!r} is a {type(function).__name__}, which isn't callable")

    async def called(thing: Thing) -> Thing:
        if failed(thing):
            return thing
        given = {
            name: filled(value, thing) if isinstance(value, str) else thaw(value)
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
        # Inside `try`: a result that isn't JSON data becomes an error text as well.
        return freeze(found)
    except Exception as error:  # noqa: BLE001  (whatever it is, the critic is told)
        return f"error: {type(error).__name__}: {error}"
