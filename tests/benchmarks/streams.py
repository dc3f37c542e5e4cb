"""Streams: what the primitive costs beside asyncio by hand, and what it holds and makes."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.benchmarks.result import Ratio, Results, Spent
from tests.benchmarks.timing import Times, ratio

from mergepoint.aio.map import mapped
from mergepoint.aio.stream import from_iterable

STAGES = 4
WIDTH = 16
ONCE = 20_000
"""Items for one time, at least."""

Function = Callable[[int], Coroutine[Any, Any, int]]
Stage = Callable[[AsyncIterator[int], Function], AsyncIterator[int]]


async def at_once(item: int) -> int:
    """Do nothing."""
    return item


async def after_a_turn(item: int) -> int:
    """Do nothing, but let the loop turn, as every real call does."""
    await asyncio.sleep(0)
    return item


async def generator(items: AsyncIterator[int], function: Function) -> AsyncGenerator[int, None]:
    """Write a stage by hand: one call after the other."""
    async for item in items:
        yield await function(item)


async def ordered_map(items: AsyncIterator[int], function: Function) -> AsyncGenerator[int, None]:
    """Write a stage by hand: calls side by side, results in order, and nothing left behind."""
    calls: deque[asyncio.Future[int]] = deque()
    try:
        async for item in items:
            calls.append(asyncio.create_task(function(item)))
            if len(calls) == WIDTH:
                yield await calls.popleft()
        while calls:
            yield await calls.popleft()
    finally:
        for call in calls:
            call.cancel()


def lazy(items: AsyncIterator[int], function: Function) -> AsyncIterator[int]:
    """Return the primitive, one call after the other."""
    return mapped(items, function, width=1)


def wide(items: AsyncIterator[int], function: Function) -> AsyncIterator[int]:
    """Return the primitive, side by side and in order."""
    return mapped(items, function, width=WIDTH)


def beside_asyncio(items: int, repetitions: int, results: Results) -> None:
    """Time chains of stages whose functions do nothing."""
    for function, goals in ((at_once, (3.0, 1.1)), (after_a_turn, (None, None))):
        what = function.__name__.replace("_", " ")
        for how, by_hand, ours, goal in (
            ("one by one", generator, lazy, goals[0]),
            (f"{WIDTH} wide", ordered_map, wide, goals[1]),
        ):
            work = f"{items:,} items x {STAGES} stages, {how}, {what}"
            times = _in_turn({"w": by_hand, "p": ours}, function, items, repetitions)
            for letter, spent in times.items():
                middle, low = spent.median * 1e6, spent.minimum * 1e6
                results.spent.append(Spent("cpu", work, "async", letter, "cpu", middle, low))
            middle, low = ratio(times["p"], times["w"])
            results.ratios.append(Ratio("cpu", work, "async", "p/w", middle, low, goal))


def _in_turn(
    stages: dict[str, Stage], function: Function, items: int, repetitions: int
) -> dict[str, Times]:
    rounds = max(1, ONCE // items) if repetitions > 1 else 1
    found: dict[str, list[float]] = {letter: [] for letter in stages}
    for _ in range(repetitions):
        for letter, stage in stages.items():
            gc.collect()
            seconds = sum(asyncio.run(_timed(stage, function, items)) for _ in range(rounds))
            found[letter].append(seconds / rounds / items / STAGES)
    return {letter: Times(tuple(seconds)) for letter, seconds in found.items()}


async def _timed(stage: Stage, function: Function, items: int) -> float:
    stream: AsyncIterator[int] = from_iterable(range(items))
    for _ in range(STAGES):
        stream = stage(stream, function)
    start = time.process_time()
    count = 0
    async for _ in stream:
        count += 1
    seconds = time.process_time() - start
    assert count == items
    return seconds


def first_result(latency: float, repetitions: int, results: Results) -> None:
    """Time the first result of a chain of slow stages; the ideal is the sum of their latencies."""

    async def slow(item: int) -> int:
        await asyncio.sleep(latency)
        return item

    async def first(stage: Stage) -> tuple[float, float]:
        stream: AsyncIterator[int] = from_iterable(range(100))
        for _ in range(STAGES):
            stream = stage(stream, slow)
        start, busy = time.perf_counter(), time.process_time()
        await anext(stream)
        ideal = STAGES * latency
        return (time.perf_counter() - start) / ideal, time.process_time() - busy

    contenders: dict[str, Stage] = {"w": ordered_map, "p": wide}
    found: dict[str, list[tuple[float, float]]] = {letter: [] for letter in contenders}
    for _ in range(repetitions):
        for letter, stage in contenders.items():
            gc.collect()
            found[letter].append(asyncio.run(first(stage)))
    work = f"first of {STAGES} stages of {latency * 1_000:g} ms, {WIDTH} wide"
    for letter, goal in (("w", None), ("p", 1.1)):
        times, busy = (Times(column) for column in zip(*found[letter], strict=True))
        spent = (busy.median * 1e6, busy.minimum * 1e6)
        results.spent.append(Spent("cpu", work, "async", letter, "cpu", *spent))
        over = f"{letter}/ideal"
        results.ratios.append(Ratio("wall", work, "async", over, times.median, times.minimum, goal))


def made_for_two(results: Results) -> None:
    """Count what is made where two results of ten are wanted, and the tasks that are left."""

    async def count(width: int, prefetch: int) -> tuple[int, int]:
        made: list[int] = []

        async def make(item: int) -> int:
            made.append(item)
            return item

        async with mapped(from_iterable(range(10)), make, width=width, prefetch=prefetch) as stream:
            await anext(stream)
            await anext(stream)
            await asyncio.sleep(0.01)
        return len(made), len(asyncio.all_tasks()) - 1

    for width, prefetch in ((1, 0), (2, 0), (2, 3)):
        made, left = asyncio.run(count(width, prefetch))
        most = 2 if width == 1 else 2 + width + prefetch
        work = f"2 wanted of 10, width {width}, prefetch {prefetch}"
        results.ratios += [
            Ratio(
                "made",
                f"{work}: {made} made, {most} allowed",
                "async",
                "p/most",
                made / most,
                1.0,
                1.0,
            ),
            Ratio("tasks", f"{work}: {left} tasks left", "async", "p", left, left, 0.0),
        ]


def memory(items: int, results: Results) -> None:
    """Compare the resident memory at the end of a long stream with that after its first tenth."""
    early, late = asyncio.run(_resident(items))
    work = f"{items:,} items through {STAGES} stages: {early:.1f} MiB, then {late:.1f}"
    results.ratios.append(Ratio("rss", work, "async", "p", late / early, late / early, 1.02))


async def _resident(items: int) -> tuple[float, float]:
    """Map, spread and map side by side; give MiB after a tenth and at the end."""
    batches = mapped(from_iterable(range(0, items, 50)), at_once, width=1)
    spread = mapped(batches, lambda low: from_iterable(range(low, low + 50)), width=1)
    stream = mapped(spread, at_once, width=WIDTH)
    early = late = 0.0
    count = 0
    async for _ in stream:
        count += 1
        if count == items // 10:
            early = _mebibytes()
        elif count == items:
            late = _mebibytes()
    assert count == items
    return early, late


def _mebibytes() -> float:
    """Return the resident memory of this process; of what Linux tells, so only there."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
