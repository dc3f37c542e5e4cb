"""The watchdog of a recipe run: deadlines, deadlocks, and the channels between stages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from mergepoint.core.errors import RailError
from mergepoint.models.timeouts import GRACE
from mergepoint.streams.block_context import close
from mergepoint.streams.params import DEADLOCK, Stops, TimeLimitStop
from mergepoint.streams.resolved_recipe import PlannedRecipe
from mergepoint.streams.thing import Thing


class StageChannel:
    """A channel that passes Things from a stage, or the recipe's items, to the consumer.

    A rail that ends the producer ends the channel and is recorded. While a consumer waits, the
    channel can be cut.

    Attributes:
        above: The channel from which the producer pulls.
        producer: Id of the producer.
        stage_id: Id of the stage to which stops are attributed.
        starts: Recipe whose deadline starts with the first Thing.
        begins: Prefix of that recipe, or "".
    """

    __slots__ = (
        "_before",
        "_cuts",
        "_stream",
        "_task",
        "_told",
        "_watchdog",
        "_why",
        "above",
        "begins",
        "producer",
        "stage_id",
        "starts",
    )

    def __init__(
        self,
        stream: AsyncIterator[Thing],
        watchdog: Watchdog,
        *,
        producer: str,
        stage_id: str,
        above: Any = None,
        starts: PlannedRecipe | None = None,
        told: Callable[[str, Thing], None] | None = None,
    ) -> None:
        self.producer = producer
        self.stage_id = stage_id
        self.above = above
        self.starts = starts
        self.begins = "" if starts is None else starts.prefix
        self._stream = stream
        self._watchdog = watchdog
        self._told = told
        self._task: asyncio.Task[Any] | None = None
        self._why: TimeLimitStop | None = None
        self._before = 0
        self._cuts = 0

    @property
    def waits(self) -> bool:
        """Return whether a consumer waits for the next Thing."""
        return self._task is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Thing:
        watchdog = self._watchdog
        watchdog.channels[self] = None
        if watchdog.timer is None:
            watchdog.watch()
        # The count of pending cancellations tells a cut from a cancellation by someone else, as
        # asyncio.timeout does.
        self._task = task = asyncio.current_task()
        self._before = 0 if task is None else task.cancelling()
        late = watchdog.over((self.begins,)) if watchdog.until and self.begins else None
        # Look once before cutting: if the stream has ended, that isn't a stop.
        if late is not None:
            asyncio.get_running_loop().call_soon(self.cut, late)
        try:
            thing = await anext(self._stream)
        except BaseException as error:
            watchdog.channels.pop(self, None)
            stopped = self._stopped_by(error)
            if stopped is None:
                raise
            watchdog.stops.note(self.stage_id, stopped)
            raise StopAsyncIteration from None
        finally:
            # A cut that arrived after the result must be undone, or the next await would be
            # cancelled.
            if self._cuts:
                self._undo_cuts()
            self._task = None
            watchdog.moves += 1
        # An item was there after the deadline, so something is cut off: that is a stop.
        if late is not None:
            watchdog.channels.pop(self, None)
            watchdog.stops.note(self.stage_id, late)
            await close(self._stream)
            raise StopAsyncIteration
        if self.starts is not None:
            watchdog.begin(self.starts)
        if self._told is not None:
            self._told(self.stage_id, thing)
        return thing

    async def aclose(self) -> None:
        """Close the producer."""
        self._watchdog.channels.pop(self, None)
        await close(self._stream)

    def cut(self, why: TimeLimitStop) -> None:
        """Cancel the producer if a consumer waits for it, as a timeout would; may be repeated."""
        if self._task is not None:
            self._why = why
            # A block that swallows its cancellation is cut again; every cut has to be undone.
            self._cuts += 1
            self._task.cancel()

    def _stopped_by(self, error: BaseException) -> RailError | None:
        """Return the rail that caused an error: it was raised, or this channel was cut."""
        if isinstance(error, RailError):
            return error
        task, why = self._task, self._why
        if why is None or task is None or not isinstance(error, asyncio.CancelledError):
            return None
        self._undo_cuts()
        # More cancellations than cuts: someone else cancelled the task too, which must not be lost.
        return why if task.cancelling() <= self._before else None

    def _undo_cuts(self) -> None:
        task, cuts = self._task, self._cuts
        self._task = self._why = None
        self._cuts = 0
        if task is not None:
            for _ in range(cuts):
                task.uncancel()


SETTLING_TIME: Final = 1.0
"""Seconds after a deadline in which a block without a call in progress can still finish."""

# Checks per deadlock interval: the watchdog fires at most a quarter late.
_CHECKS = 4


@dataclass(frozen=True, slots=True)
class StageLimits:
    """The limits that enclosing recipes set for a stage.

    `recipes` are their prefixes. `deadlock` is the shortest interval that they set, and `told`
    whether one of them set it: the run's default yields to a nested recipe's own value.
    """

    recipes: tuple[str, ...] = ()
    deadlock: float | None = None
    told: bool = False


def places(
    planned: PlannedRecipe, around: StageLimits = StageLimits()
) -> Iterator[tuple[str, StageLimits]]:
    """Yield the limits of a recipe and of everything in it, by stage id."""
    place = _inside(planned, around)
    yield planned.prefix, place
    for stage in planned.stages:
        if isinstance(stage, PlannedRecipe):
            yield from places(stage, place)
        else:
            yield stage.stage_id, place
            for inner in stage.inside:
                yield from places(inner, place)


def _inside(planned: PlannedRecipe, around: StageLimits) -> StageLimits:
    """Return the limits inside a recipe: explicit limits bound everything nested."""
    recipes, own = (*around.recipes, planned.prefix), planned.rails.deadlock
    told = "deadlock" in planned.rails.model_fields_set
    if told and not around.told:
        return StageLimits(recipes, own, told)
    limits = [limit for limit in (around.deadlock, own) if limit is not None]
    return StageLimits(recipes, min(limits, default=None), around.told)


class Watchdog:
    """Watches one run: waiting consumers, calls in progress, and whether anything moves.

    A recipe's deadline counts from its first item. After it, the recipe's stages make no new calls
    and receive no items, and calls in progress have a grace period to finish. If nothing moves for
    the `deadlock` interval, no call is in progress, and a consumer waits, then the channels at the
    end of the waiting chain are cut. Every cut is recorded in the stops, and finished results are
    passed on.
    """

    def __init__(self, planned: PlannedRecipe, stops: Stops) -> None:
        self.stops = stops
        # An ordered set: channels hash by address, so the order in a set would differ per run.
        self.channels: dict[StageChannel, None] = {}
        self.calls = 0
        self.in_progress: Counter[str] = Counter()
        self.moves = 0
        # False while the run's consumer does something else: waiting for it isn't a deadlock.
        self.read = True
        self._places: dict[str, StageLimits] = dict(places(planned))
        self._root = self._places[planned.prefix]
        self._shortest = _shortest(self._places.values())
        # By recipe: the time of its deadline, and the seconds from its first item to then.
        self.until: dict[str, tuple[float, float]] = {}
        self._seen = (0, 0.0)
        self.timer: asyncio.TimerHandle | None = None
        self._deadlines: dict[str, asyncio.TimerHandle] = {}

    def add(self, planned: PlannedRecipe) -> None:
        """Add a proposed recipe: its own limits apply, and those of the stage that proposed it."""
        more = dict(places(planned, self.place(planned.prefix)))
        self._places |= more
        shorter = _shortest([*more.values(), StageLimits(deadlock=self._shortest)])
        if shorter != self._shortest:
            self._shortest = shorter
            self._restart_checks()

    def drop(self, planned: PlannedRecipe) -> None:
        """Forget a proposed recipe that has ended."""
        # The shortest interval stays: checks are then more frequent, but limits are the same.
        for at, _ in places(planned):
            self._places.pop(at, None)
            self.until.pop(at, None)
            if (timer := self._deadlines.pop(at, None)) is not None:
                timer.cancel()

    def place(self, stage_id: str) -> StageLimits:
        """Return the limits of a stage; for an unknown stage, those of its nearest ancestor."""
        at = stage_id
        while at and at not in self._places:
            at = at.rpartition(".")[0]
        return self._places.get(at, self._root)

    def begin(self, planned: PlannedRecipe) -> None:
        """Start the deadline of a recipe, unless it has started."""
        seconds = planned.rails.deadline
        if seconds is None or planned.prefix in self.until:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self.until[planned.prefix] = (until, seconds)
        self._deadlines[planned.prefix] = loop.call_at(until, self._end_items, planned.prefix)

    def over(self, recipes: Iterable[str]) -> TimeLimitStop | None:
        """Return why nothing new may start in these recipes, or None.

        The clock is read here, because timers are late while the event loop is busy.
        """
        if not self.until:
            return None
        now = asyncio.get_running_loop().time()
        for prefix in recipes:
            until, seconds = self.until.get(prefix, (now + 1, 0.0))
            if now >= until:
                return TimeLimitStop(
                    "deadline",
                    f"{prefix}: its deadline of {seconds:g} s since the first item has passed; "
                    "finished results are returned; for more time, raise deadline in its rails",
                )
        return None

    def watch(self) -> None:
        """Start checking whether anything moves, if a limit applies."""
        if (pause := self._pause()) is not None:
            loop = asyncio.get_running_loop()
            self._seen = (self.moves, loop.time())
            self.timer = loop.call_later(pause, self._check)

    def end(self) -> None:
        """Stop checking."""
        for timer in (self.timer, *self._deadlines.values()):
            if timer is not None:
                timer.cancel()
        self.timer = None
        self._deadlines.clear()

    def _pause(self) -> float | None:
        """Return the seconds until the next check, or None if no limit applies."""
        if self.until and self.over(self.until) is not None:
            return SETTLING_TIME / _CHECKS
        return None if self._shortest is None else self._shortest / _CHECKS

    def _end_items(self, prefix: str) -> None:
        """Cut the channels that wait for items of a recipe whose deadline has passed."""
        if (why := self.over([prefix])) is None:
            return
        for channel in [one for one in self.channels if one.waits and one.begins == prefix]:
            channel.cut(why)
        self._restart_checks()

    def _restart_checks(self) -> None:
        """Check at another interval than before."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.watch()

    def _check(self) -> None:
        self.timer = None
        now = asyncio.get_running_loop().time()
        moves, since = self._seen
        waiting = [channel for channel in self.channels if channel.waits]
        if not self.read or self.moves != moves:
            self._seen = (self.moves, now)
        elif waiting:
            self._end_stuck(waiting, now, now - since)
        # If nobody waits, the timer stops; the next request starts it again through `watch`.
        if waiting and (pause := self._pause()) is not None:
            self.timer = asyncio.get_running_loop().call_later(pause, self._check)

    def _end_stuck(self, waiting: list[StageChannel], now: float, still: float) -> None:
        for channel in waiting:
            if not _ends_chain(channel, waiting):
                continue
            place = self.place(channel.stage_id)
            if (why := self.over(place.recipes)) is not None:
                late = max(now - self.until[one][0] for one in place.recipes if one in self.until)
                # A call in progress has the grace period, because it may be paid for already.
                if late >= GRACE or (not self.calls and still >= SETTLING_TIME):
                    channel.cut(why)
            elif not self.calls and place.deadlock is not None and still >= place.deadlock:
                channel.cut(TimeLimitStop(DEADLOCK, self._told(channel, waiting, still)))

    def _told(self, channel: StageChannel, waiting: list[StageChannel], still: float) -> str:
        """Return the chain of waiting stages as text, from the consumer to its end."""
        chain, consumer = [channel.producer], _consumer(channel, waiting)
        while consumer is not None and consumer.producer not in chain:
            chain.append(consumer.producer)
            consumer = _consumer(consumer, waiting)
        chain.append(f"the consumer of {self._root.recipes[0]}")
        reader, *producers = reversed(chain)
        return (
            f"{reader} waits for {', which waits for '.join(producers)}, without progress: for "
            f"{still:g} s nothing moved and no call was in progress; finished results are "
            "returned; set `deadlock` in the rails to another time, or to null for no limit"
        )


