"""Blocks under test: a source that counts, a model of canned replies, a block run on its own.

def test_the_majority_wins() -> None:
    (winner,) = run_block("vote", ["yes", "no", "yes"])
    assert winner.content == "yes"
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel

from mergepoint.streams.ask import Answer, Ask, Asker
from mergepoint.streams.block_type import BlockType
from mergepoint.streams.context import BlockContext
from mergepoint.streams.gather import Gather
from mergepoint.streams.notes import Notes
from mergepoint.streams.params import params_of
from mergepoint.streams.registry import REGISTRY
from mergepoint.streams.stage import entered, run_stage
from mergepoint.streams.thing import Thing


class Source:
    """A stream that counts: `pulled` items so far, and whether it was `closed`.

    Takes Things of a stream as they are; what is none, or fresh, enters as input. With `error` it
    raises that in the place of its end.
    """

    def __init__(self, items: Iterable[Any], *, error: Exception | None = None) -> None:
        self._items = streamed(items)
        self._error = error
        self.pulled = 0
        self.closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Thing:
        await asyncio.sleep(0)
        if self.closed or self.pulled == len(self._items):
            if self._error is not None and not self.closed:
                raise self._error
            raise StopAsyncIteration
        self.pulled += 1
        return self._items[self.pulled - 1]

    async def aclose(self) -> None:
        """End the stream."""
        self.closed = True


class Replies:
    """An Asker that gives what a function of the Ask gives, or canned text by prompt.

    `asks` are the calls in the order in which they came. The function may return text, or an
    Answer for one with a value; an exception is raised.
    """

    def __init__(self, replies: Mapping[str, str] | Callable[[Ask], Any]) -> None:
        self._replies = replies
        self.asks: list[Ask] = []

    async def __call__(self, ask: Ask, /) -> Answer:
        """Give the reply; its call id is made of all that names the call."""
        self.asks.append(ask)
        await asyncio.sleep(0)
        found = self._replies(ask) if callable(self._replies) else self._replies[str(ask.prompt)]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, Answer):
            return found
        call = f"{ask.thing_id}@{ask.stage_id}/{ask.number}.{ask.sample}"
        return Answer(text=str(found), call=call, model="testing:replies")


def streamed(items: Iterable[Any]) -> list[Thing]:
    """Give Things of a stream as they are, and everything else as it enters one."""
    given = list(items)
    if all(isinstance(item, Thing) and item.history for item in given):
        return given
    return list(entered(given))


def run_block(
    kind: str | BlockType[Any],
    items: Iterable[Any] | Source,
    params: Mapping[str, Any] | BaseModel | None = None,
    *,
    stage_id: str = "stage",
    wanted: int | None = None,
    batch: Mapping[str, Any] | Gather | None = None,
    width: int = 1,
    seed: int = 0,
    asker: Asker | None = None,
    notes: Notes | None = None,
) -> list[Thing]:
    """Give what a block, or the one of that name, makes of items; with `wanted` so many at most.

    Runs an event loop of its own. Raises RecipeError for params that do not fit, and what the
    stage raises.
    """
    kind = REGISTRY.find(kind) if isinstance(kind, str) else kind
    ctx = BlockContext(
        stage_id, seed=seed, width=width, asker=asker, notes=notes, clock=lambda: 0.0
    )
    source = items if isinstance(items, Source) else Source(items)
    given = kind.given(params, where=stage_id)
    gather = None if batch is None else params_of(Gather, batch, where=stage_id)

    async def run() -> list[Thing]:
        stage = run_stage(kind, source, given, ctx, batch=gather)
        made: list[Thing] = []
        try:
            while wanted is None or len(made) < wanted:
                made.append(await anext(stage))
        except StopAsyncIteration:
            pass
        finally:
            await stage.aclose()
        return made

    return asyncio.run(run())
