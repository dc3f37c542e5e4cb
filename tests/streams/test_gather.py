"""Gather and groups: what is taken together, when it is whole, and how it is read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.streams.laws import UNHURRIED

from mergepoint.core.errors import BlockError
from mergepoint.streams.block_context import BlockContext, NotesInMemory
from mergepoint.streams.grouping import Enough, Gather, gathered, groups
from mergepoint.streams.stage_run import entered
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import Source
from mergepoint.testing.simulated_time import SimulatedLoop


def batches(items: Any, **rules: Any) -> list[list[Any]]:
    """Return the contents of the batches of items."""

    async def run() -> list[list[Any]]:
        source = items if isinstance(items, Source) else Source(items)
        async with aclosing(gathered(source, Gather(**rules), BlockContext("s"))) as found:
            return [[thing.content for thing in batch] async for batch in found]

    return asyncio.run(run())


def test_by_count() -> None:
    """A batch has so many, the last one what is left."""
    assert batches(range(5), count=2) == [[0, 1], [2, 3], [4]]


def test_all() -> None:
    """Without a rule there is one batch of everything, and none of nothing."""
    assert batches(range(5)) == [[0, 1, 2, 3, 4]]
    assert batches([]) == []
    assert Gather().takes_all
    assert not Gather(count=2).takes_all


def costing(*costs: float) -> list[Thing]:
    """Give Things with costs, which are their contents too."""
    return [Thing(cost, {"cost": cost}) for cost in costs]


def test_by_budget() -> None:
    """No batch goes over a sum, one that reaches it is whole, and what is too large is alone."""
    found = batches(costing(1, 2, 3, 1, 9, 1, 4), budget={"cost": 5})
    assert found == [[1, 2], [3, 1], [9], [1, 4]]


def test_a_budget_reads_numbers() -> None:
    """A Thing without the prop is an error, unless it failed before it could have one."""
    with pytest.raises(BlockError, match="item 0: the Thing has no prop 'cost'"):
        batches([Thing("x")], budget={"cost": 5})
    assert batches([Thing("x", {"status": "failed"})], budget={"cost": 5}) == [["x"]]


def test_by_a_condition() -> None:
    """The Thing for which the condition holds is the last of its batch."""
    things = [Thing(number, {"score": number}) for number in (1, 9, 2, 3, 8)]
    assert batches(things, until={"score": {"at_least": 8}}) == [[1, 9], [2, 3, 8]]


def test_whichever_comes_first() -> None:
    """Of several rules the first that is fulfilled ends the batch."""
    things = [Thing(number, {"cost": number}) for number in (1, 1, 1, 4, 4)]
    assert batches(things, count=3, budget={"cost": 4}) == [[1, 1, 1], [4], [4]]


@pytest.mark.parametrize(
    ("rules", "pulled"),
    [({"count": 3}, 3), ({"until": {"content": 3}}, 4), ({"budget": {"n": 3}}, 3), ({}, 10)],
)
def test_no_more_is_pulled_than_is_needed(rules: dict[str, Any], pulled: int) -> None:
    """One batch pulls its own members; a budget that is reached needs no look at the next."""

    async def run() -> int:
        source = Source([Thing(number, {"n": 1}) for number in range(10)])
        found = gathered(source, Gather(**rules), BlockContext("s"))
        await anext(found)
        await found.aclose()
        return source.pulled

    assert asyncio.run(run()) == pulled


async def arriving(times: Sequence[float]) -> AsyncGenerator[Thing, None]:
    """Yield an item at each of these times."""
    loop = asyncio.get_running_loop()
    for thing, time in zip(entered(times), times, strict=True):
        await asyncio.sleep(time - loop.time())
        yield thing


def timed(times: Sequence[float], *, notes: NotesInMemory | None = None, **rules: Any) -> list[Any]:
    """Return the batches of items that come at these times, and when each was given."""

    async def run() -> list[Any]:
        items, ctx = arriving(times), BlockContext("s", notes=notes)
        found: list[Any] = []
        async with aclosing(items), aclosing(gathered(items, Gather(**rules), ctx)) as all_:
            async for batch in all_:
                given_at = asyncio.get_running_loop().time()
                found.append(([thing.content for thing in batch], given_at))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return SimulatedLoop().run(run)


TIMES = (1, 2, 3, 10, 11, 12, 13, 40)


def test_by_time() -> None:
    """A batch is given when its time is up, counted from its first Thing, or with the last one."""
    assert timed(TIMES, seconds=5) == [([1, 2, 3], 6), ([10, 11, 12, 13], 15), ([40], 40)]


def test_by_time_or_count() -> None:
    """A batch that is full is given before its time, and the time of the next begins anew."""
    assert timed(TIMES, seconds=5, count=2) == [
        ([1, 2], 2),
        ([3], 8),
        ([10, 11], 11),
        ([12, 13], 13),
        ([40], 40),
    ]


def test_time_is_noted_for_a_resumed_run() -> None:
    """A resumed run has the batches of the first, however fast the items come this time."""
    notes = NotesInMemory()
    first = timed(TIMES, seconds=5, notes=notes)
    for times in ([0.0] * 8, [100.0 * number for number in range(8)]):
        again = timed(times, seconds=5, notes=notes)
        assert [len(batch) for batch, _ in again] == [len(batch) for batch, _ in first]


def test_a_batch_that_is_waited_for_can_be_cancelled() -> None:
    """Cancelled or closed while the next item is waited for, nothing is left running."""

    async def run() -> None:
        items = arriving([1, 100])
        found = gathered(items, Gather(seconds=5), BlockContext("s"))
        assert len(await anext(found)) == 1
        waiting = asyncio.ensure_future(anext(found))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await found.aclose()
        await items.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    SimulatedLoop().run(run)


@UNHURRIED
@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.integers(1, 12),
    st.none() | st.integers(1, 3),
)
def test_no_batch_is_older_than_its_time(gaps: list[int], seconds: int, count: int | None) -> None:
    """Whatever the times, no item waits longer than its batch may, and none is lost."""
    times = [sum(gaps[: end + 1]) for end in range(len(gaps))]
    found = timed(times, seconds=seconds, count=count)
    assert [time for batch, _ in found for time in batch] == times
    assert all(given_at - batch[0] <= seconds for batch, given_at in found)
    assert all(batch[-1] <= given_at for batch, given_at in found)


@UNHURRIED
@given(
    st.lists(st.integers(0, 9), max_size=20),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(0, 9),
)
def test_batches_are_the_stream_cut_in_pieces(
    numbers: list[int], count: int | None, cost: int | None, last: int | None
) -> None:
    """Whatever the rules, nothing is lost or moved, no batch is empty, and all rules are kept."""
    rules = {
        "count": count,
        "budget": None if cost is None else {"cost": cost},
        "until": None if last is None else {"content": last},
    }
    found = batches(costing(*numbers), **rules)
    assert sum(found, []) == numbers  # noqa: RUF017  (short)
    assert all(found)
    for number, batch in enumerate(found):
        assert count is None or len(batch) <= count
        assert cost is None or sum(batch) <= cost or len(batch) == 1
        assert last is None or last not in batch[:-1]
        if number < len(found) - 1:
            ended = len(batch) == count or batch[-1] == last
            assert ended or (cost is not None and sum(batch) + found[number + 1][0] > cost)


def read(things: list[Thing], *, enough: Enough | None = None, per: Any = "group") -> list[Any]:
    """Return name and contents of each group of a stream, and how many items were pulled."""

    async def run() -> list[Any]:
        source = Source(things)
        async with aclosing(groups(source, per, enough=enough)) as found:
            read = [(one.name, [thing.content for thing in one.members]) async for one in found]
        return [*read, source.pulled]

    return asyncio.run(run())


def grouped(*names: str | None, last: dict[int, str] | None = None) -> list[Thing]:
    """Give Things of groups; `last` tells which is said to be the last of its group."""
    marks = [
        {} if name is None else {"group": name, "group_last": (last or {}).get(number, "none")}
        for number, name in enumerate(names)
    ]
    return list(entered(Thing(number, props) for number, props in enumerate(marks)))


def test_a_group_ends_where_the_next_begins() -> None:
    """Things with one value of `group` in a row are a group."""
    assert read(grouped("a", "a", "b")) == [("a", [0, 1]), ("b", [2]), 3]


def test_things_without_a_group_are_one() -> None:
    """A stream that nobody grouped is one group, and so is any where groups do not count."""
    assert read(grouped(None, None)) == [(None, [0, 1]), 2]
    assert read(grouped("a", "b"), per="all") == [(None, [0, 1]), 2]
    assert read([]) == [0]


def test_a_group_ends_with_its_last_member() -> None:
    """A group whose last member is there is given without a look at the next."""

    async def run() -> int:
        source = Source(grouped("a", "a", "b", last={1: "1"}))
        found = groups(source, "group")
        await anext(found)
        await found.aclose()
        return source.pulled

    assert asyncio.run(run()) == 2


def test_a_group_that_comes_back_is_an_error() -> None:
    """A group is decided once, so members that come after its end are refused."""
    with pytest.raises(BlockError, match="item 2: group a continues after it ended"):
        read(grouped("a", "b", "a"))
    with pytest.raises(BlockError, match="Things without a group continues"):
        read(grouped(None, "b", None))
    with pytest.raises(BlockError, match="item 1: group a continues"):
        read(grouped("a", "a", last={0: "0"}))


def test_enough_members_end_a_group() -> None:
    """What is left of a decided group is passed over, and of a whole stream not even pulled."""
    two: Enough = lambda members: len(members) == 2  # noqa: E731
    assert read(grouped("a", "a", "a", "b"), enough=two) == [("a", [0, 1]), ("b", [3]), 4]
    assert read(grouped(None, None, None), enough=two) == [(None, [0, 1]), 2]


def test_members_are_in_the_order_of_lineage() -> None:
    """However they came, the members of a group are given in the order of their ids."""
    assert read(grouped("a", "a", "a")[::-1]) == [("a", [0, 1, 2]), 3]
