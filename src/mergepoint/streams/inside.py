"""Inside: stages that a block was given among its params, run from within it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from mergepoint.streams.alone import Alone
from mergepoint.streams.flow.each import each
from mergepoint.streams.thing import Thing, stamp

Through = Callable[[AsyncIterator[Thing], Alone | None], AsyncGenerator[Thing, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The ways through the stages inside of one stage, by name."""

    stage_id: str
    block: str
    ways: Mapping[str, Through]
    clock: Callable[[], float]

    async def through(
        self,
        name: str,
        things: Sequence[Thing],
        alone: Alone | None,
        add: Callable[[Thing, float], Any],
    ) -> AsyncGenerator[Thing, None]:
        """Give what leaves the stages with a name; what the block made enters them stamped.

        `add` is told of what enters and leaves, and when: all of it is the block's to go on with.
        """
        entering = [self._entered(thing) for thing in things]
        async with aclosing(self.ways[name](each(entering), alone)) as made:
            async for thing in made:
                add(thing, self.clock())
                yield thing

    def _entered(self, thing: Thing) -> Thing:
        before = thing if thing.made is None else thing.base
        moment = self.clock()
        return stamp(
            before,
            thing,
            block=self.block,
            stage_id=self.stage_id,
            started=moment,
            ended=moment,
        )