class CallCounter:
    """Context of one stage's calls, which the watchdog counts while they are in progress.

    Raise TimeLimitStop before a call starts if its time is over.
    """

    __slots__ = ("_place", "_stage_id", "_watchdog")

    def __init__(self, watchdog: Watchdog, stage_id: str) -> None:
        self._watchdog = watchdog
        self._place = watchdog.place(stage_id)
        self._stage_id = stage_id

    def __enter__(self) -> None:
        watchdog = self._watchdog
        if watchdog.until and (why := watchdog.over(self._place.recipes)) is not None:
            raise why
        watchdog.calls += 1
        watchdog.in_progress[self._stage_id] += 1

    def __exit__(self, *_: object) -> None:
        watchdog = self._watchdog
        watchdog.calls -= 1
        watchdog.in_progress[self._stage_id] -= 1
        watchdog.moves += 1


def _shortest(found: Iterable[StageLimits]) -> float | None:
    return min((one.deadlock for one in found if one.deadlock is not None), default=None)


def _ends_chain(channel: StageChannel, waiting: list[StageChannel]) -> bool:
    """Return whether a channel's producer, and everything nested in it, waits for nothing."""
    if isinstance(channel.above, StageChannel) and channel.above.waits:
        return False
    # With the dot, because the channel itself is among those that wait.
    inside = f"{channel.producer}."
    return not any(other.producer.startswith(inside) for other in waiting)


def _consumer(channel: StageChannel, waiting: list[StageChannel]) -> StageChannel | None:
    """Return the channel that waits for a channel: the next stage's, or the enclosing recipe's."""
    for other in waiting:
        if other.above is channel:
            return other
    around = [other for other in waiting if channel.producer.startswith(f"{other.producer}.")]
    return max(around, key=lambda one: len(one.producer), default=None)
