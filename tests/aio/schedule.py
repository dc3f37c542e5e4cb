"""Schedules: by number, watched stages that are put together, and what goes wrong in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeVar

from tests.aio.laws import Expected, Laws, Told
from tests.aio.oracle import MIXES, Missed, Oracle, first, heavy, in_batches, noting
from tests.aio.parts import Faults, Item, Source, Waits, Watched, Work, now

from mergepoint.aio.combine import Order, batched, merged, teed
from mergepoint.aio.map import Stop, mapped

T = TypeVar("T")


@dataclass(frozen=True)
class Made:
    """A watched stream, and what it is expected to give; `flat` where it comes in batches."""

    stream: Watched
    oracle: Oracle
    flat: bool = False


@dataclass(frozen=True)
class Plan:
    """How a stream is read."""

    wants: int | None  # it is closed after so many
    drops: bool  # then it is not closed, but forgotten
    cancels: tuple[int, ...]  # the reader is cancelled before these steps
    waits: Waits


@dataclass
class Schedule:
    """What is drawn from a seed."""

    seed: int
    laws: Laws = field(default_factory=Laws)
    sources: list[Source] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    landing: list[Work] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    loose: bool = False
    hangs: bool = False
    interrupts: bool = False
    drops: bool = False

    def __post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311  (no secret)
        self.exits: list[Made] = []
        self.plans: list[Plan] = []

    def build(self) -> None:
        """Put the stages together; nothing is asked yet."""
        self.exits = self._exits()
        self.plans = [self._plan() for _ in self.exits]

    @property
    def cleaning(self) -> set[str]:
        """Return the errors that come of cleaning up."""
        told = {"closing"} if any(one.faults.closing for one in self.sources) else set()
        return told | {"cleaning up" for one in self.works if one.faults.closing}

    def expected(self, made: Made) -> Expected:
        """Work out what an exit gives."""
        results: list[Any] = []
        errors: list[str] = []
        try:
            results += made.oracle(errors if self.loose else None)
        except Told as error:
            errors.append(str(error))
        return Expected(tuple(results), tuple(errors), self.loose)

    # drawing

    def _chance(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    def _pick(self, *options: T) -> T:
        return self._random.choice(options)

    def _waits(self) -> Waits:
        return self._pick((None,), (None, 0), (0,), (None, 0, 1, 5), (1,), (0.1, 2, 9))

    def _faults(self, among: int = 8) -> Faults:
        kind = self._pick("fails", "fails", "hangs", *[""] * 5)
        if self._chance(1):
            kind = "interrupts"
        self.hangs |= kind == "hangs"
        self.interrupts |= kind == "interrupts"
        return Faults(
            **({kind: self._random.randrange(among)} if kind else {}),
            closing=self._chance(6),
            stubborn=self._chance(10),
            deaf=self._chance(5),
        )

    def _plan(self) -> Plan:
        cancels = [self._random.randrange(120) for _ in range(self._pick(0, 0, 0, 1, 1, 2))]
        wants = self._random.randrange(8) if self._chance(30) else None
        drops = bool(wants) and not (self.hangs or cancels) and self._chance(25)
        self.drops |= drops
        return Plan(wants, drops, tuple(sorted(cancels)), self._waits())

    # putting together

    def _exits(self) -> list[Made]:
        shape = self._pick("chain", "chain", "chain", "merge", "tee")
        if shape == "merge":
            return [self._last(self._merge())]
        made = self._stages(self._source())
        if shape == "tee":
            return [self._last(one) for one in self._tee(made)]
        return [self._last(made)]

    def _watch(self, name: str, stream: Any) -> Watched:
        self.watched.append(Watched(f"{name} {len(self.watched)}", stream, self.laws))
        return self.watched[-1]

    def _source(self, number: int = 0) -> Made:
        count = self._pick(0, 1, 2, 3, 5, 8, 12)
        items = [(position, number) for position in range(count)]
        source = Source(items, self._faults(count + 1), self._waits())
        self.sources.append(source)

        def oracle(missed: Missed) -> Iterator[Item]:
            return noting(source.expected(), missed)

        return Made(self._watch("source", source.stream()), oracle)

    def _stages(self, made: Made, *, most: int = 3) -> Made:
        for _ in range(self._random.randrange(most + 1)):
            made = self._mapped(made)
        return made

    def _mapped(self, made: Made) -> Made:
        before, laws = made.stream, self.laws
        width, prefetch = self._pick(1, 1, 2, 3, 4, 16), self._pick(0, 0, 0, 1, 2, 5)
        limit = width + prefetch
        ordered = limit == 1 or self._chance(75)
        self.loose |= not ordered
        work = Work(
            f"work {len(self.works)}",
            self._chance(35),
            self._faults(),
            self._waits(),
            width=width,
            ordered=ordered,
            laws=laws,
        )
        self.works.append(work)
        before.on_given.append(work.arrived.append)
        stop: Stop = self._pick("cancel", "cancel", "land")
        if stop == "land":
            self.landing.append(work)
        function = work.function(disguised=self._chance(30))
        stream = mapped(
            before, function, width=width, prefetch=prefetch, ordered=ordered, stop=stop
        )
        after = self._watch(work.name, stream)

        def held(_: object) -> None:
            ahead = work.calls["made"] if work.many else before.given
            laws.hold("held", holds=ahead - after.given <= limit, told=f"{ahead} at {work.name}")
            if limit == 1:
                holds = after.asked >= ahead
                laws.hold("lazy", holds=holds, told=f"{work.name}: {ahead} of {after.asked} asked")

        (work.on_made if work.many else before.on_given).append(held)

        def oracle(missed: Missed) -> Iterator[Item]:
            for item in made.oracle(missed):
                yield from noting(work.expected(item), missed)

        return Made(after, oracle)

    def _merge(self) -> Made:
        lanes = [
            self._stages(self._source(number), most=1) for number in range(self._pick(1, 2, 3))
        ]
        order: Order | None = self._pick("arrival", "turns", "declared", None)
        prefetch = self._pick(0, 0, 2)
        streams = [lane.stream for lane in lanes]
        key = None if order else first
        stream = merged(*streams, order=order or "arrival", key=key, prefetch=prefetch)
        self.loose |= order == "arrival"
        after = self._watch("merged", stream)
        taken = [0] * len(lanes)

        def take(item: Item) -> None:
            taken[item[1]] += 1

        def held(number: int, _: object) -> None:
            ahead = streams[number].given - taken[number]
            self.laws.hold("held", holds=ahead <= 1 + prefetch, told=f"{ahead} in lane {number}")

        after.on_given.append(take)
        for number, lane in enumerate(streams):
            lane.on_given.append(partial(held, number))
        mix = MIXES[order]
        return Made(after, lambda missed: mix([lane.oracle(missed) for lane in lanes]))

    def _tee(self, made: Made) -> list[Made]:
        prefetch = self._pick(0, 0, 3)
        before = made.stream
        ends = [
            self._watch("reader", stream)
            for stream in teed(before, self._pick(1, 2, 3), prefetch=prefetch)
        ]

        def held(_: object) -> None:
            slowest = min((end.given for end in ends if not end.over), default=before.given)
            ahead = before.given - slowest
            self.laws.hold("held", holds=ahead <= 1 + prefetch, told=f"{ahead} in the tee")
            asked = max(end.asked for end in ends)
            self.laws.hold("lazy", holds=before.given <= asked, told="nobody asked the tee")

        before.on_given.append(held)
        return [self._stages(Made(end, made.oracle), most=1) for end in ends]

    def _last(self, made: Made) -> Made:
        """Add batches, or nothing."""
        if self._chance(60):
            return made
        size = self._pick(1, 2, 5, None)
        seconds = self._pick(None, None, 0.5, 3.0)
        full = heavy if self._chance(30) or (size, seconds) == (None, None) else None
        before = made.stream
        after = self._watch("batches", batched(before, size=size, seconds=seconds, full=full))
        taken = [0]
        came: dict[Item, float] = {}

        def come(item: Item) -> None:
            came[item] = now()

        def take(batch: Sequence[Item]) -> None:
            taken[0] += len(batch)
            holds = 0 < len(batch) <= (size or len(batch))
            self.laws.hold("batches", holds=holds, told=f"{batch} of {size}")
            late = now() - max(after.asked_at, came[batch[0]])
            self.laws.hold(
                "time", holds=late - 1e-9 <= (seconds or late), told=f"{batch} after {late}"
            )

        def held(_: object) -> None:
            ahead = before.given - taken[0]
            most = ahead if size is None else size + (seconds is not None)
            self.laws.hold("held", holds=ahead <= most, told=f"{ahead} in a batch")

        after.on_given.append(take)
        before.on_given += [held, come]
        if self.loose or self.cleaning or seconds is not None:
            return Made(after, made.oracle, flat=True)
        return Made(after, lambda missed: in_batches(made.oracle(missed), size, full))
