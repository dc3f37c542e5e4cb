"""Work: a planned recipe at work on a stream of Things, lazily, from the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from mergepoint.core.errors import RailError
from mergepoint.record.record import now
from mergepoint.streams.ask import Asker
from mergepoint.streams.context import BlockContext
from mergepoint.streams.flow.each import each
from mergepoint.streams.flow.mapped import mapped
from mergepoint.streams.notes import Notes, NotesInMemory
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.planner import Planner
from mergepoint.streams.rounds import rounds
from mergepoint.streams.stage import run_stage
from mergepoint.streams.stops import Stops
from mergepoint.streams.talk import Talker
from mergepoint.streams.thing import Thing

AskerOf = Callable[[PlannedStage], Asker | None]
TalkerOf = Callable[[PlannedStage], Talker | None]
Watch = Callable[[str, Thing], None]

_DEEP = 12  # stages that pull each other in one stack; Python's frames are not endless


class Work:
    """One run of a planned recipe: the contexts of its stages, and why it stopped.

    `asker_of` gives who answers a stage's calls, `talker_of` who runs its trees;
    `planner` plans what stages propose. A stage whose rail ends it gives what is finished and ends;
    those behind it go on with that. `watch` is told of each Thing that leaves a stage.
    """

    def __init__(
        self,
        planned: PlannedRecipe,
        asker_of: AskerOf,
        *,
        talker_of: TalkerOf = lambda stage: None,
        planner: Planner | None = None,
        seed: int = 0,
        notes: Notes | None = None,
        clock: Callable[[], float] = now,
        watch: Watch | None = None,
    ) -> None:
        self.planned = planned
        self.stops = Stops()
        self._asker_of = asker_of
        self._talker_of = talker_of
        self._planner = planner or Planner()
        self._seed = seed
        self._notes: Notes = NotesInMemory() if notes is None else notes
        self._clock = clock
        self._watch = watch
        self._contexts: dict[str, BlockContext] = {}

    def stream(self, items: AsyncIterator[Thing]) -> AsyncGenerator[Thing, None]:
        """Give what leaves the recipe. Nothing is pulled before it is asked for."""
        return self.through(self.planned, items)

    async def through(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        """Give what leaves a recipe at its place."""
        if planned.recipe.recurrent:
            stream = self._rounds(planned, items)
        elif planned.recipe.each:
            stream = self._each(planned, items)
        else:
            stream = self.once(planned.stages, items)
        async with aclosing(stream):
            async for thing in stream:
                yield thing

    def once(
        self, stages: tuple[PlannedStage | PlannedRecipe, ...], items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        """Give what comes out of stages, one after the other."""
        stream: Any = items
        for number, stage in enumerate(stages, 1):
            stream = (
                self.through(stage, stream)
                if isinstance(stage, PlannedRecipe)
                else self._followed(stage, self._railed(stage, stream))
            )
            if number % _DEEP == 0:  # a task of its own pulls what is above
                stream = mapped(stream, _itself, width=1, prefetch=1)
        return _each(stream)

    async def _railed(
        self, stage: PlannedStage, items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        ctx = self._context(stage)
        stream = run_stage(stage.kind, items, stage.params, ctx, batch=stage.batch)
        async with aclosing(stream):
            while True:
                try:
                    thing = await anext(stream)
                except StopAsyncIteration:
                    return
                except RailError as error:
                    self.stops.note(stage.stage_id, error)
                    return
                if self._watch is not None:
                    self._watch(stage.stage_id, thing)
                yield thing

    def _followed(
        self, stage: PlannedStage, items: AsyncGenerator[Thing, None]
    ) -> AsyncGenerator[Thing, None]:
        """Give what leaves a stage, after the stages that it proposed for each."""

        async def alone(thing: Thing) -> AsyncGenerator[Thing, None]:
            planned = self._planner.planned(stage, thing)
            if planned is None:
                yield thing
                return
            async with aclosing(self.through(planned, each([thing]))) as made:
                async for one in made:
                    yield one
            for inside in planned.blocks():
                self._contexts.pop(inside.stage_id, None)

        if not stage.kind.follows:
            return items
        return _each(mapped(items, alone, width=stage.width))

    def _each(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        def alone(thing: Thing) -> AsyncIterator[Thing]:
            return self.once(planned.stages, each([thing]))

        return _each(mapped(items, alone, width=planned.recipe.concurrency))

    def _rounds(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        """Give what leaves a recurrent recipe.

        Things that no stage takes together go around each on its own, so that one is finished
        before the next begins; else all of them do.
        """

        def body(stream: AsyncIterator[Thing]) -> AsyncIterator[Thing]:
            return self.once(planned.stages, stream)

        together = not planned.recipe.each and any(
            stage.barrier or stage.batch is not None or stage.kind.in_order
            for stage in planned.blocks()
        )
        if together:
            return self._all(planned, items, body)

        def alone(thing: Thing) -> AsyncIterator[Thing]:
            return rounds(planned, [thing], body, self.stops)

        return _each(mapped(items, alone, width=planned.recipe.concurrency))

    async def _all(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing], body: Any
    ) -> AsyncGenerator[Thing, None]:
        try:
            cohort = [thing async for thing in items]
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()
        if not cohort:
            return
        async with aclosing(rounds(planned, cohort, body, self.stops)) as made:
            async for thing in made:
                yield thing

    def _context(self, stage: PlannedStage) -> BlockContext:
        """Give the context of a stage, the same in all of its rounds."""
        known = self._contexts.get(stage.stage_id)
        if known is None:
            known = self._contexts[stage.stage_id] = BlockContext(
                stage.stage_id,
                seed=self._seed,
                width=stage.width,
                asker=self._asker_of(stage),
                talker=self._talker_of(stage),
                proposals=self._planner,
                notes=self._notes,
                clock=self._clock,
            )
        return known


async def _itself(thing: Thing) -> Thing:
    return thing


async def _each(stream: Any) -> AsyncGenerator[Thing, None]:
    async with aclosing(stream):
        async for thing in stream:
            yield thing
