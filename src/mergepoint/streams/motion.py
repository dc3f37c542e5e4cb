"""Motion: what moves in one run of a recipe, and the rails that end what does not, or too late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from mergepoint.models.landing import GRACE
from mergepoint.streams.link import Link
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.stops import Stopped, Stops

R = TypeVar("R")

SETTLES: Final = 1.0
"""Seconds after a deadline in which a block without a call in flight has to give what it has."""

_LOOKS = 4  # so often is looked while nothing moves


@dataclass(frozen=True, slots=True)
class Place:
    """What holds for a stage by the recipes around it: their prefixes, and for how long it waits.

    `deadlock` is the shortest that they set, `told` says that one of them did: the default is the
    run's, and gives way to what a recipe inside of it says of itself.
    """

    recipes: tuple[str, ...] = ()
    deadlock: float | None = None
    told: bool = False


def places(planned: PlannedRecipe, around: Place = Place()) -> Iterator[tuple[str, Place]]:
    """Give the place of a recipe and of everything in it, by stage id."""
    place = _inside(planned, around)
    yield planned.prefix, place
    for stage in planned.stages:
        if isinstance(stage, PlannedRecipe):
            yield from places(stage, place)
        else:
            yield stage.stage_id, place
            for inner in stage.inside:
                yield from places(inner, place)


def _inside(planned: PlannedRecipe, around: Place) -> Place:
    """Give the place of what is in a recipe: limits that were set bound all that is inside."""
    recipes, own = (*around.recipes, planned.prefix), planned.rails.deadlock
    told = "deadlock" in planned.rails.model_fields_set
    if told and not around.told:
        return Place(recipes, own, told)
    limits = [limit for limit in (around.deadlock, own) if limit is not None]
    return Place(recipes, min(limits, default=None), around.told)


class Motion:
    """Who waits for whom in one run, how many calls are in flight, and whether anything moves.

    A recipe's deadline counts from its first item. When it is over its stages make no new call,
    and its items end; calls in flight have a grace limit to land. Where nothing moves for the
    time of `deadlock`, no call is in flight and somebody asks for Things, those who wait for
    nobody are ended. What is ended is noted in the stops, and what is finished goes on.
    """

    def __init__(self, planned: PlannedRecipe, stops: Stops) -> None:
        self.stops = stops
        self.links: dict[Link, None] = {}
        self.calls = 0
        self.flying: Counter[str] = Counter()
        self.moves = 0
        self.read = True  # who reads the run may do something else meanwhile
        self._places: dict[str, Place] = dict(places(planned))
        self._root = self._places[planned.prefix]
        self._shortest = _shortest(self._places.values())
        self._until: dict[str, tuple[float, float]] = {}
        self._seen = (0, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._deadlines: dict[str, asyncio.TimerHandle] = {}

    def add(self, planned: PlannedRecipe) -> None:
        """Take in a recipe that was proposed: its limits hold, and those of who proposed it."""
        more = dict(places(planned, self.place(planned.prefix)))
        self._places |= more
        shorter = _shortest([*more.values(), Place(deadlock=self._shortest)])
        if shorter != self._shortest:
            self._shortest = shorter
            self._look_anew()

    def drop(self, planned: PlannedRecipe) -> None:
        """Forget a recipe that was proposed and is over."""
        for at, _ in places(planned):
            self._places.pop(at, None)
            self._until.pop(at, None)
            if (timer := self._deadlines.pop(at, None)) is not None:
                timer.cancel()

    def place(self, stage_id: str) -> Place:
        """Give the place of a stage; of one that is not known, that of the nearest around it."""
        at = stage_id
        while at and at not in self._places:
            at = at.rpartition(".")[0]
        return self._places.get(at, self._root)

    def begin(self, planned: PlannedRecipe) -> None:
        """Begin the time of a recipe, unless it has begun."""
        seconds = planned.rails.deadline
        if seconds is None or planned.prefix in self._until:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._until[planned.prefix] = (until, seconds)
        self._deadlines[planned.prefix] = loop.call_at(until, self._end_items, planned.prefix)

    def over(self, recipes: Iterable[str]) -> Stopped | None:
        """Give why nothing new may begin in a place, or None. It looks at the clock itself."""
        if not self._until:
            return None
        now = asyncio.get_running_loop().time()
        for prefix in recipes:
            until, seconds = self._until.get(prefix, (now + 1, 0.0))
            if now >= until:
                return Stopped(
                    "deadline",
                    f"{prefix}: {seconds:g} s since its first item are over; what is finished "
                    "comes out, and a longer deadline in its rails lets it go on",
                )
        return None

    def watch(self) -> None:
        """Look from now on whether anything moves."""
        if self._timer is None and (pause := self._pause()) is not None:
            loop = asyncio.get_running_loop()
            self._seen = (self.moves, loop.time())
            self._timer = loop.call_later(pause, self._look)

    def end(self) -> None:
        """Look no more."""
        for timer in (self._timer, *self._deadlines.values()):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._deadlines.clear()

    def _pause(self) -> float | None:
        """Give the seconds until the next look, None where nothing is looked for."""
        if self._until and self.over(self._until) is not None:
            return SETTLES / _LOOKS
        return None if self._shortest is None else self._shortest / _LOOKS

    def _end_items(self, prefix: str) -> None:
        """End the waiting for items of a recipe whose time is over."""
        if (why := self.over([prefix])) is None:
            return
        for link in [one for one in self.links if one.waits and one.begins == prefix]:
            link.cut(why)
        self._look_anew()

    def _look_anew(self) -> None:
        """Look after another time than was set."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.watch()

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        moves, since = self._seen
        waiting = [link for link in self.links if link.waits]
        if not self.read or self.moves != moves:
            self._seen = (self.moves, now)
        elif waiting:
            self._end_stuck(waiting, now, now - since)
        if waiting and (pause := self._pause()) is not None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _end_stuck(self, waiting: list[Link], now: float, still: float) -> None:
        for link in waiting:
            if not _waits_for_nobody(link, waiting):
                continue
            place = self.place(link.stage_id)
            if (why := self.over(place.recipes)) is not None:
                late = max(now - self._until[one][0] for one in place.recipes if one in self._until)
                if late >= GRACE or (not self.calls and still >= SETTLES):
                    link.cut(why)
            elif not self.calls and place.deadlock is not None and still >= place.deadlock:
                link.cut(Stopped("deadlock", self._told(link, waiting, still)))

    def _told(self, link: Link, waiting: list[Link], still: float) -> str:
        """Tell who waits for whom, from the reader to the one who waits for nobody."""
        chain, taker = [link.giver], _taker(link, waiting)
        while taker is not None and taker.giver not in chain:
            chain.append(taker.giver)
            taker = _taker(taker, waiting)
        chain.append(f"who reads {self._root.recipes[0]}")
        reader, *givers = reversed(chain)
        return (
            f"{reader} waits for {', which waits for '.join(givers)}, and nothing comes: for "
            f"{still:g} s nothing moved and no call was in flight; what is finished comes out, and "
            "`deadlock` in the rails sets the time (null: no limit)"
        )


