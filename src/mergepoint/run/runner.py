"""ChatRunner: runs trees in a RunContext."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig

from mergepoint.models.prices import Price, Prices
from mergepoint.models.purse import Purse
from mergepoint.models.view import View
from mergepoint.record.store import Store
from mergepoint.record.store_at import store_at
from mergepoint.run.calls import Calls
from mergepoint.run.context import RunContext, Turn
from mergepoint.run.deciding import GATES
from mergepoint.run.events import LoopEvents, PulledEvents
from mergepoint.run.facts import RUN_ID, SEED
from mergepoint.run.graph import Form, Graph, compile_graph
from mergepoint.run.journaled import Given, Journaling, Origin, end_journal, hold_journal
from mergepoint.run.recorder import Event, with_recorder
from mergepoint.run.spending import Spending, budgets_of
from mergepoint.tree.block import Block
from mergepoint.tree.budget import Budget, as_budget
from mergepoint.tree.check import as_tree
from mergepoint.tree.node import Node, root_path, walk
from mergepoint.tree.step import Step

_KEPT = 64
_FLAT: Any = {"stream_mode": ["messages", "values"], "subgraphs": True}


class ChatRunner:
    """Runs trees with one model. The model is a chat model, "provider:name" or "offline".

    Works inside of a running event loop too (Jupyter): `run` uses none. A config in the context
    (callbacks, tags, max_concurrency) goes to every call. Each run has the whole `budget` (a
    Budget or a mapping of its fields); `prices` stand over those of genai-prices.

    With a `journal` (a folder, the URL of a database, or a store) each turn is written there as
    it happens, under its run's id. A turn that is there and was given the same goes on: no call
    that is on record is made again. A new one takes over what another run was answered
    (`reuse`), or every answer (`replay`).

    Raises TreeError for a budget or prices that are none, and what `store_at` raises.
    """

    def __init__(
        self,
        model: str | BaseChatModel | None = None,
        *,
        form: Form = "subgraphs",
        view: View | None = None,
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
        self._graphs: OrderedDict[int, _Known] = OrderedDict()

    def run(self, ctx: RunContext, tree: Node) -> RunContext:
        """Run a tree on the context's conversation, and give the context back.

        On success the conversation grows by what the root keeps, and `outputs` are what this run
        captured. Raises what a step raises, with `ctx.error` set and nothing else changed.
        """
        turn = ctx.begin(as_tree(tree), ctx.inputs)
        with _failing(ctx), self._journaled(ctx, turn):
            result = self._graph(tree).invoke(*self._given(ctx, turn))
            self._settle(ctx, turn, result)
        return ctx

    async def arun(self, ctx: RunContext, tree: Node) -> RunContext:
        """Do what `run` does, on an event loop."""
        turn = ctx.begin(as_tree(tree), ctx.inputs)
        with _failing(ctx), self._journaled(ctx, turn):
            result = await self._graph(tree).ainvoke(*self._given(ctx, turn))
            self._settle(ctx, turn, result)
        return ctx

    def events(self, ctx: RunContext, tree: Node) -> Iterator[Event]:
        """Run a tree and give its events as they come: calls that start and end, every token.

        One flat stream over all nested blocks. When it is exhausted the context is as after
        `run`; a consumer that stops early stops the run, and the context stays as it was.
        """
        turn = ctx.begin(as_tree(tree), ctx.inputs)
        heard = PulledEvents()
        with _failing(ctx), self._journaled(ctx, turn), ctx.recorder.heard_by(heard):
            given, config = self._given(ctx, turn)
            graph = self._graph(tree)
            result: Any = {}

            def work() -> None:
                nonlocal result
                for space, mode, chunk in graph.stream(given, config, **_FLAT):
                    if mode == "values" and not space:
                        result = chunk

            yield from heard.of(work)
            self._settle(ctx, turn, result)

    async def aevents(self, ctx: RunContext, tree: Node) -> AsyncIterator[Event]:
        """Do what `events` does, on an event loop."""
        turn = ctx.begin(as_tree(tree), ctx.inputs)
        heard = LoopEvents()
        with _failing(ctx), self._journaled(ctx, turn), ctx.recorder.heard_by(heard):
            given, config = self._given(ctx, turn)
            result: Any = {}
            try:
                stream: Any = self._graph(tree).astream(given, config, **_FLAT)
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
            for event in heard.drained():
                yield event
            self._settle(ctx, turn, result)

    def run_steps(self, ctx: RunContext, steps: Sequence[Node]) -> RunContext:
        """Run nodes one after the other; they may read what the context's outputs hold already."""
        before = dict(ctx.outputs)
        block = Block(steps)
        written = {node.capture_key for _, node in walk(block)}
        readable = {key: value for key, value in before.items() if key not in written}
        given = {**readable, **ctx.inputs}
        block = Block(steps, inputs=tuple(given))
        turn = ctx.begin(block, given)
        with _failing(ctx), self._journaled(ctx, turn):
            self._settle(ctx, turn, self._graph(block).invoke(*self._given(ctx, turn)))
            ctx.outputs = {**before, **ctx.outputs}
        return ctx

    def run_step(self, ctx: RunContext, step: Step) -> str:
        """Run one step and give its response, whatever its merge mode keeps of it."""
        self.run_steps(ctx, [step])
        return ctx.transcript().records[-1].response

    @property
    def journaled(self) -> bool:
        """Say whether it keeps journals of its own."""
        return self._store is not None

    def calls(self) -> Calls:
        """Give the calls of a run, none made yet."""
        spending = Spending(self._budget, self._prices)
        return Calls(self._model, view=self._view, spending=spending)

    @contextmanager
    def _journaled(self, ctx: RunContext, turn: Turn) -> Iterator[None]:
        """Write a turn to its journal, and take over the answers that it may."""
        if self._store is None:
            if self._origin:
                ctx.recorder.answers = self._origin.answers(None)
            yield
            return
        answers = self._origin.answers(self._store)
        given = Given(
            run_id=turn.run_id,
            created_at=ctx.created_at,
            seed=ctx.seed,
            messages=turn.base,
            inputs=turn.inputs,
            meta=ctx.meta,
        )
        path = root_path(turn.tree)
        self._graph(turn.tree)
        calls = self._graphs[id(turn.tree)].calls
        journal = Journaling(self._store, turn.tree, path, calls).either(given)
        hold_journal(ctx, journal, answers)
        try:
            yield
        finally:
            end_journal(ctx, journal)

    def _graph(self, tree: Node) -> Graph:
        known = self._graphs.pop(id(tree), None)
        if known is None:
            graph = compile_graph(
                tree,
                model=self._model,
                form=self._form,
                view=self._view,
                returns="delta",
                budget=self._budget,
                prices=self._prices,
            )
            known = _Known(tree, graph, self._calls(tree))
        self._graphs[id(tree)] = known
        if len(self._graphs) > _KEPT:
            self._graphs.popitem(last=False)
        return known.graph

    def _calls(self, tree: Node) -> Calls:
        """Give the calls of a tree's runs, made where budgets or a journal need them."""
        path, calls = root_path(tree), self.calls()
        needed = self._store is not None or self._budget is not None or budgets_of(tree, path)
        return calls.made_for(tree, path) if needed else calls

    def _purse(self, ctx: RunContext, turn: Turn) -> Purse:
        """Give the purse of a turn; what its journal holds of it already counts."""
        self._graph(turn.tree)
        spending = self._graphs[id(turn.tree)].calls.spending
        if not spending.limited:
            return spending.unlimited
        records = ctx.recorder.journal.records
        return spending.ledger(record for record in records if record.key.run == turn.run_id)

    def _given(self, ctx: RunContext, turn: Turn) -> tuple[dict[str, Any], RunnableConfig]:
        ctx.recorder.purse = self._purse(ctx, turn)
        options = {
            **ctx.config.get("configurable", {}),
            RUN_ID: turn.run_id,
            SEED: ctx.seed,
            GATES: "raise",
        }
        given = {"messages": list(turn.base), "inputs": dict(turn.inputs)}
        return given, {**with_recorder(ctx.config, ctx.recorder), "configurable": options}

    def _settle(self, ctx: RunContext, turn: Turn, result: dict[str, Any]) -> None:
        ctx.settle(turn, result["messages"], result["outputs"])


@dataclass(frozen=True, slots=True)
class _Known:
    """A tree that was compiled; it is held so that its id stays its own."""

    tree: Node
    graph: Graph
    calls: Calls


class _failing:  # noqa: N801  (reads as a word in `with`)
    """Notes an error on the context and lets it pass."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._ctx.fail(error)
