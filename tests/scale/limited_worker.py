"""A worker process of a batch with limits, which is killed at any moment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from langchain_openai import ChatOpenAI

import mergepoint
from mergepoint import Block, Price, Step
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.models.pricing import read_catalogue
from mergepoint.scale.limits import open_limits
from mergepoint.scale.shared_budget import BatchBudgetExceeded

# Loaded in the fork server. Otherwise the first calls of each worker would load the modules of the
# client after their permission to send, and arrive seconds later on a busy machine.
os.environ["OPENAI_API_KEY"] = "none"
assert ChatOpenAI(model="none").root_async_client.chat.completions
read_catalogue()

MODEL = "openai:scripted"
PRICES = {MODEL: Price(1, 1)}
STEPS = 3
CONCURRENCY = 6
TREE = Block(
    [Step(f"Say {n}.", name=f"s{n}", params={"max_tokens": 20}) for n in range(STEPS)],
    name="root",
)


@dataclass(frozen=True)
class Order:
    """What a worker does: the runs, where they are kept, and the limits."""

    runs: tuple[str, ...]
    store: str
    url: str
    limits: Mapping[str, Any]


def work(order: Order, told: Connection) -> None:
    """Make or resume the runs, and tell which is done; a budget that is used up ends it."""
    try:
        asyncio.run(_work(order, told))
        told.send("end")
    except* BatchBudgetExceeded:
        told.send("budget")


async def _work(order: Order, told: Connection) -> None:
    store = SqlStore(order.store)
    opened = open_limits(order.limits, batch="b")
    assert opened is not None
    free = asyncio.Semaphore(CONCURRENCY)

    async def one(run: str) -> None:
        async with free:
            known = await asyncio.to_thread(store.has, run)
            records = (await asyncio.to_thread(store.read, run))[1] if known else ()
            about: Any = {"resume": run} if known else {"run_id": run}
            async with limits.run(run, records):
                await mergepoint.arun(
                    TREE, model=MODEL, base_url=order.url, prices=PRICES, runs=store, **about
                )
            told.send(run)

    async with opened as limits, asyncio.TaskGroup() as group:
        for run in order.runs:
            group.create_task(one(run))
