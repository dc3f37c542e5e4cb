"""Schedules: by number, watched stages that are put together, and what goes wrong in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from tests.aio.laws import Expected, Laws, Told
from tests.aio.parts import Faults, Item, Source, Waits, Watched, Work

from mergepoint.aio.map import Stop, mapped

T = TypeVar("T")

Missed = list[str] | None
Oracle = Callable[[Missed], Iterator[Any]]
"""Gives what comes one after the other; with a list it goes on after errors, and notes them."""


@dataclass(frozen=True)
class Made:
    """A watched stream, and what it is expected to give, worked out without a loop."""

    stream: Watched
    oracle: Oracle


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

    def build(self) -> None:
        """Put a chain of stages together; nothing is asked yet."""
        self.made = self._source()
        for _ in range(self._random.randrange(4)):
            self.made = self._mapped(self.made)
        self.plan = self._plan()

    @property
    def cleaning(self) -> set[str]:
        """Return the errors that come of cleaning up."""
        told = {"closing"} if any(one.faults.closing for one in self.sources) else set()
        return told | {"cleaning up" for one in self.works if one.faults.closing}

    def expected(self) -> Expected:
        """Work out what the chain gives."""
        results: list[Any] = []
        errors: list[str] = []
        try:
            results += self.made.oracle(errors if self.loose else None)
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

    def _watch(self, name: str, stream: Any) -> Watched:
        self.watched.append(Watched(f"{name} {len(self.watched)}", stream, self.laws))
        return self.watched[-1]

    def _source(self) -> Made:
        count = self._pick(0, 1, 2, 3, 5, 8, 12)
        items = [(position, 0) for position in range(count)]
        source = Source(items, self._faults(count + 1), self._waits())
        self.sources.append(source)

        def oracle(missed: Missed) -> Iterator[Item]:
            return _noting(source.expected(), missed)

        return Made(self._watch("source", source.stream()), oracle)

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
                yield from _noting(work.expected(item), missed)

        return Made(after, oracle)


def _noting(items: Iterator[T], missed: Missed) -> Iterator[T]:
    """Yield items; an error ends them, and with a list it is noted there."""
    try:
        yield from items
    except Told as error:
        if missed is None:
            raise
        missed.append(str(error))
