"""teed: one stream for several readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from mergepoint.aio.combine import teed
from mergepoint.aio.stream import Stream, from_iterable
from mergepoint.testing.simulated_time import Deadlock, simulate


async def all_of(stream: Stream[int], *, seconds: float = 0) -> list[int]:
    """Return all items, each of which takes so long."""
    got: list[int] = []
    async for item in stream:
        got.append(item)
        await asyncio.sleep(seconds)
    return got


@pytest.mark.parametrize("prefetch", [0, 3])
def test_every_reader_has_every_item(prefetch: int) -> None:
    """Readers of any speed get the same."""

    async def main() -> list[list[int]]:
        ends = teed(from_iterable(range(9)), 3, prefetch=prefetch)
        speeds = (0, 1, 7)
        return await asyncio.gather(
            *(all_of(end, seconds=speed) for end, speed in zip(ends, speeds, strict=True))
        )

    assert simulate(main) == [list(range(9))] * 3


@pytest.mark.parametrize(("prefetch", "most"), [(0, 1), (3, 4)])
def test_a_slow_reader_holds_a_fast_one(prefetch: int, most: int) -> None:
    """A reader is ahead of another that does not take by what was prefetched and one."""
    pulled: list[int] = []

    async def source() -> AsyncGenerator[int, None]:
        for number in range(20):
            pulled.append(number)
            yield number

    async def main() -> None:
        fast, slow = teed(source(), prefetch=prefetch)
        assert await anext(slow) == 0
        task = asyncio.ensure_future(all_of(fast))
        await asyncio.sleep(60)
        assert pulled == list(range(1 + most))
        await slow.aclose()
        assert await task == list(range(20))

    simulate(main)


def test_an_item_is_pulled_when_a_reader_asks() -> None:
    """Nothing is read ahead of the fastest reader."""
    pulled: list[int] = []

    async def source() -> AsyncGenerator[int, None]:
        for number in range(20):
            pulled.append(number)
            yield number

    async def main() -> None:
        one, other = teed(source(), prefetch=9)
        async with one, other:
            await asyncio.sleep(60)
            assert pulled == []
            await anext(one)
            await anext(one)
            await asyncio.sleep(60)
            assert pulled == [0, 1]
        assert len(asyncio.all_tasks()) == 1

    simulate(main)


def test_a_reader_that_nobody_reads_holds_the_others_for_ever() -> None:
    """Who neither reads nor closes an end is told by the simulation who waits."""

    async def main() -> None:
        one, _other = teed(from_iterable(range(9)))
        await all_of(one)

    with pytest.raises(Deadlock, match=r"_Tee\._pull"):
        simulate(main)


def test_the_input_is_closed_with_the_last_reader() -> None:
    """Readers that leave one by one keep the input open for those that stay."""
    closed: list[bool] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            for number in range(20):
                yield number
        finally:
            closed.append(True)

    async def main() -> None:
        one, other, never = teed(source(), 3, prefetch=5)
        assert await anext(one) == 0
        await never.aclose()
        await never.aclose()
        await one.aclose()
        assert [await anext(other), await anext(other), closed] == [0, 1, []]
        await other.aclose()
        assert (closed, len(asyncio.all_tasks())) == ([True], 1)

    simulate(main)


def test_every_reader_gets_the_error_at_its_turn() -> None:
    """The error of the input comes to each reader after the items."""

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise ValueError("broken")

    async def main() -> None:
        for end in teed(source(), prefetch=2):
            assert await anext(end) == 1
            with pytest.raises(ValueError, match="broken"):
                await anext(end)

    simulate(main)


def test_readers_share_one_loop() -> None:
    """A second reader in another loop than the first is an error."""
    one, other = teed(from_iterable(range(9)), prefetch=5)

    async def ask(end: Stream[int]) -> int:
        return await anext(end)

    with asyncio.Runner() as first:
        assert first.run(ask(one)) == 0
        with asyncio.Runner() as second, pytest.raises(RuntimeError, match="another event loop"):
            second.run(ask(other))
        assert first.run(ask(other)) == 0
        for end in (one, other):
            first.run(end.aclose())
