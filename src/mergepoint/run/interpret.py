"""The interpreter: a tree run as it is read, without a graph. The oracle of the compiler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.core.state import State
from mergepoint.models.prices import Price
from mergepoint.models.view import View
from mergepoint.run.calls import Calls
from mergepoint.run.deciding import adecide, decide
from mergepoint.run.facts import (
    Facts,
    context_of,
    given_inputs,
    new_run_id,
    unused_run_id,
    whole_messages,
)
from mergepoint.run.recorder import Recorder, recorders_of
from mergepoint.run.siblings import Siblings, first_failure
from mergepoint.run.spending import Spending
from mergepoint.tree.budget import Budget
from mergepoint.tree.call import Call
from mergepoint.tree.check import checked, inputs_of
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.fold import Branch, Messages, drive, fold
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, root_path
from mergepoint.tree.step import Step

SYNC_WIDTH = 32


class Live:
    """An engine that calls models; in `sync` work it never waits on an event loop."""

    def __init__(self, calls: Calls, facts: Facts, config: RunnableConfig, *, sync: bool) -> None:
        self._calls = calls
        self._facts = facts
        self._config = config
        self._sync = sync
        self._limit: int | None = config.get("max_concurrency")

    async def ask(self, step: Step, path: str, view: Messages) -> Messages:
        """Call the step's model."""
        return await self._run(step, path, view)

    async def call(self, call: Call, path: str, view: Messages) -> Messages:
        """Call the function, tool or Runnable."""
        return await self._run(call, path, view)

    async def _run(self, node: Step | Call, path: str, view: Messages) -> Messages:
        leaf = self._calls.of(node, path)
        if self._sync:
            return leaf.invoke(path, view, self._facts, self._config)
        return await leaf.ainvoke(path, view, self._facts, self._config)

    async def decide(self, gate: Gate, question: Question) -> Decision:
        """Ask who answers at gates."""
        with self._calls.spending.waiting(self._facts, recorders_of(self._config)):
            if self._sync:
                return decide(gate, question, self._facts, self._config)
            return await adecide(gate, question, self._facts, self._config)

    async def holds(self, loop: Loop, path: str, view: Messages, number: int) -> bool:
        """Look at the loop's `until`."""
        return loop.holds(context_of(path, view, self._facts, None))

    async def fork(self, branches: Sequence[Branch]) -> Sequence[Messages]:
        """Run children side by side, at most `max_concurrency` of the config at a time."""
        if not branches:
            return []
        siblings = Siblings(limited=self._limit is not None)
        kept: list[Messages] = [State()] * len(branches)
        if self._sync:
            _run_in_threads(branches, kept, siblings, self._limit or SYNC_WIDTH)
        else:
            await _run_in_tasks(branches, kept, siblings, self._limit or len(branches))
        if siblings.failures:
            raise first_failure([siblings.failures[i] for i in sorted(siblings.failures)])
        return kept


async def _run_in_tasks(
    branches: Sequence[Branch], kept: list[Messages], siblings: Siblings, limit: int
) -> None:
    waiting = iter(enumerate(branches))

    async def work() -> None:
        for position, branch in waiting:
            if not siblings.may_start:
                return
            try:
                kept[position] = await branch()
            except Exception as error:  # noqa: BLE001  (a value until the exit)
                siblings.failures[position] = error

    workers = [work() for _ in range(min(limit, len(branches)))]
    # With exceptions as results it waits for all: a cancelled run lets every call in flight land.
    for ended in await asyncio.gather(*workers, return_exceptions=True):
        if ended is not None:
            raise ended


def _run_in_threads(
    branches: Sequence[Branch], kept: list[Messages], siblings: Siblings, limit: int
) -> None:
    def work(position: int) -> None:
        if not siblings.may_start:
            return
        try:
            kept[position] = drive(_coroutine(branches[position]))
        except Exception as error:  # noqa: BLE001  (a value until the exit)
            siblings.failures[position] = error

    with ThreadPoolExecutor(min(limit, len(branches))) as threads:
        futures = [
            threads.submit(copy_context().run, work, position) for position in range(len(branches))
        ]
        for future in futures:
            future.result()


async def _coroutine(branch: Branch) -> Messages:
    return await branch()


def interpret(
    tree: Node,
    *,
    model: str | BaseChatModel | None,
    messages: Sequence[BaseMessage] = (),
    inputs: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    seed: int = 0,
    view: View | None = None,
    recorder: Recorder | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Messages:
    """Run a tree and give the state at the end: the whole conversation, and the outputs.

    Raises TreeError for a tree that cannot run, and whatever a step raises.
    """
    engine, base = _started(
        tree, model, messages, inputs, run_id, seed, view, recorder, budget, prices, sync=True
    )
    return drive(fold(tree, root_path(tree), base, onto=base, engine=engine))


async def ainterpret(
    tree: Node,
    *,
    model: str | BaseChatModel | None,
    messages: Sequence[BaseMessage] = (),
    inputs: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    seed: int = 0,
    view: View | None = None,
    recorder: Recorder | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Messages:
    """Do what `interpret` does, on an event loop."""
    engine, base = _started(
        tree, model, messages, inputs, run_id, seed, view, recorder, budget, prices, sync=False
    )
    return await fold(tree, root_path(tree), base, onto=base, engine=engine)


def _started(
    tree: Node,
    model: str | BaseChatModel | None,
    messages: Sequence[BaseMessage],
    inputs: Mapping[str, Any] | None,
    run_id: str | None,
    seed: int,
    view: View | None,
    recorder: Recorder | None,
    budget: Budget | Mapping[str, Any] | None,
    prices: Mapping[str, Price] | None,
    *,
    sync: bool,
) -> tuple[Live, Messages]:
    checked(tree)
    path = root_path(tree)
    given = given_inputs(inputs_of(tree), inputs, path=path)
    base = whole_messages(messages)
    run = unused_run_id(run_id or new_run_id(), path, base)
    facts = Facts(run, "", seed, given)
    config: RunnableConfig = {"callbacks": [recorder]} if recorder is not None else {}
    calls = Calls(model, view=view, spending=Spending(budget, prices)).made_for(tree, path)
    live = Live(calls, facts, config, sync=sync)
    return live, State(tuple(base))
