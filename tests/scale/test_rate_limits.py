"""Rate limits: at most so many requests and tokens in any window, in order, for all workers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.journal.places import place_of

from mergepoint import MergepointError, scale
from mergepoint.core.errors import RailError
from mergepoint.scale.rate_limits import (
    Permission,
    Quota,
    RateLimiter,
    RateLimits,
    RequestTooLarge,
    correct,
    estimated_tokens,
    give_back,
    quotas,
    take_all,
)

LIMITS = RateLimits(5, 1_000, window=60, margin=1)


class ManualClock:
    """Milliseconds that a test sets."""

    def __init__(self) -> None:
        self.ms = 10**12

    def __call__(self) -> int:
        """Return the time."""
        return self.ms


@contextmanager
def limiter(limits: RateLimits, at: str | None = None) -> Iterator[RateLimiter]:
    """Yield an open limiter, and close it."""
    made = RateLimiter(limits, at)
    made.open()
    try:
        yield made
    finally:
        made.close()


def most_in(window: float, sent: Sequence[tuple[float, int]]) -> int:
    """Return the largest sum of amounts in any window of so many milliseconds."""
    return max(
        (sum(n for at, n in sent if start <= at < start + window) for start, _ in sent), default=0
    )


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 1),  # the worker that asks
        st.integers(0, 30_000),  # milliseconds before it does
        st.integers(1, 1_000),  # tokens
        st.integers(0, 1_000),  # the delay of its sending
        st.sampled_from(["sent", "settled", "not sent"]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("place", ["memory", "file"])
@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS)
def test_no_window_has_more_than_the_limit(
    place: str, actions: list[tuple[int, int, int, int, str]]
) -> None:
    """However the requests of two workers come and are delayed, no 60 seconds have more."""
    clock, sent, tokens = ManualClock(), list[tuple[float, int]](), list[tuple[float, int]]()
    with TemporaryDirectory() as folder:
        at = None if place == "memory" else f"{folder}/limits.db"
        workers = [quotas(LIMITS, at, clock=clock) for _ in range(2)]
        for number, (worker, pause, wanted, delay, fate) in enumerate(actions):
            clock.ms += pause
            owned: tuple[Quota, ...] = workers[worker if at else 0]
            granted = take_all(owned, f"n{number}", wanted)
            while isinstance(granted, int):
                assert 0 < granted <= 61_000
                clock.ms += granted
                granted = take_all(owned, f"n{number}", wanted)
            assert isinstance(granted, Permission)
            if fate == "not sent":
                give_back(owned, granted)
                continue
            used = wanted if fate == "sent" else wanted // 2
            if fate == "settled":
                correct(owned, granted, used)
            sent.append((clock.ms + delay, 1))
            tokens.append((clock.ms + delay, used))
        for owned in workers:
            for quota in owned:
                quota.close()
    assert most_in(60_000, sent) <= 5
    assert most_in(60_000, tokens) <= 1_000


def test_nobody_waits_longer_than_needed() -> None:
    """The sixth request may go as soon as the first has left the window, and not later."""
    clock = ManualClock()
    owned = quotas(RateLimits(5, margin=1), None, clock=clock)
    for number in range(5):
        assert isinstance(take_all(owned, f"n{number}", 1), Permission)
        clock.ms += 1_000
    wait = take_all(owned, "n5", 1)
    assert wait == 61_000 - 5_000 + 1
    clock.ms += 56_001
    assert isinstance(take_all(owned, "n5", 1), Permission)


def test_more_tokens_than_estimated_count_too() -> None:
    """An answer that was longer than its estimate leaves less room for the next request."""
    clock = ManualClock()
    owned = quotas(RateLimits(tokens_per_minute=100), None, clock=clock)
    first = take_all(owned, "a", 10)
    assert isinstance(first, Permission)
    correct(owned, first, 90)
    assert isinstance(take_all(owned, "b", 20), int)
    assert isinstance(take_all(owned, "c", 10), Permission)


def test_a_clock_that_is_set_back_delays_by_one_window(tmp_path: Path) -> None:
    """Entries of the future count as sent now, instead of blocking for an hour."""
    clock = ManualClock()
    owned = quotas(RateLimits(1, margin=1), str(tmp_path / "l.db"), clock=clock)
    take_all(owned, "a", 1)
    clock.ms -= 3_600_000
    wait = take_all(owned, "b", 1)
    assert isinstance(wait, int)
    assert wait <= 61_000
    clock.ms += 61_002
    assert isinstance(take_all(owned, "b", 1), Permission)
    for quota in owned:
        quota.close()


def test_requests_are_granted_in_the_order_in_which_they_ask() -> None:
    """A small request doesn't overtake a large one that waits."""
    order: list[str] = []
    with limiter(RateLimits(tokens_per_minute=100, window=0.3, margin=0.05)) as limits:
        for name, tokens in (("a", 60), ("b", 80), ("c", 10)):
            asked = limits.ask(tokens)
            asked.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
        asked.result(5)
    assert order == ["a", "b", "c"]


