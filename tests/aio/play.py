"""Play: one schedule on a simulated loop, with every law looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tests.aio.laws import Outcome, Told
from tests.aio.parts import OWNER, Work, pause, wait_of
from tests.aio.schedule import Made, Plan, Schedule

from mergepoint.testing.simulated_time import Deadlock, SimulatedLoop, TooManySteps

Batch = Sequence[Any]

PATIENCE = 100.0
"""After so many simulated seconds a reader of something that hangs is cancelled, twice."""


@dataclass(frozen=True)
class Played:
    """What became of a schedule: problems, by law, and everything that happened."""

    seed: int
    problems: tuple[tuple[str, str], ...]
    transcript: tuple[str, ...]
    outcomes: tuple[str, ...]


def play(seed: int) -> Played:
    """Run a schedule and judge it."""
    schedule = Schedule(seed)
    laws = schedule.laws
    loop = SimulatedLoop(seed=seed, most=20_000, traced=True)
    outcomes: list[Outcome] = []
    try:
        outcomes = loop.run(lambda: _main(schedule))
    except (Deadlock, TooManySteps) as error:
        laws.hold("stuck", holds=False, told=str(error))
    except KeyboardInterrupt:
        laws.hold("error", holds=schedule.interrupts, told="interrupted by nobody")
    except BaseExceptionGroup as errors:
        forgotten = schedule.drops and bool(schedule.cleaning)  # nobody is there to be told
        laws.hold("unseen", holds=forgotten, told=str(errors.exceptions))
    for made, plan, outcome in zip(schedule.exits, schedule.plans, outcomes, strict=False):
        _judge(schedule, made, plan, outcome)
    _look_after(schedule)
    told = tuple(str(outcome) for outcome in outcomes)
    return Played(seed, tuple(laws.problems), tuple(loop.transcript), told)


async def _main(schedule: Schedule) -> list[Outcome]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    schedule.build()
    await asyncio.sleep(1)
    asked = [one.name for one in schedule.watched if one.asked]
    schedule.laws.hold("lazy", holds=not asked, told=f"{asked} were asked by nobody")
    OWNER.set("taker")
    readers = [
        _Reader(schedule, made, plan)
        for made, plan in zip(schedule.exits, schedule.plans, strict=True)
    ]
    tasks = [asyncio.create_task(reader.read(), name="reader") for reader in readers]
    for reader in readers:
        for step in reader.plan.cancels:
            loop.call_at_step(loop.steps + step, reader.cancel)
        if schedule.hangs:
            loop.call_later(PATIENCE, reader.cancel)
            loop.call_later(2 * PATIENCE, reader.cancel)
    await asyncio.wait(tasks)
    if schedule.drops:
        await asyncio.sleep(PATIENCE)  # forgotten streams are closed by the loop, in its time
    schedule.laws.hold("alive", holds=not _alive(), told=f"{_alive()} at the end")
    return [task.result() for task in tasks]


class _Reader:
    """Reads one exit as its plan says."""

    def __init__(self, schedule: Schedule, made: Made, plan: Plan) -> None:
        self.plan = plan
        self._schedule = schedule
        self._stream = made.stream
        self._got: list[object] = []
        self._task: asyncio.Task[object] | None = None

    def cancel(self) -> None:
        """Cancel the reader, once it reads."""
        if self._task is not None:
            self._task.cancel()

    async def read(self) -> Outcome:
        """Read, and close in any case but one."""
        self._task = asyncio.current_task()
        error = ""
        try:
            how = await self._take()
        except asyncio.CancelledError:
            how = "cancelled"
        except Exception as told:  # noqa: BLE001  (one that no schedule asks for is judged too)
            how, error = "error", str(told) if isinstance(told, Told) else repr(told)
        readers = [task for task in asyncio.all_tasks() if task.get_name() == "reader"]
        if len(readers) == 1 and not (self._schedule.drops or self._schedule.interrupts):
            left = f"{_alive()} when the last reader is done: {how} {error}"
            self._schedule.laws.hold("alive", holds=not _alive(), told=left)
        return Outcome(tuple(self._got), how, error)

    async def _take(self) -> str:
        stopped = False
        try:
            while len(self._got) != self.plan.wants:
                try:
                    self._got.append(await anext(self._stream))
                except StopAsyncIteration:
                    return "end"
                await pause(wait_of(self.plan.waits, (len(self._got),)))
            stopped = True
            return "stopped"
        finally:
            if stopped and self.plan.drops:
                self._stream.forget()
            else:
                await self._stream.aclose()


def _alive() -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("pump", "call"))]


def _judge(schedule: Schedule, made: Made, plan: Plan, outcome: Outcome) -> None:
    schedule.laws.hold(
        "results", holds=plan.wants is None or len(outcome.got) <= plan.wants, told=str(outcome)
    )
    if made.flat:
        flat = tuple(item for batch in outcome.got for item in cast("Batch", batch))
        outcome = replace(outcome, got=flat)
    schedule.expected(made).judge(outcome, schedule.laws, allowed=schedule.cleaning)


def _look_after(schedule: Schedule) -> None:
    """Look at what was left behind."""
    laws = schedule.laws
    for one in schedule.watched:
        begun = one.asked or not schedule.interrupts  # which may come before a reader does
        laws.hold(
            "closed",
            holds=one.closed == 1 or not begun,
            told=f"{one.name} was closed {one.closed} times",
        )
    for source in schedule.sources:
        told = f"a source was opened {source.opened} and shut {source.shut} times"
        laws.hold("closed", holds=source.shut == source.opened, told=told)
    for work in schedule.works:
        told = f"{work.running} calls of {work.name} are not over"
        laws.hold("alive", holds=work.running == 0, told=told)
    if not (schedule.hangs or schedule.interrupts):
        for work in schedule.landing:
            told = f"{work.calls['cancelled']} calls of {work.name} were not let land"
            landed = not work.calls["cancelled"] or _stops(schedule, work) > 1
            laws.hold("land", holds=landed, told=told)


def _stops(schedule: Schedule, work: Work) -> int:
    """Return how often a stage may have been stopped; its own failure does not count."""
    others = [one.faults for one in schedule.works if one is not work]
    faults = [*others, *(source.faults for source in schedule.sources)]
    failures = any(one.fails is not None or one.closing for one in faults)
    stops = [len(plan.cancels) + (plan.wants is not None) for plan in schedule.plans]
    return max(stops) + failures
