"""merged: several streams as one, fairly or in an order that is declared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepoint.aio.combine import Order, merged
from mergepoint.aio.stream import from_iterable
from mergepoint.testing.simulated_time import simulate


async def paced(text: str, seconds: float) -> AsyncGenerator[str, None]:
    """Yield the letters of a text, each after so many seconds."""
    for letter in text:
        await asyncio.sleep(seconds)
        yield letter


def mixed(*inputs: Any, **options: Any) -> str:
    """Return what comes out, as one text."""

    async def main() -> str:
        return "".join([letter async for letter in merged(*inputs, **options)])

    return simulate(main)


def test_items_come_as_they_arrive() -> None:
    """A fast input is not held back by a slow one."""
    assert mixed(paced("abcd", 1), paced("xy", 2.5)) == "abxcdy"


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_arrival_is_fair(seed: int) -> None:
    """Of two inputs that always have something neither is ever two turns behind."""

    async def main() -> None:
        taken = {"a": 0, "b": 0}
        async with merged(from_iterable("a" * 40), from_iterable("b" * 40), prefetch=2) as stream:
            for _ in range(60):
                taken[await anext(stream)] += 1
                await asyncio.sleep(1)
                assert abs(taken["a"] - taken["b"]) <= 1

    simulate(main, seed=seed)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("turns", "a1xb2yc3z"), ("declared", "abc123xyz")],
)
@pytest.mark.parametrize("prefetch", [0, 5])
def test_a_declared_order_is_that_of_no_clock(order: Order, expected: str, prefetch: int) -> None:
    """Rounds and rows come out the same however slow each input is."""
    for pace in ([1, 5, 9], [9, 1, 5], [0, 0, 0]):
        inputs = [
            paced(text, each_) for text, each_ in zip(["abc", "123", "xyz"], pace, strict=True)
        ]
        assert mixed(*inputs, order=order, prefetch=prefetch) == expected


def test_rounds_go_on_without_inputs_that_have_ended() -> None:
    """An input at its end gives up its turns."""
    assert (
        mixed(from_iterable("a"), from_iterable("123"), from_iterable("xy"), order="turns")
        == "a1x2y3"
    )


@given(
    inputs=st.lists(st.lists(st.integers(0, 9)).map(sorted), max_size=4),
    seed=st.integers(0, 1_000),
)
@settings(max_examples=50, deadline=None)
def test_sorted_inputs_come_out_sorted(inputs: list[list[int]], seed: int) -> None:
    """With a key the smallest is next, and equal ones in the order of the inputs."""

    async def main() -> list[tuple[int, int]]:
        streams = [
            from_iterable([(one, number) for one in row]) for number, row in enumerate(inputs)
        ]
        return [pair async for pair in merged(*streams, key=lambda pair: pair[0])]

    everything = [(one, number) for number, row in enumerate(inputs) for one in row]
    assert simulate(main, seed=seed) == sorted(everything)


def test_inputs_run_side_by_side() -> None:
    """Three inputs that take ten seconds an item take no longer together."""

    async def main() -> float:
        inputs = [paced("abc", 10) for _ in range(3)]
        assert len([one async for one in merged(*inputs, order="turns")]) == 9
        return asyncio.get_running_loop().time()

    assert simulate(main) == 30


def test_an_error_ends_all_inputs() -> None:
    """The error of one input comes after its items, and the others are closed."""
    closed: list[str] = []

    async def source(name: str) -> AsyncGenerator[str, None]:
        try:
            for number in range(3):
                yield f"{name}{number}"
            if name == "b":
                raise ValueError(name)
            await asyncio.Event().wait()
        finally:
            closed.append(name)

    async def main() -> list[str]:
        got: list[str] = []

        async def take() -> None:
            async for one in merged(source("a"), source("b"), source("c")):
                got.append(one)  # noqa: PERF401  (what came before an error is kept)

        with pytest.raises(ValueError, match="b"):
            await take()
        assert len(asyncio.all_tasks()) == 1
        return got

    assert {"b0", "b1", "b2"} <= set(simulate(main))
    assert sorted(closed) == ["a", "b", "c"]


def test_what_never_began_is_closed_too() -> None:
    """Closing a merge that nobody asked closes its inputs, though one of them cannot be closed."""
    closed: list[str] = []

    class Input:
        def __init__(self, name: str) -> None:
            self.name = name

        def __aiter__(self) -> Input:
            return self

        async def __anext__(self) -> str:
            raise AssertionError("nobody asks")

        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name == "b":
                raise ValueError(self.name)

    async def main() -> None:
        with pytest.raises(ValueError, match="b"):
            await merged(Input("a"), Input("b"), Input("c")).aclose()

    simulate(main)
    assert sorted(closed) == ["a", "b", "c"]


def test_nothing_merged_is_nothing() -> None:
    """A merge of no inputs ends at once."""
    assert mixed() == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"order": "random"}, "order must be one of arrival, turns, declared, not 'random'"),
        ({"order": "turns", "key": len}, "either an order"),
        ({"prefetch": -1}, "prefetch must be at least 0"),
    ],
)
def test_odd_orders_are_refused(options: dict[str, Any], told: str) -> None:
    """An unknown order, and two orders at once, raise where they are given."""
    with pytest.raises(ValueError, match=told):
        merged(from_iterable("a"), **options)
