"""batched: by count, by time and by what is in a batch."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepoint.aio.combine import batched
from mergepoint.aio.stream import from_iterable
from mergepoint.testing.simulated_time import simulate


async def timed(*pairs: tuple[float, str]) -> AsyncGenerator[str, None]:
    """Yield texts, each so many seconds after the one before."""
    for seconds, text in pairs:
        await asyncio.sleep(seconds)
        yield text


def batches(source: Any, **limits: Any) -> list[tuple[float, str]]:
    """Return the batches, and when each came."""

    async def main() -> list[tuple[float, str]]:
        clock = asyncio.get_running_loop()
        return [(clock.time(), "".join(batch)) async for batch in batched(source, **limits)]

    return simulate(main)


@given(items=st.lists(st.integers()), size=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_batches_of_a_size(items: list[int], size: int) -> None:
    """All batches but the last have the size, and together they are the items."""

    async def main() -> list[tuple[int, ...]]:
        return [batch async for batch in batched(from_iterable(items), size=size)]

    found = simulate(main)
    assert list(itertools.chain(*found)) == items
    assert all(len(batch) == size for batch in found[:-1])
    assert all(0 < len(batch) <= size for batch in found)


def test_a_batch_is_released_when_its_time_is_up() -> None:
    """The time of a batch begins with its first item, and an idle input holds nothing back."""
    source = timed((5, "a"), (2, "b"), (20, "c"), (1, "d"), (1, "e"))
    assert batches(source, seconds=10) == [(15.0, "ab"), (29.0, "cde")]


def test_the_first_limit_that_is_reached_counts() -> None:
    """A batch is released by its size before its time is up, and the next has its whole time."""
    source = timed((0, "a"), (1, "b"), (1, "c"), (20, "d"))
    assert batches(source, size=2, seconds=10) == [(1.0, "ab"), (12.0, "c"), (22.0, "d")]


@pytest.mark.parametrize("seconds", [None, 60])
def test_a_batch_may_be_full_by_what_is_in_it(seconds: float | None) -> None:
    """A predicate over the batch ends it, with the item that made it full."""

    async def main() -> list[tuple[int, ...]]:
        def enough(batch: Sequence[int]) -> bool:
            return sum(batch) >= 10

        stream = batched(from_iterable([1, 9, 2, 20, 3]), full=enough, seconds=seconds)
        return [batch async for batch in stream]

    assert simulate(main) == [(1, 9), (2, 20), (3,)]


@pytest.mark.parametrize("seconds", [None, 60])
@pytest.mark.parametrize("where", ["input", "full"])
def test_what_was_gathered_comes_before_an_error(seconds: float | None, where: str) -> None:
    """Neither a failing input nor a failing predicate loses the items before it."""

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        yield 2
        if where == "input":
            raise ValueError(where)
        yield 3

    def full(batch: Sequence[int]) -> bool:
        if batch[-1] == 2 and where == "full":
            raise ValueError(where)
        return False

    async def main() -> tuple[int, ...]:
        stream = batched(source(), full=full, size=9, seconds=seconds)
        first = await anext(stream)
        with pytest.raises(ValueError, match=where):
            await anext(stream)
        return first

    assert simulate(main) == (1, 2)


@pytest.mark.parametrize("seconds", [None, 60])
def test_nothing_is_gathered_that_is_not_asked_for(seconds: float | None) -> None:
    """One batch of three was asked for: three items are pulled, or with a time one more."""
    pulled: list[int] = []

    async def source() -> AsyncGenerator[int, None]:
        for number in range(20):
            pulled.append(number)
            yield number

    async def main() -> None:
        async with batched(source(), size=3, seconds=seconds) as stream:
            await asyncio.sleep(100)
            assert pulled == []
            await anext(stream)
            await asyncio.sleep(100)

    simulate(main)
    assert pulled == [0, 1, 2, 3][: 3 if seconds is None else 4]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({}, "A batch needs a limit"),
        ({"size": 0}, "size must be at least 1, not 0"),
        ({"seconds": 0}, "seconds must be a finite number above 0, not 0"),
        ({"seconds": float("inf")}, "finite"),
        ({"seconds": float("nan")}, "finite"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], told: str) -> None:
    """A batch that no limit would end is refused where it is made."""
    with pytest.raises(ValueError, match=told):
        batched(from_iterable([1]), **limits)
