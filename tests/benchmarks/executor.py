"""Executor: what a recipe costs for each model call, above what the door costs."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from tests.benchmarks.model import EchoModel
from tests.benchmarks.result import Ratio, Results, Spent
from tests.benchmarks.timing import Times

from mergepoint.aio.map import mapped
from mergepoint.aio.stream import from_iterable
from mergepoint.engine.callbacks import Recorder
from mergepoint.journal.stores import MemoryJournal
from mergepoint.models.budget import BudgetLedger
from mergepoint.streams.executor import RecipeExecutor
from mergepoint.streams.model_calls import CallEnvironment, ModelAnswer, ModelRequest, StageModel
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.stage_run import entered
from mergepoint.streams.thing import Thing
from mergepoint.tree.policy import Budget, Policy

MOST = 60.0
"""Microseconds that the executor may take for a call."""

Timed = Callable[[], Coroutine[Any, Any, float]]


def recipe(width: int) -> Recipe:
    """Give one stage that asks once for each Thing."""
    stage = Stage("apply", params={"prompt": "Say {{ content }}."})
    return Recipe("r", (stage,), concurrency=width, rails={"calls": 10**9})


def above_the_door(items: int, repetitions: int, results: Results) -> None:
    """Time calls by a recipe (r), by the door alone (d), and by a recipe without a door (x)."""
    for width in (1, 16):
        contenders: dict[str, Timed] = {
            "r": partial(_recipe, items, width),
            "d": partial(_door, items, width),
            "x": partial(_executor, items, width),
        }
        found: dict[str, list[float]] = {letter: [] for letter in contenders}
        for _ in range(repetitions):
            for letter, timed in contenders.items():
                gc.collect()
                found[letter].append(asyncio.run(timed()) / items)
        times = {letter: Times(tuple(seconds)) for letter, seconds in found.items()}
        work = f"{items:,} calls of a recipe, {width} wide"
        for letter, one in times.items():
            middle, low = one.median * 1e6, one.minimum * 1e6
            results.spent.append(Spent("cpu", work, "async", letter, "cpu", middle, low))
        middle, low = times["x"].median * 1e6 / MOST, times["x"].minimum * 1e6 / MOST
        results.ratios.append(Ratio("cpu", work, "async", f"x/{MOST:g} us", middle, low, 1.0))
        middle, low = times["r"].median / times["d"].median, times["r"].minimum / times["d"].minimum
        results.ratios.append(Ratio("cpu", work, "async", "r/d", middle, low))


async def _recipe(items: int, width: int) -> float:
    options = RecipeOptions(runs=None, model=EchoModel())
    run = RecipeRun.of(recipe(width), list(map(str, range(items))), options)
    start = time.process_time()
    async for _ in run.stream():
        pass
    return time.process_time() - start


async def _door(items: int, width: int) -> float:
    ledger = BudgetLedger({"r": Budget(calls=10**9)}, root="r")
    config: RunnableConfig = {"callbacks": [Recorder(MemoryJournal())]}
    ask = StageModel(
        EchoModel(), CallEnvironment(run_id="r", config=config, budget=ledger), Policy()
    )

    async def one(number: int) -> ModelAnswer:
        return await ask(
            ModelRequest(
                thing_id=str(number),
                stage_id="r.stage_1.apply",
                number=0,
                sample=0,
                prompt=f"Say {number}.",
                system=None,
                schema=None,
            )
        )

    start = time.process_time()
    async for _ in mapped(from_iterable(range(items)), one, width=width):
        pass
    return time.process_time() - start


async def _executor(items: int, width: int) -> float:
    async def client(ask: ModelRequest, /) -> ModelAnswer:
        return ModelAnswer(text=f"to {ask.prompt}", call=f"r/{ask.thing_id}", model="m")

    async def source() -> AsyncGenerator[Thing, None]:
        for number in range(items):
            yield next(entered([str(number)], start=number))

    work = RecipeExecutor(plan(recipe(width)), lambda stage: client)
    start = time.process_time()
    async for _ in work.stream(source()):
        pass
    return time.process_time() - start