class UnderWay:
    """The calls of one stage, as its run's motion counts them."""

    __slots__ = ("_motion", "_place", "_stage_id")

    def __init__(self, motion: Motion, stage_id: str) -> None:
        self._motion = motion
        self._place = motion.place(stage_id)
        self._stage_id = stage_id

    async def counted(self, call: Awaitable[R]) -> R:
        """Wait for a call. Raises Stopped where its time is over, before anything of it ran."""
        motion = self._motion
        if (why := motion.over(self._place.recipes)) is not None:
            close = getattr(call, "close", None)
            if close is not None:
                close()
            raise why
        motion.calls += 1
        motion.flying[self._stage_id] += 1
        try:
            return await call
        finally:
            motion.calls -= 1
            motion.flying[self._stage_id] -= 1
            motion.moves += 1


def _shortest(found: Iterable[Place]) -> float | None:
    return min((one.deadlock for one in found if one.deadlock is not None), default=None)


def _waits_for_nobody(link: Link, waiting: list[Link]) -> bool:
    """Say whether who gives by a link takes nothing now, and nothing inside of it does."""
    if isinstance(link.above, Link) and link.above.waits:
        return False
    inside = f"{link.giver}."
    return not any(other.giver.startswith(inside) for other in waiting)


def _taker(link: Link, waiting: list[Link]) -> Link | None:
    """Give who waits for what comes by a link: the next stage, or the recipe it is the last of."""
    for other in waiting:
        if other.above is link:
            return other
    around = [other for other in waiting if link.giver.startswith(f"{other.giver}.")]
    return max(around, key=lambda one: len(one.giver), default=None)
