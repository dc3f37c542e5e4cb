"""Limits of a batch with four workers that are killed: counted at a model server."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of
from tests.scale.limited_worker import CONCURRENCY, STEPS, Order, work

from mergepoint.models.pricing import PICO
from mergepoint.scale.shared_budget import usage_of
from mergepoint.testing.server import ModelServer, ServerReply

pytestmark = pytest.mark.campaign

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.scale.limited_worker"])

WORKERS = 4
RUNS = 60
WINDOW = 3.0
REQUESTS = 30


class Counted:
    """The script of a server: when each request came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._lock = threading.Lock()

    def __call__(self, body: Any) -> ServerReply:
        """Return an answer that uses 15 tokens."""
        with self._lock:
            self.times.append(time.monotonic())
        return ServerReply("x", delay=0.05, usage=(10, 5))

    def most_in(self, window: float) -> int:
        """Return the largest number of requests in any window."""
        times = sorted(self.times)
        return max(sum(start <= at < start + window for at in times) for start in times)


def campaign(
    orders: list[Order], counted: Counted, *, kills: list[int]
) -> tuple[set[str], list[str], int]:
    """Run workers, kill one with SIGKILL at each number of requests, and begin it again.

    Returns the finished runs, how the workers ended, and how many were killed.
    """
    chance = random.Random(kills[0])  # noqa: S311
    done: set[str] = set()
    ends: list[str] = []
    killed = 0
    going: dict[int, tuple[Any, Any]] = {}
    for number, order in enumerate(orders):
        going[number] = _started(order)
    until = time.monotonic() + 200
    while going:
        assert time.monotonic() < until, f"{len(done)} runs are done"
        time.sleep(0.05)
        for number, (process, pipe) in list(going.items()):
            try:
                while pipe.poll():
                    told = pipe.recv()
                    (ends.append if told in ("end", "budget") else done.add)(told)
            except EOFError:  # it has ended, and all that it told was read
                process.join()
                assert process.exitcode == 0
                del going[number]
        if kills[killed:] and going and len(counted.times) >= kills[killed]:
            number = chance.choice(sorted(going))
            process, pipe = going.pop(number)
            process.kill()
            process.join()
            killed += 1
            going[number] = _started(orders[number])
    return done, ends, killed


def _started(order: Order) -> tuple[Any, Any]:
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=work, args=(order, theirs))
    process.start()
    theirs.close()
    return process, ours


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_limits_hold_over_workers_that_are_killed(kind: str, tmp_path: Path) -> None:
    """Calls are within the budget, requests within the rate, and a larger budget ends all runs."""
    counted = Counted()
    with place_of(kind, tmp_path) as place, ModelServer(counted) as server:
        at = place.address if kind == "postgresql" else str(tmp_path / "limits.db")
        whole = RUNS * STEPS

        def orders(calls: int) -> list[Order]:
            limits = {
                "requests_per_minute": REQUESTS,
                "tokens_per_minute": 100_000,
                "window": WINDOW,
                "margin": 3.0,  # a busy machine needs a second from a permission to the arrival
                "budget": {"calls": calls, "tokens": 10**6, "usd": 1},
                "at": at,
            }
            names = [f"r{n}" for n in range(RUNS)]
            return [
                Order(tuple(names[n::WORKERS]), place.address, server.url, limits)
                for n in range(WORKERS)
            ]

        small = whole // 2
        _, ends, killed = campaign(orders(small), counted, kills=[12, 31, 33, 64])
        first = len(counted.times)
        used = usage_of("b", at)
        print(f"{kind}: {first} calls of {small}, {killed} kills, {used}, ended by {ends}")
        assert "budget" in ends
        assert first <= used.spent.calls + used.held.calls <= small

        done, ends, more = campaign(orders(10 * whole), counted, kills=[97, 115, 130, 151])
        total = len(counted.times)
        used = usage_of("b", at)
        lost = (killed + more) * CONCURRENCY
        print(f"{kind}: {total} calls for {whole}, {more} kills, {used}")
        print(f"{kind}: at most {counted.most_in(WINDOW)} requests in {WINDOW:g} s")
        assert ends == ["end"] * WORKERS
        assert len(done) == RUNS or more
        assert used.held == (0, 0, 0)
        assert whole <= total <= used.spent.calls <= whole + lost
        # What a call used that was in progress at a kill isn't known. One that was cancelled is
        # charged the most that it could use.
        assert 15 * (total - lost) <= used.spent.tokens <= 15 * total + 500 * lost
        assert used.spent.pico == used.spent.tokens * PICO // 10**6
        assert counted.most_in(WINDOW) <= REQUESTS
