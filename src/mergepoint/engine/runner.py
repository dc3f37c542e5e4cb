"""ChatRunner: runs trees in a RunContext."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from mergepoint.engine.budgets import Spending, budgets_of
from mergepoint.engine.callbacks import Event, LoopEvents, PulledEvents, with_recorder
from mergepoint.engine.calls import TreeCalls
from mergepoint.engine.compiler import Form, Graph, compile_graph
from mergepoint.engine.context import RunContext, Turn
from mergepoint.engine.facts import RUN_ID, SEED
from mergepoint.engine.gates import GATES
from mergepoint.engine.journaling import Journaling, Origin, RunInputs, end_journal, hold_journal
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.stores import RunJournal, Store
from mergepoint.journal.writer import run_off_loop
from mergepoint.models.budget import BudgetSource
from mergepoint.models.identity import ChatModel, View
from mergepoint.models.pricing import Price, Prices
from mergepoint.models.providers import ModelSettings
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node, root_path
from mergepoint.tree.policy import Budget, as_budget
from mergepoint.tree.prompts import copied, copied_message
from mergepoint.tree.validate import as_tree

_KEPT = 64
_FLAT: Any = {"stream_mode": ["messages", "values"], "subgraphs": True}


class ChatRunner:
    """Runs trees with one model. The model is a chat model, "provider:name" or "offline".

    Works inside of a running event loop too (Jupyter): `run` uses none. A config in the context
    (callbacks, tags, max_concurrency) goes to every call. Each run has the whole `budget` (a
    Budget or a mapping of its fields); `prices` stand over those of genai-prices. `temperature`,
    `max_tokens`, `timeout` and `base_url` are those of `compile_graph`.

    With a `journal` (a folder, the URL of a database, or a store) each turn is written there as
    it happens, under its run's id. A turn that is there and was given the same goes on: no call
    that is on record is made again. A new one takes over what another run was answered
    (`reuse`), or every answer (`replay`).

    Raises TreeError for a budget or prices that are none, and what `store_at` raises.
    """

    def __init__(
        self,
        model: str | ChatModel | None = None,
        *,
        form: Form = "subgraphs",
        view: View | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        timeout: float | None = None,
        base_url: str | Mapping[str, str] | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        prices: Mapping[str, Price] | None = None,
        journal: Path | str | Store | None = None,
        reuse: Path | str | None = None,
        replay: Path | str | None = None,
    ) -> None:
        self._store = None if journal is None else store_at(journal)
        self._origin = Origin(reuse, replay)
        self._budget = as_budget(budget)
        self._prices = Prices(prices).declared
        self._model = model
        self._form: Form = form
        self._view = view
        self._settings: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "timeout": timeout,
            "base_url": base_url,
        }
        ModelSettings(**self._settings)  # raises for what they cannot be
        self._graphs: OrderedDict[tuple[int, tuple[str, ...]], _Known] = OrderedDict()
        self._journalings: OrderedDict[int, Journaling] = OrderedDict()

    def run(
        self, ctx: RunContext, tree: Node, *, config: RunnableConfig | None = None
    ) -> RunContext:
        """Run a tree on the context's conversation, and give the context back.

        On success the conversation grows by what the root keeps, and what this run captured is
        added to `outputs`. The tree can read what `outputs` contains already as it reads inputs;
        an input or a capture of the same name counts instead.

        Raises what a step raises, with `ctx.error` set and nothing else changed.
        """
        turn = ctx.begin(as_tree(tree))
        with _failing(ctx), self._journaled(ctx, turn):
            result = self._graph(turn).invoke(*self._given(ctx, turn, config))
            self._settle(ctx, turn, result)
        return ctx

    async def arun(
        self, ctx: RunContext, tree: Node, *, config: RunnableConfig | None = None
    ) -> RunContext:
        """Run a tree as `run` does, on an event loop."""
        turn = ctx.begin(as_tree(tree))
        with _failing(ctx):
            journal = await self._abegun(ctx, turn)
            try:
                result = await self._graph(turn).ainvoke(*self._given(ctx, turn, config))
                self._settle(ctx, turn, result)
            finally:
                await self._aended(ctx, journal)
        return ctx

    def events(
        self, ctx: RunContext, tree: Node, *, config: RunnableConfig | None = None
    ) -> Iterator[Event]:
        """Run a tree and give its events as they come: calls that start and end, every token.

        One flat stream over all nested blocks. When it is exhausted the context is as after
        `run`; a consumer that stops early stops the run, and the context stays as it was.
        """
        turn = ctx.begin(as_tree(tree))
        heard = PulledEvents()
        with _failing(ctx), self._journaled(ctx, turn), ctx.recorder.heard_by(heard):
            given, asked = self._given(ctx, turn, config)
            graph = self._graph(turn)
            result: Any = {}

            def work() -> None:
                nonlocal result
                for space, mode, chunk in graph.stream(given, asked, **_FLAT):
                    if mode == "values" and not space:
                        result = chunk

            yield from heard.of(work)
            self._settle(ctx, turn, result)

    async def aevents(
        self, ctx: RunContext, tree: Node, *, config: RunnableConfig | None = None
    ) -> AsyncIterator[Event]:
        """Yield events as `events` does, on an event loop."""
        turn = ctx.begin(as_tree(tree))
        heard = LoopEvents()
        with _failing(ctx), ctx.recorder.heard_by(heard):
            journal = await self._abegun(ctx, turn)
            result: Any = {}
            try:
                given, asked = self._given(ctx, turn, config)
                stream: Any = self._graph(turn).astream(given, asked, **_FLAT)
                async with aclosing(stream):
                    async for space, mode, chunk in stream:
                        for event in heard.drained():
                            yield event
                        if mode == "values" and not space:
                            result = chunk
            except (GeneratorExit, asyncio.CancelledError):
                heard.stopped = True
                raise
            except Exception:
                for event in heard.drained():
                    yield event
                raise
            finally:
                await self._aended(ctx, journal)
            for event in heard.drained():
                yield event
            self._settle(ctx, turn, result)

    def run_steps(self, ctx: RunContext, steps: Sequence[Node]) -> RunContext:
        """Run nodes one after the other, as a block that takes all inputs of the context."""
        return self.run(ctx, Block(steps, inputs=tuple(ctx.inputs)))

    def run_step(self, ctx: RunContext, step: Step) -> str:
        """Run one step and give its response, whatever its merge mode keeps of it."""
        self.run_steps(ctx, [step])
        return ctx.transcript().records[-1].response

    @property
    def journaled(self) -> bool:
        """Return whether it keeps journals of its own."""
        return self._store is not None

    def calls(self) -> TreeCalls:
        """Return the calls of a run, none made yet."""
        spending = Spending(self._budget, self._prices)
        settings = ModelSettings(**self._settings)
        return TreeCalls(self._model, view=self._view, spending=spending, settings=settings)

    def journaling(self, store: Store, tree: Node) -> Journaling:
        """Return the journals of a tree's runs, with what is computed once per tree.

        Raises TreeError where a step has no model, or a model no price under a budget in USD.
        """
        known = self._journalings.get(id(tree))
        if known is None:
            path = root_path(tree)
            known = Journaling(store, tree, path, self.calls().made_for(tree, path))
            # The entry holds the tree, so that no other tree gets its id.
            self._journalings[id(tree)] = known
            if len(self._journalings) > _KEPT:
                self._journalings.popitem(last=False)
        return known.stored_in(store)

    @contextmanager
    def _journaled(self, ctx: RunContext, turn: Turn) -> Iterator[None]:
        """Write a turn to its journal, and take over the answers that it may."""
        journal = self._begun(ctx, turn)
        try:
            yield
        finally:
            if journal is not None:
                end_journal(ctx, journal)

    async def _abegun(self, ctx: RunContext, turn: Turn) -> RunJournal | None:
        self._graph(turn)
        if self._store is None and not self._origin:
            return None
        return await run_off_loop(self._begun, ctx, turn)

    async def _aended(self, ctx: RunContext, journal: RunJournal | None) -> None:
        if journal is not None:
            await run_off_loop(end_journal, ctx, journal)

    def _begun(self, ctx: RunContext, turn: Turn) -> RunJournal | None:
        """Open a turn's journal, and give the context the answers that it may take over."""
        if self._store is None:
            if self._origin:
                ctx.recorder.answers = self._origin.answers(None)
            return None
        answers = self._origin.answers(self._store)
        given = RunInputs(
            run_id=turn.run_id,
            created_at=ctx.created_at,
            seed=ctx.seed,
            messages=turn.base,
            inputs=turn.inputs,
            meta=ctx.meta,
        )
        journal = self.journaling(self._store, turn.tree).either(given)
        hold_journal(ctx, journal, answers)
        return journal

    def _graph(self, turn: Turn) -> Graph:
        tree, key = turn.tree, (id(turn.tree), turn.extra)
        known = self._graphs.pop(key, None)
        if known is None:
            graph = compile_graph(
                tree,
                model=self._model,
                form=self._form,
                view=self._view,
                returns="delta",
                budget=self._budget,
                prices=self._prices,
                extra_inputs=turn.extra,
                **self._settings,
            )
            known = _Known(tree, graph, self._calls(tree))
        self._graphs[key] = known
        if len(self._graphs) > _KEPT:
            self._graphs.popitem(last=False)
        return known.graph

    def _calls(self, tree: Node) -> TreeCalls:
        """Return the calls of a tree's runs, made where budgets or a journal need them."""
        path, calls = root_path(tree), self.calls()
        if self._store is not None:
            return self.journaling(self._store, tree).calls
        needed = self._budget is not None or budgets_of(tree, path)
        return calls.made_for(tree, path) if needed else calls

    def _purse(self, ctx: RunContext, turn: Turn) -> BudgetSource:
        """Return the purse of a turn; what its journal holds of it already counts."""
        self._graph(turn)
        spending = self._graphs[id(turn.tree), turn.extra].calls.spending
        if not spending.limited:
            return spending.unlimited
        records = ctx.recorder.journal.records
        return spending.ledger(record for record in records if record.key.run == turn.run_id)

    def _given(
        self, ctx: RunContext, turn: Turn, config: RunnableConfig | None = None
    ) -> tuple[dict[str, Any], RunnableConfig]:
        ctx.recorder.purse = self._purse(ctx, turn)
        asked = merge_configs(ctx.config, config)
        options = {
            **asked.get("configurable", {}),
            RUN_ID: turn.run_id,
            SEED: ctx.seed,
            GATES: "raise",
        }
        base = [copied_message(message) for message in turn.base]  # callbacks are given them
        given = {"messages": base, "inputs": copied(dict(turn.inputs))}
        return given, {**with_recorder(asked, ctx.recorder), "configurable": options}

    def _settle(self, ctx: RunContext, turn: Turn, result: dict[str, Any]) -> None:
        ctx.settle(turn, result["messages"], result["outputs"])


@dataclass(frozen=True, slots=True)
class _Known:
    """A tree that was compiled; it is held so that its id stays its own."""

    tree: Node
    graph: Graph
    calls: TreeCalls


class _failing:  # noqa: N801  (reads as a word in `with`)
    """Notes an error on the context and lets it pass."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._ctx.fail(error)
