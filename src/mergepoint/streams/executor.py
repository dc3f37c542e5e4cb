"""The executor of planned recipes: stages, rounds, and items that bypass a stage."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from mergepoint.aio.map import mapped
from mergepoint.aio.stream import from_iterable
from mergepoint.core.errors import BlockError, locate
from mergepoint.journal.call_records import now
from mergepoint.streams.block_context import (
    BlockContext,
    IsolatedItem,
    NestedStages,
    Notes,
    NotesInMemory,
    Trace,
    close,
)
from mergepoint.streams.conditions import Where, canonical, holds
from mergepoint.streams.model_calls import ModelClient, TreeRunner
from mergepoint.streams.params import DEADLOCK, StopReason, Stops
from mergepoint.streams.plan_proposals import Planner
from mergepoint.streams.prompting import ORIGIN
from mergepoint.streams.provenance import vocabulary
from mergepoint.streams.resolved_recipe import ROUND, PlannedRecipe, PlannedStage
from mergepoint.streams.stage_run import INPUT, run_stage
from mergepoint.streams.thing import Thing, stamp
from mergepoint.streams.watchdog import CallCounter, StageChannel, Watchdog

ENDED: Final = frozenset({"converged", "done", "stuck", "failed"})

# These props differ in every round, so they are ignored when looking for a fixed point.
_OF_ROUND: Final = frozenset({*ROUND, *ORIGIN})

Body = Callable[[AsyncIterator[Thing]], AsyncIterator[Thing]]


@dataclass(slots=True)
class _Progress:
    """Progress over the rounds of one cohort: its best score, and unchanged Things."""

    best: float | None = None
    since: int = 0
    seen: dict[str, str] = field(default_factory=dict)
    still: dict[str, int] = field(default_factory=dict)

    def round(self, things: Sequence[Thing]) -> None:
        """Record a round: whether the best score improved, and which Things didn't change."""
        scores = (_last_score(one) for one in things)
        numbers = [score for score in scores if isinstance(score, int | float)]
        best = max(numbers, default=None)
        if best is not None and (self.best is None or best > self.best):
            self.best, self.since = best, 0
        elif self.best is not None:
            self.since += 1
        for thing in things:
            told = {key: value for key, value in thing.props.items() if key not in _OF_ROUND}
            state = canonical([thing.content, told])
            same = self.seen.get(thing.id) == state
            self.still[thing.id] = self.still.get(thing.id, 0) + 1 if same else 0
            self.seen[thing.id] = state


async def rounds(
    planned: PlannedRecipe, items: Sequence[Thing], body: Body, watchdog: Watchdog
) -> AsyncGenerator[Thing, None]:
    """Yield each Thing of a cohort when its rounds end, with `iteration` and `stopped`.

    A Thing ends when its status is converged, done, stuck, or failed, when its prop `converged` is
    true, or when `until` holds. The rails end the others: `max_iterations`; `patience` rounds in
    which the cohort's best score didn't improve or the Thing didn't change; a budget; or a
    deadline.

    If a limit cuts a round short, a Thing leaves as the previous round finished it. A Thing that no
    stage had worked on is dropped: an input isn't a result.
    """
    rails = planned.rails
    progress, going = _Progress(), list(items)
    for number in range(1, rails.max_iterations + 1):
        left: list[Thing] = []
        came, stopped = set[str](), len(watchdog.stops.all)
        # Things that end are yielded during the round: waiting for the slowest would delay them.
        async with aclosing(_closing(body(from_iterable(going)))) as made:
            async for thing in made:
                came.update(_origins(thing))
                if reason := _over(thing, planned.until):
                    yield _leaves(planned, thing, number, reason)
                else:
                    left.append(thing)
        cut = _was_cut(planned, watchdog.stops.all[stopped:], number)
        ended: dict[str, str] = {}
        if left:
            progress.round(left)
            ended = _railed(left, number, planned, progress, watchdog)
        for thing in left:
            if reason := ended.get(thing.id, ""):
                yield _leaves(planned, thing, number, reason)
        for thing in going:
            if cut and thing.id not in came and _worked_on(thing):
                yield _leaves(planned, thing, number - 1, watchdog.stops.reason)
        going = [thing for thing in left if thing.id not in ended]
        if not going:
            return


