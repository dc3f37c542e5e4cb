"""Work: a planned recipe at work on a stream of Things, lazily, from the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

from mergepoint.record.record import now
from mergepoint.streams.alone import Alone
from mergepoint.streams.ask import Asker
from mergepoint.streams.beside import beside
from mergepoint.streams.context import BlockContext
from mergepoint.streams.flow.each import each
from mergepoint.streams.flow.mapped import mapped
from mergepoint.streams.inside import Inside
from mergepoint.streams.link import Link
from mergepoint.streams.motion import Motion, UnderWay
from mergepoint.streams.notes import Notes, NotesInMemory
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.planner import Planner
from mergepoint.streams.rounds import Body, rounds
from mergepoint.streams.stage import run_stage
from mergepoint.streams.stops import Stops
from mergepoint.streams.talk import Talker
from mergepoint.streams.thing import Thing

AskerOf = Callable[[PlannedStage], Asker | None]
TalkerOf = Callable[[PlannedStage], Talker | None]
Watch = Callable[[str, Thing], None]

INSIDE = "its own"
_DEEP = 12  # stages that pull each other in one stack; Python's frames are not endless


class Work:
    """One run of a planned recipe: the contexts of its stages, and why it stopped.

    `asker_of` gives who answers a stage's calls, `talker_of` who runs its trees, `planner` plans
    what stages propose. A stage whose rail ends it gives what is finished and ends; those behind
    it go on with that. `watch` is told of each Thing that leaves a stage. `motion` knows who waits
    for whom, and ends what does not move or whose time is over.
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
        self.motion = Motion(planned, self.stops)
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
        return self._read(self.through(self.planned, self._entry(items)))

    def segment(
        self, stages: tuple[PlannedStage | PlannedRecipe, ...], items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        """Give what leaves some stages of the recipe, which may be all of it."""
        first = stages[0]
        if isinstance(first, PlannedRecipe) and first.stage_id == self.planned.stage_id:
            return self._read(self.through(first, self._entry(items)))
        return self._read(self.once(stages, self._entry(items)))

    async def _read(self, made: AsyncGenerator[Thing, None]) -> AsyncGenerator[Thing, None]:
        motion = self.motion
        try:
            async with aclosing(made) as stream:
                while True:
                    motion.read = True
                    try:
                        thing = await anext(stream)
                    except StopAsyncIteration:
                        return
                    finally:
                        motion.read = False
                    yield thing
        finally:
            motion.end()

    def through(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing], alone: Alone | None = None
    ) -> AsyncGenerator[Thing, None]:
        """Give what leaves a recipe at its place; an item may be `alone` in it."""
        if planned.recipe.recurrent:
            return self._rounds(planned, items, alone)
        if planned.recipe.each:
            return self._each(planned, items)
        return self.once(planned.stages, items, alone)

    def once(
        self,
        stages: tuple[PlannedStage | PlannedRecipe, ...],
        items: AsyncIterator[Thing],
        alone: Alone | None = None,
    ) -> AsyncGenerator[Thing, None]:
        """Give what comes out of stages, one after the other."""
        stream: Any = items
        for number, stage in enumerate(stages, 1):
            above = link = self._link(stage, stream, alone)
            stream = link
            if number % _DEEP == 0:  # a task of its own pulls what is above
                ahead = mapped(link, _itself, width=1, prefetch=1)
                stream = Link(
                    ahead, self.motion, giver=stage.stage_id, stage_id=stage.stage_id, above=above
                )
        return _each(stream)

    def _link(self, stage: PlannedStage | PlannedRecipe, items: Any, alone: Alone | None) -> Link:
        """Give what leaves a stage, and what passes it by, as a link of which its limits know."""
        if stage.where is None:
            return self._into(stage, items, alone, above=items, giver=stage.stage_id)
        at = stage.stage_id

        def into(entering: AsyncIterator[Thing]) -> Link:
            return self._into(stage, entering, alone, above=items, giver=f"{at}.{INSIDE}")

        both = beside(
            items, stage.where, into, stage_id=at, width=stage.width, together=stage.together
        )
        return Link(both, self.motion, giver=at, stage_id=at, above=items)

    def _into(
        self,
        stage: PlannedStage | PlannedRecipe,
        items: Any,
        alone: Alone | None,
        *,
        above: Any,
        giver: str,
    ) -> Link:
        """Give what a stage makes of items; `above` is the link that they come from."""
        at = stage.stage_id
        if isinstance(stage, PlannedRecipe):
            timed = stage.rails.deadline is not None
            given = self._entry(items, stage) if timed else items
            inside = self.through(stage, given, alone)
            over = given if timed else above
            return Link(inside, self.motion, giver=giver, stage_id=at, above=over)
        ctx = self._context(stage).within(alone)
        stream = run_stage(stage.kind, items, stage.params, ctx, batch=stage.batch)
        made = Link(stream, self.motion, giver=giver, stage_id=at, above=above, told=self._watch)
        if not stage.kind.follows:
            return made
        followed = self._followed(stage, made)
        return Link(followed, self.motion, giver=giver, stage_id=at, above=made)

    def _entry(self, items: Any, planned: PlannedRecipe | None = None) -> Link:
        """Give the items of a recipe, with which its time begins."""
        planned = planned or self.planned
        return Link(
            items,
            self.motion,
            giver=f"the items of {planned.prefix}",
            stage_id=planned.prefix,
            above=items,
            starts=planned,
        )

    def _followed(
        self, stage: PlannedStage, items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        """Give what leaves a stage, after the stages that it proposed for each."""

        async def alone(thing: Thing) -> AsyncGenerator[Thing, None]:
            planned = self._planner.planned(stage, thing)
            if planned is None:
                yield thing
                return
            with self._proposed(planned):
                async with aclosing(self.through(planned, each([thing]))) as made:
                    async for one in made:
                        yield one

        return _each(mapped(items, alone, width=stage.width))

    @contextmanager
    def _proposed(self, planned: PlannedRecipe) -> Iterator[None]:
        """Hold what was proposed to limits of its own while it runs, and forget it then."""
        self._planner.hold(planned)
        self.motion.add(planned)
        try:
            yield
        finally:
            self.motion.drop(planned)
            for stage in planned.blocks():
                self._contexts.pop(stage.stage_id, None)

    def _each(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        def one(thing: Thing) -> AsyncIterator[Thing]:
            return self.once(planned.stages, each([thing]), Alone(thing.id))

        return _each(mapped(items, one, width=planned.recipe.concurrency))

    def _rounds(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing], alone: Alone | None
    ) -> AsyncGenerator[Thing, None]:
        """Give what leaves a recurrent recipe.

        Things that no stage takes together go around each on its own, so that one is finished
        before the next begins; else all of them do.
        """
        if planned.together:
            return self._all(planned, items, self._body(planned, alone))

        def one(thing: Thing) -> AsyncIterator[Thing]:
            body = self._body(planned, Alone(thing.id))
            return rounds(planned, [thing], body, self.motion)

        return _each(mapped(items, one, width=planned.recipe.concurrency))

    def _body(self, planned: PlannedRecipe, alone: Alone | None) -> Body:
        return lambda stream: self.once(planned.stages, stream, alone)

    async def _all(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing], body: Body
    ) -> AsyncGenerator[Thing, None]:
        try:
            cohort = [thing async for thing in items]
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()
        if not cohort:
            return
        async with aclosing(rounds(planned, cohort, body, self.motion)) as made:
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
                proposals=self._planner.of(stage),
                notes=self._notes,
                clock=self._clock,
                under_way=UnderWay(self.motion, stage.stage_id),
                inner=self._inside(stage),
            )
        return known

    def _inside(self, stage: PlannedStage) -> Inside | None:
        if not stage.inside:
            return None
        ways = {inner.recipe.name: partial(self.through, inner) for inner in stage.inside}
        return Inside(stage_id=stage.stage_id, block=stage.kind.name, ways=ways, clock=self._clock)


async def _itself(thing: Thing) -> Thing:
    return thing


async def _each(stream: Any) -> AsyncGenerator[Thing, None]:
    async with aclosing(stream):
        async for thing in stream:
            yield thing
