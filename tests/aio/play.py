"""Play: one schedule on a simulated loop, with every law looked at."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.aio.laws import Outcome, Told
from tests.aio.parts import OWNER, Work, pause, wait_of
from tests.aio.schedule import Schedule

from mergepoint.testing.simulated_time import Deadlock, SimulatedLoop, TooManySteps

PATIENCE = 100.0
"""After so many simulated seconds a reader of something that hangs is cancelled, twice."""


@dataclass(frozen=True)
class Played:
    """What became of a schedule: problems, by law, and everything that happened."""

    seed: int
    problems: tuple[tuple[str, str], ...]
    transcript: tuple[str, ...]
    outcome: str


def play(seed: int) -> Played:
    """Run a schedule and judge it."""
    schedule = Schedule(seed)
    laws = schedule.laws
    loop = SimulatedLoop(seed=seed, most=20_000, traced=True)
    outcome: Outcome | None = None
    try:
        outcome = loop.run(lambda: _main(schedule))
    except (Deadlock, TooManySteps) as error:
        laws.hold("stuck", holds=False, told=str(error))
    except KeyboardInterrupt:
        laws.hold("error", holds=schedule.interrupts, told="interrupted by nobody")
    except BaseExceptionGroup as errors:
        forgotten = schedule.drops and bool(schedule.cleaning)  # nobody is there to be told
        laws.hold("unseen", holds=forgotten, told=str(errors.exceptions))
    if outcome is not None:
        wants = schedule.plan.wants
        few = wants is None or len(outcome.got) <= wants
        laws.hold("results", holds=few, told=str(outcome))
        schedule.expected().judge(outcome, laws, allowed=schedule.cleaning)
    _look_after(schedule)
    return Played(seed, tuple(laws.problems), tuple(loop.transcript), str(outcome))


async def _main(schedule: Schedule) -> Outcome:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    schedule.build()
    await asyncio.sleep(1)
    asked = [one.name for one in schedule.watched if one.asked]
    schedule.laws.hold("lazy", holds=not asked, told=f"{asked} were asked by nobody")
    OWNER.set("taker")
    taker = _Taker(schedule)
    task = asyncio.create_task(taker.read(), name="taker")
    for step in schedule.plan.cancels:
        loop.call_at_step(loop.steps + step, taker.cancel)
    if schedule.hangs:
        loop.call_later(PATIENCE, taker.cancel)
        loop.call_later(2 * PATIENCE, taker.cancel)
    await asyncio.wait([task])
    if schedule.drops:
        await asyncio.sleep(PATIENCE)  # forgotten streams are closed by the loop, in its time
    schedule.laws.hold("alive", holds=not _alive(), told=f"{_alive()} at the end")
    return task.result()


class _Taker:
    """Reads the last stage as the plan says."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._stream = schedule.made.stream
        self._got: list[object] = []
        self._task: asyncio.Task[object] | None = None

    def cancel(self) -> None:
        """Cancel the taker, once it reads."""
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
        if not (self._schedule.drops or self._schedule.interrupts):
            left = f"{_alive()} when the taker is done: {how} {error}"
            self._schedule.laws.hold("alive", holds=not _alive(), told=left)
        return Outcome(tuple(self._got), how, error)

    async def _take(self) -> str:
        plan, stopped = self._schedule.plan, False
        try:
            while len(self._got) != plan.wants:
                try:
                    self._got.append(await anext(self._stream))
                except StopAsyncIteration:
                    return "end"
                await pause(wait_of(plan.waits, (len(self._got),)))
            stopped = True
            return "stopped"
        finally:
            if stopped and plan.drops:
                self._stream.forget()
            else:
                await self._stream.aclose()


def _alive() -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("reader", "call"))]


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
    plan = schedule.plan
    return len(plan.cancels) + (plan.wants is not None) + failures
