"""Beside: Things for which a stage's condition does not hold pass it by, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from mergepoint.core.errors import locate
from mergepoint.streams.arrivals import close
from mergepoint.streams.block_error import BlockError
from mergepoint.streams.flow.each import each
from mergepoint.streams.flow.mapped import mapped
from mergepoint.streams.thing import Thing
from mergepoint.streams.where import Where, holds

Into = Callable[[AsyncIterator[Thing]], AsyncIterator[Thing]]


def beside(
    items: AsyncIterator[Thing],
    where: Where,
    into: Into,
    *,
    stage_id: str,
    width: int,
    together: bool,
) -> AsyncIterator[Thing]:
    """Give what a stage makes of Things for which a condition holds, and the others as they are.

    A stage that takes Things one by one gets each on its own, at most `width` at once, and all
    leave in the order in which they came. One that takes them `together` gets those that are its
    own as one stream: what passes by waits for what the stage makes of Things before it, and goes
    on when the stage has ended.

    Raises BlockError as `holds` does.
    """

    def fits(thing: Thing) -> bool:
        try:
            return holds(where, thing)
        except BlockError as error:
            error.stage_id, error.block = stage_id, "where"
            locate(error, stage_id, kind="where", name="where")
            raise

    if together:
        return _together(items, fits, into)

    def alone(thing: Thing) -> AsyncIterator[Thing]:
        return _closing(into(each([thing]))) if fits(thing) else each([thing])

    return mapped(items, alone, width=width)


async def _together(
    items: AsyncIterator[Thing], fits: Callable[[Thing], bool], into: Into
) -> AsyncGenerator[Thing, None]:
    ways = _Ways(items, fits)
    try:
        first = None
        async for thing in items:
            if fits(thing):
                first = thing
                break
            yield thing
        if first is None:
            return
        made: Any = into(ways.entering(first))
        async with aclosing(made):
            async for thing in made:
                for passing in ways.before(thing):
                    yield passing
                yield thing
        for _, passing in ways.passing:
            yield passing
        async for thing in items:  # the stage wants no more; the others are not its to end
            if not fits(thing):
                yield thing
    finally:
        await close(items)


class _Ways:
    """Which Things went in and which pass by, counted in the order in which they came."""

    def __init__(self, items: AsyncIterator[Thing], fits: Callable[[Thing], bool]) -> None:
        self._items = items
        self._fits = fits
        self._number = 0
        self._inside: dict[str, int] = {}
        self.passing: deque[tuple[int, Thing]] = deque()

    async def entering(self, first: Thing) -> AsyncGenerator[Thing, None]:
        """Give what goes in, and keep what passes by."""
        self._inside[first.id] = self._number
        yield first
        async for thing in self._items:
            self._number += 1
            if self._fits(thing):
                self._inside[thing.id] = self._number
                yield thing
            else:
                self.passing.append((self._number, thing))

    def before(self, made: Thing) -> Iterable[Thing]:
        """Give what came before that which a Thing was made of."""
        place = max(self._place(name) for name in (made.id, *made.parents))
        while self.passing and self.passing[0][0] < place:
            yield self.passing.popleft()[1]
        for name in [name for name, number in self._inside.items() if number < place]:
            del self._inside[name]

    def _place(self, name: str) -> int:
        """Give the number of the item that an id is, or is below of; 0 for an unknown one."""
        while name and name not in self._inside:
            name = name.rpartition(".")[0]
        return self._inside.get(name, 0)


async def _closing(stream: AsyncIterator[Thing]) -> AsyncGenerator[Thing, None]:
    try:
        async for thing in stream:
            yield thing
    finally:
        await close(stream)
