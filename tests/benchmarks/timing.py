"""Timing: contenders in turn, A B C A B C, so that a slow minute of the machine hits all.

Work that is small is done several times for one time, so that a time is never a few milliseconds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tests.benchmarks.contender import Contender, Mode, Ran
from tests.benchmarks.equality import once

Clock = Literal["cpu", "wall"]

ENOUGH_CALLS = 500

_CLOCKS: dict[Clock, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds a model call, by repetition; CPU seconds are those of all threads."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median."""
        return median(self.seconds)

    @property
    def minimum(self) -> float:
        """Return the minimum."""
        return min(self.seconds)


def ratio(above: Times, below: Times) -> tuple[float, float]:
    """Return the median of the ratios of each repetition, and the ratio of the minima.

    The two times of one repetition were taken next to each other, so the first hardly moves when
    other work on the machine slows down a part of the repetitions.
    """
    pairs = zip(above.seconds, below.seconds, strict=True)
    return median(one / other for one, other in pairs), above.minimum / below.minimum


def in_turn(
    contenders: Sequence[Contender], mode: Mode, clock: Clock, *, calls: int, repetitions: int
) -> dict[str, Times]:
    """Return the times of each contender, by letter."""
    rounds = rounds_of(calls) if clock == "cpu" and repetitions > 1 else 1
    found: dict[str, list[float]] = {contender.letter: [] for contender in contenders}
    for _ in range(repetitions):
        for contender in contenders:
            seconds, _ = timed(contender, mode, clock, rounds)
            found[contender.letter].append(seconds / calls)
    return {letter: Times(tuple(seconds)) for letter, seconds in found.items()}


def rounds_of(calls: int) -> int:
    """Return how often work is done for one time."""
    return max(1, ENOUGH_CALLS // calls)


def timed(contender: Contender, mode: Mode, clock: Clock, rounds: int) -> tuple[float, Ran]:
    """Return the seconds that a contender takes for its work, and what the last round left."""
    if contender.disk is not None:
        contender.disk.clear()
    gc.collect()
    now = _CLOCKS[clock]
    start = now()
    for _ in range(rounds):
        ran = once(contender, mode)
    return (now() - start) / rounds, ran
