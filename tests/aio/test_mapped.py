"""mapped: lazy, bounded, in order, and gone when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepoint.aio.map import mapped
from mergepoint.aio.stream import Stream, from_iterable
from mergepoint.testing.simulated_time import simulate

WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def twice(number: int) -> int:
    """Return the double, at once."""
    return 2 * number


async def slowly(number: int) -> int:
    """Return the double after ten seconds."""
    await asyncio.sleep(10)
    return 2 * number


async def all_of(stream: Stream[Any]) -> list[Any]:
    """Return all results."""
    return [result async for result in stream]


def others() -> set[asyncio.Task[Any]]:
    """Return the tasks beside the running one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


class Closable:
    """Numbers without end, which count what was asked and how often they were closed."""

    def __init__(self) -> None:
        self.asked = 0
        self.closed = 0

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        self.asked += 1
        return self.asked - 1

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1


shapes = st.fixed_dictionaries(
    {
        "width": st.integers(1, 16),
        "prefetch": st.integers(0, 8),
        "stop": st.sampled_from(["cancel", "land"]),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    shape=shapes,
    waits=st.lists(st.sampled_from([None, 0, 1, 7]), max_size=12),
    fails=st.integers(0, 15),
    kind=st.sampled_from(["one", "many"]),
    seed=st.integers(0, 1_000),
)
def test_results_are_those_of_one_call_after_the_other(
    shape: dict[str, Any], waits: list[float | None], fails: int, kind: str, seed: int
) -> None:
    """Width and prefetch change neither the results nor the error that ends them."""

    async def one(position: int) -> int:
        if waits[position] is not None:
            await asyncio.sleep(waits[position] or 0)
        if position == fails:
            raise ValueError(position)
        return -position

    async def many(position: int) -> AsyncGenerator[tuple[int, int], None]:
        for number in range(position % 3):
            await asyncio.sleep(waits[position] or 0)
            yield position, number
        await one(position)

    async def main(**shape: Any) -> tuple[list[Any], str]:
        got: list[Any] = []
        function: Callable[[int], Any] = many if kind == "many" else one
        try:
            async for result in mapped(from_iterable(range(len(waits))), function, **shape):
                got.append(result)  # noqa: PERF401  (what came before an error is kept)
        except ValueError as error:
            return got, repr(error)
        assert not others()
        return got, ""

    expected = simulate(partial(main, width=1), seed=seed)
    assert simulate(partial(main, **shape), seed=seed) == expected


@pytest.mark.parametrize(("width", "prefetch"), [(1, 0), (2, 0), (3, 2), (16, 0), (1, 4)])
@pytest.mark.parametrize("stop", ["cancel", "land"])
def test_what_is_not_wanted_is_not_made(width: int, prefetch: int, stop: Any) -> None:
    """Of ten two are wanted: two are begun by one call at a time, else as many as may be ahead."""
    begun: list[int] = []

    async def note(number: int) -> int:
        begun.append(number)
        return number

    async def main() -> None:
        async with mapped(
            from_iterable(range(10)), note, width=width, prefetch=prefetch, stop=stop
        ) as two:
            assert [await anext(two), await anext(two)] == [0, 1]
            await asyncio.sleep(60)
        assert not others()

    simulate(main)
    ahead = width + prefetch if width + prefetch > 1 else 0
    assert sorted(begun) == list(range(min(10, 2 + ahead)))


def test_nothing_happens_before_it_is_asked() -> None:
    """A chain that is built and left alone pulls nothing and has no task."""

    async def main() -> None:
        numbers = Closable()
        stream = mapped(mapped(numbers, twice, width=4), twice, width=4)
        await asyncio.sleep(60)
        assert (numbers.asked, others()) == (0, set())
        await stream.aclose()
        assert (numbers.asked, numbers.closed) == (0, 1)

    simulate(main)


def test_calls_are_as_many_at_once_as_the_width_says() -> None:
    """Forty calls of ten seconds, eight at a time, take fifty seconds."""

    async def main() -> float:
        assert len(await all_of(mapped(from_iterable(range(40)), slowly, width=8))) == 40
        return asyncio.get_running_loop().time()

    assert simulate(main) == 50


def test_the_first_result_comes_as_soon_as_it_can() -> None:
    """Four stages of ten seconds give the first result after forty, and are then all busy."""

    async def main() -> list[float]:
        stream: Stream[int] = mapped(from_iterable(range(20)), slowly, width=4)
        for _ in range(3):
            stream = mapped(stream, slowly, width=4)
        clock = asyncio.get_running_loop()
        return [clock.time() async for _ in stream]

    assert simulate(main) == [40.0] * 4 + [50.0] * 4 + [60.0] * 4 + [70.0] * 4 + [80.0] * 4


def test_prefetch_lets_calls_go_on_behind_a_slow_one() -> None:
    """Behind a call of a hundred seconds a prefetch of six lets seven others of ten be done."""

    async def main(prefetch: int) -> int:
        done: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(100 if number == 0 else 10)
            done.append(number)

        async with mapped(from_iterable(range(50)), one, width=2, prefetch=prefetch) as stream:
            await anext(stream)
        return len(done)

    assert [simulate(partial(main, prefetch)) for prefetch in (0, 6)] == [2, 8]


def test_unordered_results_come_as_they_are_made() -> None:
    """Without order the fastest of those in flight is first."""

    async def one(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    async def main() -> list[int]:
        return await all_of(mapped(from_iterable([30, 20, 10, 1]), one, width=3, ordered=False))

    assert simulate(main) == [10, 1, 20, 30]


def test_a_fan_out_gives_results_before_it_is_over() -> None:
    """The first result of the oldest fan-out comes when it is made, and the next ones are ahead."""
    made: list[int] = []

    async def many(item: int) -> AsyncGenerator[int, None]:
        for number in range(10):
            await asyncio.sleep(1)
            made.append(number)
            yield number

    async def main() -> None:
        async with mapped(from_iterable([0]), many, width=3) as stream:
            assert await anext(stream) == 0
            assert (asyncio.get_running_loop().time(), made) == (1.0, [0])
            await asyncio.sleep(60)
            assert made == [0, 1, 2, 3]

    simulate(main)


def test_stages_in_one_function_race_inside_and_are_in_order_at_the_exit() -> None:
    """A chain as the function of one map lets a fast item pass a slow one until they come out."""

    async def first(number: int) -> int:
        await asyncio.sleep(10 if number == 0 else 1)
        return number

    done: list[tuple[int, float]] = []

    async def second(number: int) -> int:
        await asyncio.sleep(5)
        done.append((number, asyncio.get_running_loop().time()))
        return number

    def both(number: int) -> Stream[int]:
        return mapped(mapped(from_iterable([number]), first, width=1), second, width=1)

    async def main() -> list[int]:
        return await all_of(mapped(from_iterable(range(3)), both, width=3))

    assert simulate(main) == [0, 1, 2]
    assert sorted(done) == [(0, 15.0), (1, 6.0), (2, 6.0)]


@pytest.mark.parametrize("width", [1, 4])
def test_an_error_comes_at_its_turn(width: int) -> None:
    """What came before the failing item is given first, and what failed behind it is noted."""

    async def one(number: int) -> int:
        await asyncio.sleep(10 - number)
        if number >= 2:
            raise ValueError(number)
        return number

    async def main() -> None:
        numbers = Closable()
        stream = mapped(numbers, one, width=width)
        assert [await anext(stream), await anext(stream)] == [0, 1]
        with pytest.raises(ValueError, match="2") as caught:
            await anext(stream)
        notes = ["also failed, further on in the stream: ValueError(3)"] if width > 1 else []
        assert getattr(caught.value, "__notes__", []) == notes
        assert (numbers.closed, others()) == (1, set())
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    simulate(main)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("stop", ["cancel", "land"])
def test_a_cancelled_stream_lets_calls_land_where_it_is_told_to(width: int, stop: Any) -> None:
    """A cancellation ends calls in flight, or waits for them; no other begins."""
    landed: list[int] = []

    async def one(number: int) -> None:
        await asyncio.sleep(10)
        landed.append(number)

    async def main() -> float:
        numbers = Closable()
        task = asyncio.ensure_future(all_of(mapped(numbers, one, width=width, stop=stop)))
        await asyncio.sleep(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (numbers.closed, others()) == (1, set())
        return asyncio.get_running_loop().time()

    assert simulate(main) == (10 if stop == "land" else 3)
    assert len(landed) == (width if stop == "land" else 0)


def test_a_second_cancellation_does_not_wait_for_landing() -> None:
    """Who cancels again has the calls in flight cancelled too."""

    async def main() -> float:
        stream = mapped(from_iterable(range(9)), slowly, width=4, stop="land")
        task = asyncio.ensure_future(all_of(stream))
        for _ in range(2):
            await asyncio.sleep(3)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not others()
        return asyncio.get_running_loop().time()

    assert simulate(main) == 6


def test_who_closes_by_itself_is_not_stopped_twice() -> None:
    """A stage that failed and closes its input is told to end: the calls behind it land."""
    landed: list[int] = []

    async def before(number: int) -> int:
        await asyncio.sleep((0, 0, 1, 10)[number])
        landed.append(number)
        return number

    async def after(number: int) -> None:
        if number:
            raise ValueError(number)  # item 2 tells the reader, which then closes its input
        await asyncio.sleep(5)  # the error waits for this one

    async def main() -> float:
        behind = mapped(from_iterable(range(4)), before, width=4, stop="land")
        with pytest.raises(ValueError, match="1"):
            await all_of(mapped(behind, after, width=3))
        assert not others()
        return asyncio.get_running_loop().time()

    assert simulate(main) == 10
    assert sorted(landed) == [0, 1, 2, 3]


@pytest.mark.parametrize("width", [1, 3])
def test_a_source_that_never_yields_can_be_cancelled(width: int) -> None:
    """A reader that gives up ends a source that waits for ever."""
    closed: list[bool] = []

    async def never() -> AsyncGenerator[int, None]:
        try:
            await asyncio.Event().wait()
            yield 0
        finally:
            closed.append(True)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await all_of(mapped(mapped(never(), twice, width=width), twice, width=width))
        assert not others()

    simulate(main)
    assert closed == [True]


@pytest.mark.parametrize("width", [1, 3])
def test_each_call_has_a_context_of_its_own(width: int) -> None:
    """A call sees what held where the stream began: neither other calls nor the source reach it."""

    async def source() -> AsyncGenerator[int, None]:
        for number in range(6):
            WHO.set(f"source {number}")
            yield number

    async def one(number: int) -> str:
        seen = WHO.get()
        WHO.set(f"call {number}")
        await asyncio.sleep(1)
        return f"{seen}, {WHO.get()}"

    async def main() -> list[str]:
        WHO.set("taker")
        return await all_of(mapped(source(), one, width=width))

    assert simulate(main) == [f"taker, call {number}" for number in range(6)]


@pytest.mark.parametrize("width", [1, 3])
def test_a_fan_out_runs_and_closes_in_the_context_of_its_call(width: int) -> None:
    """A context variable that a fan-out sets can be reset as it is closed."""
    seen: list[str] = []

    async def many(number: int) -> AsyncGenerator[int, None]:
        token = WHO.set(f"call {number}")
        try:
            for result in range(5):
                yield result
        finally:
            seen.append(WHO.get())
            WHO.reset(token)

    async def main() -> str:
        async with mapped(from_iterable([7]), many, width=width) as stream:
            await anext(stream)
        return WHO.get()

    assert (simulate(main), seen) == ("nobody", ["call 7"])


class Later:
    """Something that can be awaited and is no coroutine."""

    def __init__(self, result: int) -> None:
        self.result = result

    def __await__(self) -> Generator[Any, None, int]:
        yield from asyncio.sleep(1).__await__()
        return self.result


class Doubling:
    """A function that is an object."""

    async def __call__(self, number: int) -> int:
        """Return the double."""
        return 2 * number


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    "function",
    [
        twice,
        slowly,
        partial(twice),
        Doubling(),
        lambda number: twice(number),
        lambda number: Later(2 * number),
        lambda number: asyncio.ensure_future(slowly(number)),
        lambda number: from_iterable([2 * number]),
        lambda number: mapped(from_iterable([number]), twice, width=1),
    ],
    ids=["async", "slow", "partial", "object", "lambda", "awaitable", "task", "stream", "map"],
)
def test_functions_come_in_many_forms(
    function: Callable[[int], Awaitable[int]], width: int
) -> None:
    """Whatever gives something to await, or an async iterator, is a function."""

    async def main() -> list[int]:
        return await all_of(mapped(from_iterable(range(5)), function, width=width))

    assert simulate(main) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("width", [1, 3])
def test_a_function_that_is_not_async_is_an_error_at_its_turn(width: int) -> None:
    """A result in the place of an awaitable is named by its type, and the input is closed."""

    async def main() -> None:
        numbers = Closable()
        with pytest.raises(TypeError, match="returned int: it must be async"):
            await all_of(mapped(numbers, lambda number: number, width=width))  # type: ignore[arg-type,return-value]
        assert numbers.closed == 1

    simulate(main)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("error", [StopIteration(), StopAsyncIteration(), GeneratorExit()])
def test_errors_of_iteration_do_not_end_a_stream_in_silence(
    width: int, error: BaseException
) -> None:
    """A function that raises what ends iterators is not taken for the end of the stream."""

    async def one(number: int) -> int:
        if number == 1:
            raise error
        return number

    async def main() -> None:
        stream = mapped(from_iterable(range(3)), one, width=width)
        assert await anext(stream) == 0
        with pytest.raises((RuntimeError, GeneratorExit)):
            await anext(stream)

    simulate(main)


@pytest.mark.parametrize("width", [1, 3])
def test_what_an_input_raises_as_it_is_closed_is_raised(width: int) -> None:
    """An early end tells what went wrong while it closed the input."""

    async def source() -> AsyncGenerator[int, None]:
        try:
            for number in range(9):
                yield number
        finally:
            raise ValueError("a file was not written")

    async def main() -> None:
        stream = mapped(source(), twice, width=width)
        await anext(stream)
        with pytest.raises(ValueError, match="a file was not written"):
            await stream.aclose()
        assert not others()

    simulate(main)


@pytest.mark.parametrize(
    ("numbers", "error", "told"),
    [
        ({"width": 0}, ValueError, "width must be at least 1, not 0"),
        ({"width": 1, "prefetch": -1}, ValueError, "prefetch must be at least 0, not -1"),
        ({"width": True}, TypeError, "width must be an integer, not True"),
        ({"width": 2.0}, TypeError, "width must be an integer, not 2.0"),
        (
            {"width": 2, "stop": "drain"},
            ValueError,
            "stop must be one of cancel, land, not",
        ),
    ],
)
def test_odd_numbers_are_refused_where_they_are_given(
    numbers: dict[str, Any], error: type[Exception], told: str
) -> None:
    """A width of 0 and the like raise before anything runs."""
    with pytest.raises(error, match=told):
        mapped(from_iterable([1]), twice, **numbers)


def test_a_list_is_no_stream() -> None:
    """An input that is not async is refused, with the way to make a stream of it."""
    with pytest.raises(TypeError, match="not list: `from_iterable` makes one"):
        mapped([1, 2], twice, width=1)  # type: ignore[call-overload]


@pytest.mark.parametrize("width", [1, 3])
def test_another_loop_is_an_error(width: int) -> None:
    """A stream that began in one loop is neither asked nor closed in another."""
    stream = mapped(from_iterable(range(9)), twice, width=width)

    async def begin() -> int:
        return await anext(stream)

    async def close() -> None:
        await stream.aclose()

    with asyncio.Runner() as one:
        assert one.run(begin()) == 0
        with asyncio.Runner() as other:
            for use in (begin, close):
                with pytest.raises(RuntimeError, match="began in another event loop"):
                    other.run(use())
        assert one.run(begin()) == 2
        one.run(close())


@pytest.mark.parametrize("width", [1, 3])
def test_a_stream_that_is_forgotten_leaves_nothing(width: int) -> None:
    """A loop that is left with break ends the tasks of the stream and closes its input."""
    closed: list[bool] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            for number in range(9):
                yield number
        finally:
            closed.append(True)

    async def main() -> None:
        async for _ in mapped(mapped(source(), slowly, width=width), slowly, width=width):
            break
        await asyncio.sleep(0.1)
        assert not others()

    simulate(main)
    assert closed == [True]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("where", ["source", "function"])
def test_an_interrupt_leaves_nothing(width: int, where: str) -> None:
    """Ctrl-C inside of a stream stops the loop, and every generator is closed."""
    closed: list[str] = []
    begun: list[str] = ["0 left", "source"]

    def strike(at: str) -> None:
        if at == where:
            raise KeyboardInterrupt

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 0
            yield 1
            strike("source")
        finally:
            closed.append("source")

    async def many(number: int) -> AsyncGenerator[int, None]:
        begun.append("function")
        try:
            yield number
            await asyncio.sleep(0)
            if number == 1:
                strike("function")
        finally:
            closed.append("function")

    async def main() -> None:
        stream = mapped(mapped(source(), many, width=width), twice, width=width)
        try:
            await all_of(stream)
        finally:
            await stream.aclose()
            closed.append(f"{len(others())} left")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert sorted(closed) == sorted(begun)


def test_a_timeout_inside_of_a_call_is_its_own() -> None:
    """A call that takes too long is ended alone."""

    async def one(number: int) -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(number)
        except TimeoutError:
            return "late"
        return "in time"

    async def main(width: int) -> list[str]:
        return await all_of(mapped(from_iterable([1, 9, 2]), one, width=width))

    assert (
        simulate(partial(main, 1)) == simulate(partial(main, 3)) == ["in time", "late", "in time"]
    )


def test_a_task_factory_is_used() -> None:
    """Calls are tasks of the loop's factory, where it has one."""
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work.__name__)
        return asyncio.Task(work, loop=loop, **options)

    async def main() -> list[int]:
        asyncio.get_running_loop().set_task_factory(factory)
        return await all_of(mapped(from_iterable(range(3)), twice, width=2))

    assert simulate(main) == [0, 2, 4]
    assert made[:4] == ["_pull", "_run", "_run", "_run"]


def test_a_failed_stream_holds_nothing() -> None:
    """The error that ended a stream is in no cycle with it, so both go when nobody holds them."""

    class Heavy(ValueError):
        pass

    async def one(number: int) -> int:
        raise Heavy(number)

    async def main() -> None:
        for width in (1, 3):
            with contextlib.suppress(Heavy):
                await all_of(mapped(from_iterable(range(3)), one, width=width))

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        assert not [one for one in gc.get_objects() if type(one) is Heavy]
    finally:
        gc.enable()