def _was_cut(planned: PlannedRecipe, stops: Sequence[StopReason], number: int) -> bool:
    """Return whether a limit ended one of the recipe's stages in a round.

    In the first round, a deadlock doesn't count: the items that wait in the stage weren't refused.
    """
    own = [one for one in stops if f"{one.stage_id}.".startswith(f"{planned.prefix}.")]
    return any(number > 1 or stop.rail != DEADLOCK for stop in own)


def _origins(thing: Thing) -> Iterator[str]:
    """Yield the ids of a Thing and of everything that it was made from."""
    yield thing.id
    # Things that a stage replaced, such as the members of a vote, have come out as well.
    yield from thing.parents
    for entry in thing.history:
        yield entry.id
        yield from entry.parents


def _worked_on(thing: Thing) -> bool:
    """Return whether a stage has changed a Thing since it entered the run."""
    return any(entry.stage_id != INPUT for entry in thing.history)


def _last_score(thing: Thing) -> Any:
    """Return the latest score in the history, even if a later change of the content dropped it."""
    scores = (entry.added.get("score") for entry in reversed(thing.history))
    return next((score for score in scores if score is not None), None)


def _over(thing: Thing, until: Any) -> str:
    status = str(thing.props.get("status", ""))
    if status in ENDED:
        return status
    if thing.props.get("converged") is True:
        return "converged"
    return "until" if until is not None and holds(until, thing) else ""


def _railed(
    left: Sequence[Thing],
    number: int,
    planned: PlannedRecipe,
    progress: _Progress,
    watchdog: Watchdog,
) -> dict[str, str]:
    """Return why the rounds of Things end, by id; Things that continue have no entry."""
    rails = planned.rails
    everyone, stops = "", watchdog.stops
    # Rounds that never wait never give the deadline's timer a turn, so the clock is read here.
    if (
        not stops.all
        and (late := watchdog.over(watchdog.place(planned.prefix).recipes)) is not None
    ):
        stops.note(planned.prefix, late)
    if stops.all:
        everyone = stops.reason
    elif rails.patience is not None and progress.since >= rails.patience:
        everyone = "patience"
    elif number == rails.max_iterations:
        everyone = "max_iterations"
    if everyone:
        return {thing.id: everyone for thing in left}
    still = rails.patience or 1
    return {thing.id: "fixed point" for thing in left if progress.still[thing.id] >= still}


