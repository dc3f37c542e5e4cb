"""Play: one whole recipe on a simulated loop, with faults, and every law looked at."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from tests.aio.laws import Laws, Told
from tests.streams.whole.blocks import REGISTRY
from tests.streams.whole.drawn import Draw
from tests.streams.whole.meaning import Item, Meaning
from tests.streams.whole.model import Answering, Log, Manner

from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun
from mergepoint.streams.resolved_recipe import PlannedRecipe
from mergepoint.streams.thing import Thing, fold
from mergepoint.testing.simulated_time import Deadlock, SimulatedLoop, TooManySteps

STEPS = 60_000
PATIENT = 10_000.0  # a call that hangs does so until the reader is cancelled
WAITS: Sequence[Sequence[float | None]] = (
    (None,),
    (None, 0),
    (0,),
    (None, 0, 1, 5),
    (1,),
    (0.1, 2, 9),
)


@dataclass
class Source:
    """Items that may come slowly, fail, or stop coming."""

    count: int
    fails: int | None
    hangs: int | None
    waits: Sequence[float | None]
    opened: int = 0
    closed: int = 0

    async def stream(self) -> AsyncGenerator[str, None]:
        """Yield the items."""
        self.opened += 1
        try:
            for number in range(self.count):
                if (seconds := self.waits[number % len(self.waits)]) is not None:
                    await asyncio.sleep(seconds)
                if number == self.hangs:
                    await asyncio.Event().wait()
                if number == self.fails:
                    raise Told(f"source at {number}")
                yield f"i{number}"
        finally:
            self.closed += 1

    def meant(self) -> Iterator[Item]:
        """Yield the same without a loop."""
        for number in range(self.count):
            if number == self.fails:
                raise Told(f"source at {number}")
            yield Item(str(number), f"i{number}")


@dataclass
class Schedule:
    """What is drawn from a seed: a recipe, its faults, its limits, and how it is read."""

    seed: int
    laws: Laws = field(default_factory=Laws)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        self.random = random = Random(f"whole {self.seed}")  # noqa: S311  (no secret)
        rails: dict[str, Any] = {}
        if random.random() < 0.2:
            rails["calls"] = random.randrange(12)
        if random.random() < 0.15:
            rails["deadline"] = random.choice((0.5, 3.0, 20.0))
        rails["deadlock"] = random.choice((20.0, 60.0))
        self.draw = Draw(random, rails=rails)
        self.recipe: Recipe = self.draw.recipe()
        self.limited = bool({"calls", "deadline"} & rails.keys())
        self.budget = rails.get("calls")
        self.manner = Manner(
            random.choice(WAITS),
            fails=random.randrange(23) if random.random() < 0.3 else None,
            hangs=random.randrange(23) if random.random() < 0.1 else None,
        )
        count = random.choice((0, 1, 2, 3, 5, 8))
        self.source = Source(
            count,
            fails=random.randrange(count + 1) if random.random() < 0.1 else None,
            hangs=random.randrange(count + 1) if random.random() < 0.1 else None,
            waits=random.choice(WAITS),
        )
        self.wants = random.randrange(6) if random.random() < 0.3 else None
        self.cancels = sorted(random.randrange(400) for _ in range(random.choice((0, 0, 1, 1, 2))))
        self.reading = random.choice(WAITS)

    def expected(self) -> tuple[list[Item], str]:
        """Return what comes one after the other, and the error that ends it."""
        found: list[Item] = []
        try:
            meaning = Meaning(check=self.manner.check)
            found += meaning.of(self.recipe, self.source.meant(), self.recipe.name)
        except Told as error:
            return found, str(error)
        return found, ""


@dataclass(frozen=True)
class Played:
    """What became of a schedule."""

    seed: int
    problems: tuple[tuple[str, str], ...]
    transcript: tuple[str, ...]
    told: tuple[str, ...]


@dataclass
class Read:
    """What a reader got, and how that ended."""

    got: list[Thing] = field(default_factory=list)
    how: str = ""
    error: str = ""


def play(seed: int) -> Played:
    """Run a schedule and judge it."""
    schedule = Schedule(seed)
    laws = schedule.laws
    loop = SimulatedLoop(seed=seed, most=STEPS, traced=True)
    model = Answering(manner=schedule.manner, log=schedule.log)
    options = RecipeOptions(runs=None, model=model, timeout=PATIENT, registry=REGISTRY)
    run = RecipeRun.of(schedule.recipe, schedule.source.stream(), options)
    read = Read()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loop.run(lambda: _main(schedule, run, read))
    except (Deadlock, TooManySteps) as error:
        laws.hold("stuck", holds=False, told=str(error))
    except BaseExceptionGroup as errors:
        laws.hold("unseen", holds=False, told=str(errors.exceptions))
    _judge_things(schedule, run, read)
    _judge_calls(schedule, run, read)
    told = [f"{thing.id}={thing.content}" for thing in read.got]
    records = [f"{one.path} {one.answered}" for one in run.journal.records]
    return Played(
        seed, tuple(laws.problems), tuple(loop.transcript), (*told, read.how, read.error, *records)
    )


async def _main(schedule: Schedule, run: RecipeRun, read: Read) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    stream = run.stream()
    await asyncio.sleep(1)
    schedule.laws.hold(
        "lazy", holds=not (schedule.source.opened or schedule.log.begun), told="nobody asked"
    )
    task = asyncio.create_task(_read(schedule, stream, read), name="reader")
    for step in schedule.cancels:
        loop.call_at_step(loop.steps + step, task.cancel)
    loop.call_later(5_000.0, task.cancel)  # what hangs without a deadline
    loop.call_later(5_100.0, task.cancel)
    await asyncio.wait([task])
    left = [one.get_name() for one in asyncio.all_tasks() if one is not asyncio.current_task()]
    schedule.laws.hold("alive", holds=not left, told=f"{left} after {read.how} {read.error}")


async def _read(schedule: Schedule, stream: AsyncGenerator[Thing, None], read: Read) -> None:
    try:
        async with aclosing(stream):
            while len(read.got) != schedule.wants:
                try:
                    read.got.append(await anext(stream))
                except StopAsyncIteration:
                    read.how = "end"
                    return
                seconds = schedule.reading[len(read.got) % len(schedule.reading)]
                if seconds is not None:
                    await asyncio.sleep(seconds)
            read.how = "stopped"
    except asyncio.CancelledError:
        read.how = "cancelled"
    except Exception as error:  # noqa: BLE001  (one that no schedule asks for is judged too)
        read.how, read.error = "error", str(error) if isinstance(error, Told) else repr(error)


def _judge_things(schedule: Schedule, run: RecipeRun, read: Read) -> None:
    laws, stops = schedule.laws, [] if run.executor is None else run.executor.stops.all
    meant, error = schedule.expected()
    got = [(thing.id, thing.content) for thing in read.got]
    whole = [(item.id, item.content) for item in meant]
    told = f"{got} of {whole}, {read.how} {read.error or error}, {[str(one) for one in stops]}"
    if not stops:
        laws.hold("prefix", holds=got == whole[: len(got)], told=told)
        if read.how in ("end", "error"):
            partly = schedule.draw.batches and bool(error)  # a batch that is not whole is lost
            laws.hold("results", holds=partly or len(got) == len(whole), told=told)
            laws.hold("error", holds=(read.how == "error") == bool(error), told=told)
    elif not (schedule.draw.joined or schedule.draw.turns or error):
        laws.hold("prefix", holds=_is_part(got, whole), told=told)
    if read.how == "error":
        laws.hold("error", holds=bool(stops) or read.error == error, told=told)
    allowed = schedule.limited or schedule.source.hangs is not None
    laws.hold("stops", holds=allowed or not stops, told=told)
    ids = [thing.id for thing in read.got]
    laws.hold("ids", holds=len(set(ids)) == len(ids), told=str(ids))
    for thing in read.got:
        laws.hold("fold", holds=thing == fold(thing.history), told=f"{thing}")
        states = [fold(thing.history[:end]) for end in range(1, len(thing.history) + 1)]
        for before, after in pairwise(states):
            grown = before.props.keys() <= after.props.keys()
            laws.hold("grow", holds=grown, told=f"{thing.history}")


def _is_part(got: Sequence[object], whole: Sequence[object]) -> bool:
    left = iter(whole)
    return all(one in left for one in got)


def _judge_calls(schedule: Schedule, run: RecipeRun, read: Read) -> None:
    laws, log, records = schedule.laws, schedule.log, run.journal.records
    begun, known = Counter(log.begun), Counter(one.path for one in records)
    laws.hold("record", holds=begun == known, told=f"begun {begun}, on record {known}")
    laws.hold("once", holds=all(n == 1 for n in known.values()), told=str(known))
    laws.hold("over", holds=log.over == begun, told=f"{begun - log.over} are not over")
    if schedule.budget is not None:
        laws.hold("budget", holds=len(log.begun) <= schedule.budget, told=str(log.begun))
    answered = {one.key.full_path for one in records if one.answered}
    used = {call for thing in read.got for entry in thing.history for call in entry.calls}
    laws.hold("told", holds=used <= answered, told=f"{used - answered} in histories alone")
    for thing in read.got:
        named = all(entry.calls for entry in thing.history if entry.block == "say")
        laws.hold("told", holds=named, told=f"{thing.history}")
    if run.executor is not None:
        watchdog = run.executor.watchdog
        still = not watchdog.calls and not watchdog.channels
        laws.hold(
            "motion", holds=still, told=f"{watchdog.calls} calls, {len(watchdog.channels)} links"
        )
    closed = schedule.source.closed == schedule.source.opened
    laws.hold("closed", holds=closed, told="the source is open")
    for at, (planned, most) in _widths(run.setup.planned).items():
        told = f"{log.most[at]} calls of {planned} at once"
        laws.hold("width", holds=log.most[at] <= most, told=told)
    _judge_landing(schedule, run, read)


def _judge_landing(schedule: Schedule, run: RecipeRun, read: Read) -> None:
    """Hold that calls which had begun are answered, unless they hung or were stopped twice."""
    manner, source = schedule.manner, schedule.source
    others = (manner.fails, source.fails, schedule.wants, True if schedule.limited else None)
    stops = len(schedule.cancels) + sum(one is not None for one in others)
    if stops > 1 or manner.hangs is not None or source.hangs is not None:
        return
    for one in run.journal.records:
        told = f"{one.path} of {read.how} {read.error}: {one.error}"
        failed = manner.fails is not None and "Told" in str(one.error)
        schedule.laws.hold("land", holds=one.answered or failed, told=told)


def _widths(planned: PlannedRecipe, times: int = 1) -> dict[str, tuple[str, int]]:
    """Return how many calls each stage may have in flight."""
    recipe = planned.recipe
    together = not recipe.each and any(
        one.barrier or one.batch is not None or one.kind.in_order for one in planned.blocks()
    )
    if recipe.each or (recipe.recurrent and not together):
        times *= recipe.concurrency
    found: dict[str, tuple[str, int]] = {}
    for stage in planned.stages:
        if isinstance(stage, PlannedRecipe):
            found.update(_widths(stage, times))
        else:
            found[stage.stage_id.replace(".", "/")] = (stage.stage_id, stage.width * times)
    return found
