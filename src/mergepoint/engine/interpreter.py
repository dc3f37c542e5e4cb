"""Interpreter: runs a tree without LangGraph, parallel children concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import GateOpen
from mergepoint.core.merge import State
from mergepoint.engine.budgets import Spending
from mergepoint.engine.callbacks import Recorder, recorders_of
from mergepoint.engine.gates import adecide, decide
from mergepoint.engine.leaf_calls import TreeCalls
from mergepoint.engine.run_constants import Facts, context_of, new_run_id, unused_run_id
from mergepoint.models.identity import ChatModel
from mergepoint.models.pricing import Price
from mergepoint.models.providers import View
from mergepoint.models.requests import sendable_messages
from mergepoint.models.timeouts import result_of, wait_all
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Gate, Loop, Node, root_path
from mergepoint.tree.policy import Budget
from mergepoint.tree.prompts import copied_message
from mergepoint.tree.semantics import Branch, Messages, drive, evaluate
from mergepoint.tree.validate import checked, given_inputs, inputs_of

# Siblings: the children of one parallel block while they run.
#
# A child's failure is a value until the exit. Without a limit all children start at entry, and
# all of them come to their end; with one, none starts after the first failure.


class Siblings:
    """Failures in one execution of a parallel block, by position."""

    def __init__(self, *, limited: bool) -> None:
        self._limited = limited
        self.failures: dict[int, Exception] = {}

    @property
    def may_start(self) -> bool:
        """Return whether another child may start."""
        return not (self._limited and self.failures)


SIBLINGS: ContextVar[Siblings | None] = ContextVar("mergepoint_siblings", default=None)


def first_failure(failures: Sequence[Exception]) -> Exception:
    """Return the failure that is first in declared order, with the others as notes.

    Gates that wait for a decision come before failures, and all of them together.
    """
    waiting = [failure for failure in failures if isinstance(failure, GateOpen)]
    if waiting:  # the others are tried again when the run goes on
        questions = [question for one in waiting for question in one.questions]
        rest = [failure for failure in failures if failure not in waiting]
        failures = [GateOpen(questions), *rest]
    first, *others = failures
    for other in others:
        if other is first:  # one object that several children raised
            continue
        path = getattr(other, "pipeline_path", "")
        first.add_note(f"also failed: {path}: {type(other).__name__}: {other}")
    return first


# The interpreter: a tree run as it is read, without a graph. The oracle of the compiler.


SYNC_WIDTH = 32


class Live:
    """An engine that calls models. With `sync` it doesn't use an event loop."""

    def __init__(
        self, calls: TreeCalls, facts: Facts, config: RunnableConfig, *, sync: bool
    ) -> None:
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
        """Return whether the loop's `until` holds."""
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
        try:
            for future in futures:
                result_of(future)
        finally:
            # Also after Ctrl-C: the end of the pool would wait without looking at a second one.
            wait_all(futures)


async def _coroutine(branch: Branch) -> Messages:
    return await branch()


def interpret(
    tree: Node,
    *,
    model: str | ChatModel | None,
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
    return drive(evaluate(tree, root_path(tree), base, onto=base, engine=engine))


async def ainterpret(
    tree: Node,
    *,
    model: str | ChatModel | None,
    messages: Sequence[BaseMessage] = (),
    inputs: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    seed: int = 0,
    view: View | None = None,
    recorder: Recorder | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Messages:
    """Run a tree like `interpret`, on an event loop."""
    engine, base = _started(
        tree, model, messages, inputs, run_id, seed, view, recorder, budget, prices, sync=False
    )
    return await evaluate(tree, root_path(tree), base, onto=base, engine=engine)


def _started(
    tree: Node,
    model: str | ChatModel | None,
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
    base = sendable_messages(messages)
    run = unused_run_id(run_id or new_run_id(), path, base)
    facts = Facts(run, "", seed, given)
    config: RunnableConfig = {"callbacks": [recorder]} if recorder is not None else {}
    calls = TreeCalls(model, view=view, spending=Spending(budget, prices)).made_for(tree, path)
    live = Live(calls, facts, config, sync=sync)
    return live, State(tuple(map(copied_message, base)))
