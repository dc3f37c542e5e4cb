"""Results: ratios with their goals, and the times that they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from tests.benchmarks.contender import Mode
from tests.benchmarks.timing import Clock, Times, ratio


@dataclass(frozen=True, slots=True)
class Ratio:
    """One ratio, at the median and at the minimum; a goal is an upper limit for the median's."""

    measure: str
    work: str
    mode: Mode
    over: str
    median: float
    minimum: float
    goal: float | None = None

    @property
    def reached(self) -> bool | None:
        """Return whether the goal is reached; None without a goal."""
        return None if self.goal is None else self.median <= self.goal


@dataclass(frozen=True, slots=True)
class Spent:
    """Microseconds of one contender for each model call, CPU or wall."""

    measure: str
    work: str
    mode: Mode
    contender: str
    clock: Clock
    median: float
    minimum: float


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes on disk of one contender for each step; `beside` is without prompts and answers."""

    work: str
    contender: str
    steps: int
    bytes: float
    beside: float


@dataclass(slots=True)
class Results:
    """All that was measured."""

    ratios: list[Ratio] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Group:
    """The times of contenders that ran in turn on one piece of work."""

    measure: str
    work: str
    mode: Mode
    clock: Clock
    calls: int
    times: Mapping[str, Times]

    def told(self, results: Results, goals: Mapping[str, float | None]) -> None:
        """Add times and ratios; `goals` are by ratio, such as `s/h`."""
        for letter, times in self.times.items():
            middle, low = times.median * 1e6, times.minimum * 1e6
            results.spent.append(
                Spent(self.measure, self.work, self.mode, letter, self.clock, middle, low)
            )
        for over, goal in goals.items():
            above, below = over.split("/")
            middle, low = ratio(self.times[above], self.times[below])
            results.ratios.append(
                Ratio(self.measure, self.work, self.mode, over, middle, low, goal)
            )

    def beyond(self, letter: str, other: str) -> tuple[float, float]:
        """Return the seconds a call that one takes beyond another: median and of the minima."""
        above, below = self.times[letter], self.times[other]
        pairs = zip(above.seconds, below.seconds, strict=True)
        return median(one - two for one, two in pairs), above.minimum - below.minimum


def growth(large: Group, small: Group, letter: str, *, goal: float) -> Ratio:
    """Return what a step costs beyond the bare model (`m`), in a long row over a short one."""
    many, few = large.beyond(letter, "m"), small.beyond(letter, "m")
    return Ratio(
        large.measure,
        f"{large.work} against {small.calls:,}",
        large.mode,
        f"{letter}-m",
        many[0] / few[0],
        many[1] / few[1],
        goal,
    )