def test_a_cancelled_request_lets_the_next_one_pass() -> None:
    """The request behind a cancelled one doesn't wait for what that one needed."""
    with limiter(RateLimits(tokens_per_minute=100)) as limits:
        limits.ask(60).result(5)
        large, small = limits.ask(90), limits.ask(10)
        assert large.cancel()
        started = time.monotonic()
        small.result(5)
        assert time.monotonic() - started < 2


def test_what_is_given_back_or_settled_makes_room() -> None:
    """A request that wasn't sent, and one that used less, let others pass before their time."""
    with limiter(RateLimits(2, 100)) as limits:
        first, second = limits.ask(50).result(5), limits.ask(50).result(5)
        limits.release(first)
        limits.settle(second, 10)
        assert limits.ask(85).result(5).tokens == 85


def test_an_old_permission_is_not_fresh() -> None:
    """A worker that was paused between its permission and its request has to ask again."""
    with limiter(RateLimits(5, margin=0.6)) as limits:
        permission = limits.ask(1).result(5)
        assert limits.fresh(permission)
        time.sleep(0.31)
        assert not limits.fresh(permission)


def test_a_request_that_never_fits_is_refused() -> None:
    """More tokens than the whole window are refused, also where units round them."""
    for most in (100, 5_001, 123_457):
        with limiter(RateLimits(tokens_per_minute=most)) as limits:
            limits.ask(most - 200 if most > 200 else most).result(5)
            with pytest.raises(RequestTooLarge, match=f"{most:,}"):
                limits.ask(most + 1)


def test_closing_refuses_what_waits() -> None:
    """Nobody waits for limits that are closed."""
    with limiter(RateLimits(1)) as limits:
        limits.ask(1).result(5)
        waits, cancelled = limits.ask(1), limits.ask(1)
        cancelled.cancel()
    with pytest.raises(RailError, match="closed"):
        waits.result(5)
    with pytest.raises(CancelledError):
        cancelled.result(5)


def test_a_place_that_is_unusable_is_an_error(tmp_path: Path) -> None:
    """A folder in place of a file, and a server that doesn't answer, are reported at the start."""
    with pytest.raises(MergepointError, match="rate limits"), limiter(RateLimits(1), str(tmp_path)):
        pass
    with (
        pytest.raises(MergepointError, match="cannot reach"),
        limiter(RateLimits(1), "postgresql://nobody@127.0.0.1:1/none"),
    ):
        pass


def test_estimates_reserve_a_third_of_the_bytes_and_the_whole_answer() -> None:
    """A prompt of at most 300 tokens and an answer of at most 50 reserve 150."""
    assert estimated_tokens(300, 50) == 150


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_threads_and_workers_share_a_window(kind: str, tmp_path: Path) -> None:
    """Three workers with four threads each are granted the limit, and the next one window later."""
    window, margin, most = 0.5, 0.3, 15
    granted: list[tuple[float, int]] = []
    with place_of(kind, tmp_path) as place:
        at = place.address if kind == "postgresql" else str(tmp_path / "limits.db")
        limits = RateLimits(most, 10**6, window=window, margin=margin)

        def work(owner: RateLimiter) -> None:
            for _ in range(4):
                permission = owner.ask(100).result(30)
                granted.append((time.monotonic(), 1))
                owner.settle(permission, 50)

        with limiter(limits, at) as a, limiter(limits, at) as b, limiter(limits, at) as c:
            threads = [threading.Thread(target=work, args=(one,)) for one in (a, b, c) * 4]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(granted) == 48
    assert most_in(window, granted) <= most
    assert granted[-1][0] - granted[0][0] < 3 * (window + margin) + 2


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pyrate-limiter isn't installed, the error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyrate_limiter", None)
    monkeypatch.delitem(sys.modules, "mergepoint.scale.rate_buckets", raising=False)
    monkeypatch.delattr(scale, "rate_buckets", raising=False)
    with pytest.raises(MergepointError, match=r"\[limits\]"), limiter(RateLimits(1)):
        pass
