"""Tools for testing blocks: a counting source, canned replies, and running a single block.

def test_the_majority_wins() -> None:
    (winner,) = run_block("vote", ["yes", "no", "yes"])
    assert winner.content == "yes"
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel

from mergepoint.models.event_loop import run_sync
from mergepoint.streams.block_context import BlockContext, Notes
from mergepoint.streams.grouping import Gather
from mergepoint.streams.params import params_of
from mergepoint.streams.protocols import Asker, ModelAnswer, ModelRequest, Unfitting
from mergepoint.streams.registry import REGISTRY, BlockType
from mergepoint.streams.stage import entered, run_stage
from mergepoint.streams.thing import Thing


class Source:
    """A stream that counts its `pulled` items, and records whether it was `closed`.

    Things with a history are passed on unchanged; other items enter the stream as inputs. With
    `error`, the stream raises it at its end.
    """

    def __init__(self, items: Iterable[Any], *, error: Exception | None = None) -> None:
        self._items = streamed(items)
        self._error = error
        self.pulled = 0
        self.closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Thing:
        # A real source suspends; without this, tests would miss races.
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
    """A model client with canned replies, by prompt or from a function of the request.

    `asks` are the requests in order. The function can return text or a ModelAnswer; an exception is
    raised.
    """

    def __init__(self, replies: Mapping[str, str] | Callable[[ModelRequest], Any]) -> None:
        self._replies = replies
        self.asks: list[ModelRequest] = []

    async def __call__(self, ask: ModelRequest, /) -> ModelAnswer:
        """Return the reply; its call id contains everything that identifies the call."""
        self.asks.append(ask)
        await asyncio.sleep(0)
        found = self._replies(ask) if callable(self._replies) else self._replies[str(ask.prompt)]
        if isinstance(found, Exception):
            raise found
        if not isinstance(found, ModelAnswer):
            # The id depends on the request only, so that it is the same for any order of calls.
            call = f"{ask.thing_id}@{ask.stage_id}/{ask.number}.{ask.sample}"
            found = ModelAnswer(text=str(found), call=call, model="testing:replies")
        if ask.check is not None and (problem := ask.check(found.text, found.value)) is not None:
            raise Unfitting(problem)
        return found


def streamed(items: Iterable[Any]) -> list[Thing]:
    """Return Things with a history unchanged, and other items as stream inputs."""
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
    """Return a block's results for items.

    `kind` is a block or its name, `wanted` the maximum number of results, `asker` the model
    client, such as Replies. Raise RecipeError for invalid params, and the errors of the stage.
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

    return run_sync(run())