def _leaves(planned: PlannedRecipe, thing: Thing, number: int, reason: str) -> Thing:
    after = thing.plus(iteration=number, stopped=reason)
    ended = thing.history[-1].ended if thing.history else 0.0
    return stamp(
        thing,
        after,
        block=planned.recipe.name,
        stage_id=planned.stage_id,
        started=ended,
        ended=ended,
    )


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
    """Return a stage's results for Things that match a condition, and the other Things unchanged.

    A stage that works on single Things gets each in a stream of its own, at most `width`
    concurrently, and all leave in arrival order. A stage that works on Things `together` gets all
    matching Things as one stream. A Thing that bypasses it waits for the results of the Things
    before it, or until the stage ends.

    Raise BlockError as `holds` does.
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

    def isolated(thing: Thing) -> AsyncIterator[Thing]:
        return _closing(into(from_iterable([thing]))) if fits(thing) else from_iterable([thing])

    return mapped(items, isolated, width=width)


async def _together(
    items: AsyncIterator[Thing], fits: Callable[[Thing], bool], into: Into
) -> AsyncGenerator[Thing, None]:
    # The stage starts with the first matching Thing: items that bypass it before then leave without
    # waiting.
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
        # The stage has ended early; the remaining items still bypass it.
        async for thing in items:
            if not fits(thing):
                yield thing
    finally:
        await close(items)


class _Ways:
    """Positions of the Things that entered a stage and of those that bypass it."""

    def __init__(self, items: AsyncIterator[Thing], fits: Callable[[Thing], bool]) -> None:
        self._items = items
        self._fits = fits
        self._number = 0
        self._inside: dict[str, int] = {}
        self.passing: deque[tuple[int, Thing]] = deque()

    async def entering(self, first: Thing) -> AsyncGenerator[Thing, None]:
        """Yield the matching Things, and queue the Things that bypass the stage."""
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
        """Yield the queued Things that came before the origin of a result."""
        place = max(self._place(name) for name in (made.id, *made.parents))
        while self.passing and self.passing[0][0] < place:
            yield self.passing.popleft()[1]
        # Forget positions that can't be needed again, so that memory stays flat.
        for name in [name for name, number in self._inside.items() if number < place]:
            del self._inside[name]

    def _place(self, name: str) -> int:
        """Return the position of the item with an id or an ancestor of it; 0 if unknown."""
        while name and name not in self._inside:
            name = name.rpartition(".")[0]
        return self._inside.get(name, 0)


async def _closing(stream: AsyncIterator[Thing]) -> AsyncGenerator[Thing, None]:
    """Yield the Things of an iterator, and close it if it can be closed."""
    try:
        async for thing in stream:
            yield thing
    finally:
        await close(stream)


ClientOf = Callable[[PlannedStage], ModelClient | None]
TreeRunnerOf = Callable[[PlannedStage], TreeRunner | None]
Watch = Callable[[str, Thing], None]

# The suffix that tells a stage's own stream from the one with bypassing items, in stage ids.
INSIDE = "its own"
# Number of stages that pull each other in one stack: Python's frames are limited.
_DEEP = 12


class RecipeExecutor:
    """One run of a planned recipe: the contexts of its stages, and why it stopped.

    A stage that a rail ends returns its finished results, and the stages after it continue with
    them.

    Args:
        planned: The plan to run.
        client_of: Function that returns a stage's model client, or None.
        tree_runner_of: Function that returns a stage's tree runner, or None.
        planner: Planner for stages that the recipe proposes while it runs.
        seed: Seed for the stages' random numbers.
        notes: Storage for values that a resumed run must find again.
        clock: Function that returns seconds since the epoch.
        watch: Callback that receives each Thing that leaves a stage, with the stage id.
        trace: Counter of the Things that pass. Default: a new one.
    """

    def __init__(
        self,
        planned: PlannedRecipe,
        client_of: ClientOf,
        *,
        tree_runner_of: TreeRunnerOf = lambda stage: None,
        planner: Planner | None = None,
        seed: int = 0,
        notes: Notes | None = None,
        clock: Callable[[], float] = now,
        watch: Watch | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.planned = planned
        self.stops = Stops()
        self.watchdog = Watchdog(planned, self.stops)
        self._client_of = client_of
        self._tree_runner_of = tree_runner_of
        self._planner = planner or Planner()
        self._seed = seed
        self._notes: Notes = NotesInMemory() if notes is None else notes
        self._clock = clock
        self._watch = watch
        self._contexts: dict[str, BlockContext] = {}
        self._words = vocabulary().plus(*planned.words)
        self.trace = Trace() if trace is None else trace

    def stream(self, items: AsyncIterator[Thing]) -> AsyncGenerator[Thing, None]:
        """Return the results of the recipe as a lazy stream."""
        return self._read(self.through(self.planned, self._entry(items)))

    def segment(
        self, stages: tuple[PlannedStage | PlannedRecipe, ...], items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        """Return the results of some stages of the recipe, or of all of them."""
        first = stages[0]
        # The recipe is executed as a whole: `once` would treat it as nested in itself.
        if isinstance(first, PlannedRecipe) and first.stage_id == self.planned.stage_id:
            return self._read(self.through(first, self._entry(items)))
        return self._read(self.once(stages, self._entry(items)))

    async def _read(self, made: AsyncGenerator[Thing, None]) -> AsyncGenerator[Thing, None]:
        watchdog = self.watchdog
        try:
            async with aclosing(made) as stream:
                while True:
                    # While the consumer works on a result, nothing moves here, and that isn't a
                    # deadlock.
                    watchdog.read = True
                    try:
                        thing = await anext(stream)
                    except StopAsyncIteration:
                        return
                    finally:
                        watchdog.read = False
                    yield thing
        finally:
            watchdog.end()

    def through(
        self,
        planned: PlannedRecipe,
        items: AsyncIterator[Thing],
        isolated: IsolatedItem | None = None,
    ) -> AsyncGenerator[Thing, None]:
        """Return the results of a recipe at its place; `isolated` isolates an item's ids."""
        if planned.recipe.recurrent:
            return self._rounds(planned, items, isolated)
        if planned.recipe.each:
            return self._each(planned, items)
        return self.once(planned.stages, items, isolated)

    def once(
        self,
        stages: tuple[PlannedStage | PlannedRecipe, ...],
        items: AsyncIterator[Thing],
        isolated: IsolatedItem | None = None,
    ) -> AsyncGenerator[Thing, None]:
        """Return the results of several stages in sequence."""
        stream: Any = items
        for number, stage in enumerate(stages, 1):
            above = channel = self._channel(stage, stream, isolated)
            stream = channel
            # A task of its own pulls the stages before this one, which ends the stack of frames.
            if number % _DEEP == 0:
                ahead = mapped(channel, _itself, width=1, prefetch=1)
                # The map isn't a channel: without `above`, it would hide who waits for whom.
                stream = StageChannel(
                    ahead,
                    self.watchdog,
                    producer=stage.stage_id,
                    stage_id=stage.stage_id,
                    above=above,
                )
        return _closing(stream)

    def _channel(
        self, stage: PlannedStage | PlannedRecipe, items: Any, isolated: IsolatedItem | None
    ) -> StageChannel:
        """Return a stage's results and the Things that bypass it, as a channel with limits."""
        if stage.where is None:
            return self._into(stage, items, isolated, above=items, producer=stage.stage_id)
        at = stage.stage_id

        def into(entering: AsyncIterator[Thing]) -> StageChannel:
            # `entering` isn't a channel: with it, a stage that waits for items would look stuck.
            return self._into(stage, entering, isolated, above=items, producer=f"{at}.{INSIDE}")

        both = beside(
            items, stage.where, into, stage_id=at, width=stage.width, together=stage.together
        )
        return StageChannel(both, self.watchdog, producer=at, stage_id=at, above=items)

    def _into(
        self,
        stage: PlannedStage | PlannedRecipe,
        items: Any,
        isolated: IsolatedItem | None,
        *,
        above: Any,
        producer: str,
    ) -> StageChannel:
        """Return a stage's results; `above` is the channel that its items come from."""
        at = stage.stage_id
        if isinstance(stage, PlannedRecipe):
            timed = stage.rails.deadline is not None
            given = self._entry(items, stage) if timed else items
            inside = self.through(stage, given, isolated)
            over = given if timed else above
            return StageChannel(inside, self.watchdog, producer=producer, stage_id=at, above=over)
        ctx = self._context(stage).within(isolated)
        stream = run_stage(stage.kind, items, stage.params, ctx, batch=stage.batch)
        made = StageChannel(
            stream, self.watchdog, producer=producer, stage_id=at, above=above, told=self._watch
        )
        if not stage.kind.follows:
            return made
        followed = self._followed(stage, made)
        return StageChannel(followed, self.watchdog, producer=producer, stage_id=at, above=made)

    def _entry(self, items: Any, planned: PlannedRecipe | None = None) -> StageChannel:
        """Return the items of a recipe as a channel; its deadline starts with the first item."""
        planned = planned or self.planned
        return StageChannel(
            items,
            self.watchdog,
            producer=f"the items of {planned.prefix}",
            stage_id=planned.prefix,
            above=items,
            starts=planned,
        )

    def _followed(
        self, stage: PlannedStage, items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        """Return a stage's results after the stages that it proposed for each of them."""

        async def isolated(thing: Thing) -> AsyncGenerator[Thing, None]:
            planned = self._planner.planned(stage, thing)
            if planned is None:
                yield thing
                return
            with self._proposed(planned):
                async with aclosing(self.through(planned, from_iterable([thing]))) as made:
                    async for one in made:
                        yield one

        return _closing(mapped(items, isolated, width=stage.width))

    @contextmanager
    def _proposed(self, planned: PlannedRecipe) -> Iterator[None]:
        """Apply a proposal's own limits while it runs, and forget them afterwards."""
        self._planner.hold(planned)
        self.watchdog.add(planned)
        try:
            yield
        finally:
            self.watchdog.drop(planned)
            # Each proposal has stage ids of its own: keeping their contexts would leak memory.
            for stage in planned.blocks():
                self._contexts.pop(stage.stage_id, None)

    def _each(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing]
    ) -> AsyncGenerator[Thing, None]:
        def one(thing: Thing) -> AsyncIterator[Thing]:
            return self.once(planned.stages, from_iterable([thing]), IsolatedItem(thing.id))

        return _closing(mapped(items, one, width=planned.recipe.concurrency))

    def _rounds(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing], isolated: IsolatedItem | None
    ) -> AsyncGenerator[Thing, None]:
        """Return the results of a recurrent recipe.

        Unless a stage needs several Things together, each Thing has rounds of its own, so that one
        can finish before the next starts. Otherwise all Things go through the rounds together.
        """
        if planned.together:
            return self._all(planned, items, self._body(planned, isolated))

        def one(thing: Thing) -> AsyncIterator[Thing]:
            body = self._body(planned, IsolatedItem(thing.id))
            return rounds(planned, [thing], body, self.watchdog)

        return _closing(mapped(items, one, width=planned.recipe.concurrency))

    def _body(self, planned: PlannedRecipe, isolated: IsolatedItem | None) -> Body:
        return lambda stream: self.once(planned.stages, stream, isolated)

    async def _all(
        self, planned: PlannedRecipe, items: AsyncIterator[Thing], body: Body
    ) -> AsyncGenerator[Thing, None]:
        async with aclosing(_closing(items)) as entering:
            cohort = [thing async for thing in entering]
        if not cohort:
            return
        async with aclosing(rounds(planned, cohort, body, self.watchdog)) as made:
            async for thing in made:
                yield thing

    def _context(self, stage: PlannedStage) -> BlockContext:
        """Return the context of a stage, which stays the same across rounds."""
        known = self._contexts.get(stage.stage_id)
        # With a new context per round, `next_id` would start again and repeat ids.
        if known is None:
            known = self._contexts[stage.stage_id] = BlockContext(
                stage.stage_id,
                seed=self._seed,
                width=stage.width,
                client=self._client_of(stage),
                tree_runner=self._tree_runner_of(stage),
                proposals=self._planner.of(stage),
                notes=self._notes,
                clock=self._clock,
                call_counter=CallCounter(self.watchdog, stage.stage_id),
                inner=self._inside(stage),
                words=self._words,
            )
            known.trace = self.trace
        return known

    def _inside(self, stage: PlannedStage) -> NestedStages | None:
        if not stage.inside:
            return None
        ways = {inner.recipe.name: partial(self.through, inner) for inner in stage.inside}
        return NestedStages(
            stage_id=stage.stage_id,
            block=stage.kind.name,
            ways=ways,
            clock=self._clock,
            words=self._words,
        )


async def _itself(thing: Thing) -> Thing:
    return thing
