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
from mergepoint.engine.callbacks import Event, LoopEvents, PulledEvents, RunWatch, with_recorder
from mergepoint.engine.compiler import Form, Graph, compile_graph
from mergepoint.engine.context import RunContext, Turn
from mergepoint.engine.gates import GATES
from mergepoint.engine.leaf_calls import TreeCalls
from mergepoint.engine.run_constants import RUN_ID, SEED
from mergepoint.engine.start_and_resume import (
    Journaling,
    Origin,
    RunInputs,
    attach_journal,
    detach_journal,
)
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.stores import RunJournal, Store
from mergepoint.journal.transcript import Transcript
from mergepoint.journal.writer import run_off_loop
from mergepoint.models.budget import BudgetSource
from mergepoint.models.identity import ChatModel
from mergepoint.models.langchain_internals import is_traced
from mergepoint.models.pricing import Price, Prices
from mergepoint.models.providers import ModelSettings, View
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node, root_path
from mergepoint.tree.policy import Budget, as_budget
from mergepoint.tree.prompts import copied, copied_message
from mergepoint.tree.transform import outline
from mergepoint.tree.validate import as_tree

_MOST_GRAPHS = 64
_FLAT: Any = {"stream_mode": ["messages", "values"], "subgraphs": True}


class ChatRunner:
    """Runs trees with one model.

    `run` also works inside a running event loop (Jupyter), because it uses none. A config in the
    context (callbacks, tags, max_concurrency) is passed to every call.

    Args:
        model: A chat model, "provider:name" or "offline".
        form: The execution form, as for `compile_graph`.
        view: How conversations are sent to the model.
        temperature: As for `compile_graph`, like `max_tokens`, `timeout` and `base_url`.
        max_tokens: See `temperature`.
        timeout: See `temperature`.
        base_url: See `temperature`.
        budget: The budget of each run: a Budget, or a mapping of its fields.
        prices: Prices that override those of genai-prices.
        journal: A folder, the URL of a database, or a store, in which each turn is recorded under
            its run id. A recorded turn with the same inputs is resumed: its recorded calls are
            not made again.
        reuse: A run, by id or folder, whose answers are reused for equal requests.
        replay: A run, by id or folder, that has every answer.

    Raises:
        TreeError: The budget, the prices or a setting is invalid.
        JournalError: The journal's store cannot be opened.
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
        ModelSettings(**self._settings)  # raises TreeError for invalid settings
        self._graphs: OrderedDict[tuple[int, tuple[str, ...]], _Known] = OrderedDict()
        self._journalings: OrderedDict[int, Journaling] = OrderedDict()

    def run(
        self, ctx: RunContext, tree: Node, *, config: RunnableConfig | None = None
    ) -> RunContext:
        """Run a tree on the context's conversation, and return the context.

        On success, the messages that the root merges are appended to the conversation, and the
        captures of this run are added to `outputs`. The tree can read earlier `outputs` like
        inputs; an input or a capture of the same name has precedence.

        Raises the errors of the steps, with `ctx.error` set and nothing else changed.
        """
        turn = ctx.begin(as_tree(tree))
        with _Watched(ctx, turn, config), _failing(ctx), self._journaled(ctx, turn):
            result = self.graph_of(turn.tree, turn.extra).invoke(*self._given(ctx, turn, config))
            self._settle(ctx, turn, result)
        return ctx

    async def arun(
        self, ctx: RunContext, tree: Node, *, config: RunnableConfig | None = None
    ) -> RunContext:
        """Run a tree as `run` does, on an event loop."""
        turn = ctx.begin(as_tree(tree))
        async with _Watched(ctx, turn, config):
            with _failing(ctx):
                journal = await self._abegun(ctx, turn)
                try:
                    result = await self.graph_of(turn.tree, turn.extra).ainvoke(
                        *self._given(ctx, turn, config)
                    )
                    self._settle(ctx, turn, result)
                finally:
                    await self._aended(ctx, journal)
        return ctx

    async def arun_untraced(self, ctx: RunContext, tree: Node) -> RunContext:
        """Run a tree as `arun` does, for a caller that needs no trace of the run, and no callbacks.

        A fused tree of steps then runs without LangGraph, which saves a sixth of a short run.
        """
        turn = ctx.begin(as_tree(tree))
        graph = self.graph_of(turn.tree, turn.extra)
        with _failing(ctx):
            given, asked = self._given(ctx, turn)
            direct = None if is_traced() or ctx.config else getattr(graph, "direct", None)
            run = graph.ainvoke if direct is None else direct
            self._settle(ctx, turn, await run(given, asked))
        return ctx

    def events(
        self, ctx: RunContext, tree: Node, *, config: RunnableConfig | None = None
    ) -> Iterator[Event]:
        """Run a tree and yield its events: starts and ends of calls, and every token.

        The events of all nested blocks are one flat stream. At its end, the context is the same as
        after `run`. A consumer that stops early stops the run, and the context does not change.
        """
        turn = ctx.begin(as_tree(tree))
        heard = PulledEvents()
        watched = _Watched(ctx, turn, config)
        with watched, _failing(ctx), self._journaled(ctx, turn), ctx.recorder.heard_by(heard):
            given, asked = self._given(ctx, turn, config)
            graph = self.graph_of(turn.tree, turn.extra)
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
        async with _Watched(ctx, turn, config):
            with _failing(ctx), ctx.recorder.heard_by(heard):
                journal = await self._abegun(ctx, turn)
                result: Any = {}
                try:
                    given, asked = self._given(ctx, turn, config)
                    stream: Any = self.graph_of(turn.tree, turn.extra).astream(
                        given, asked, **_FLAT
                    )
                    async with aclosing(stream):
                        async for space, mode, chunk in stream:
                            for event in heard.drained():
                                yield event
                            if mode == "values" and not space:
                                result = chunk
                except (GeneratorExit, asyncio.CancelledError):
                    # The consumer has left: a call that would start now gets a RailError.
                    heard.stopped = True
                    raise
                # Deliver the events before the error first.
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
        """Run one step and return its response, in every merge mode."""
        self.run_steps(ctx, [step])
        return ctx.transcript().records[-1].response

    @property
    def journaled(self) -> bool:
        """Return whether the runner records its runs."""
        return self._store is not None

    def calls(self) -> TreeCalls:
        """Return the calls of a run, not compiled yet."""
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
            if len(self._journalings) > _MOST_GRAPHS:
                self._journalings.popitem(last=False)
        return known.stored_in(store)

    @contextmanager
    def _journaled(self, ctx: RunContext, turn: Turn) -> Iterator[None]:
        """Record a turn in its journal, with the answers that it may reuse."""
        self.graph_of(turn.tree, turn.extra)  # an invalid tree begins no journal
        journal = self._begun(ctx, turn)
        try:
            yield
        finally:
            if journal is not None:
                detach_journal(ctx, journal)

    async def _abegun(self, ctx: RunContext, turn: Turn) -> RunJournal | None:
        self.graph_of(turn.tree, turn.extra)
        if self._store is None and not self._origin:
            return None
        return await run_off_loop(self._begun, ctx, turn)

    async def _aended(self, ctx: RunContext, journal: RunJournal | None) -> None:
        if journal is not None:
            await run_off_loop(detach_journal, ctx, journal)

    def _begun(self, ctx: RunContext, turn: Turn) -> RunJournal | None:
        """Open a turn's journal, and set the answers that the turn may reuse on the context."""
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
        journal = self.journaling(self._store, turn.tree).begin_or_resume(given)
        attach_journal(ctx, journal, answers)
        return journal

    def graph_of(self, tree: Node, extra: tuple[str, ...] = ()) -> Graph:
        """Return the graph of a tree, compiled once; `extra` names further inputs.

        Raises the errors of `compile_graph`.
        """
        key = (id(tree), extra)
        # Removed and inserted again, so that it counts as the most recently used.
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
                extra_inputs=extra,
                **self._settings,
            )
            known = _Known(tree, graph, self._calls(tree))
        self._graphs[key] = known
        if len(self._graphs) > _MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return known.graph

    def _calls(self, tree: Node) -> TreeCalls:
        """Return the calls of a tree's runs, compiled if budgets or a journal need them."""
        path, calls = root_path(tree), self.calls()
        if self._store is not None:
            return self.journaling(self._store, tree).calls
        needed = self._budget is not None or budgets_of(tree, path)
        return calls.made_for(tree, path) if needed else calls

    def _budget_source(self, ctx: RunContext, turn: Turn) -> BudgetSource:
        """Return the budget source of a turn, which counts its calls in the journal."""
        self.graph_of(turn.tree, turn.extra)
        spending = self._graphs[id(turn.tree), turn.extra].calls.spending
        if not spending.limited:
            return spending.unlimited
        records = ctx.recorder.journal.records
        return spending.ledger(record for record in records if record.key.run == turn.run_id)

    def _given(
        self, ctx: RunContext, turn: Turn, config: RunnableConfig | None = None
    ) -> tuple[dict[str, Any], RunnableConfig]:
        ctx.recorder.budget = self._budget_source(ctx, turn)
        asked = merge_configs(ctx.config, config)
        options = {
            **asked.get("configurable", {}),
            RUN_ID: turn.run_id,
            SEED: ctx.seed,
            # A context has no thread that could be resumed, so an open gate raises GateOpen.
            GATES: "raise",
        }
        base = [copied_message(message) for message in turn.base]  # callbacks receive them
        given = {"messages": base, "inputs": copied(dict(turn.inputs))}
        return given, {**with_recorder(asked, ctx.recorder), "configurable": options}

    def _settle(self, ctx: RunContext, turn: Turn, result: dict[str, Any]) -> None:
        ctx.settle(turn, result["messages"], result["outputs"])


@dataclass(frozen=True, slots=True)
class _Known:
    """A compiled tree. It keeps the tree alive, because its `id()` is the key."""

    tree: Node
    graph: Graph
    calls: TreeCalls


class _Watched:
    """Notifies recorders of the begin and the end of a turn, after its journal is closed."""

    def __init__(self, ctx: RunContext, turn: Turn, config: RunnableConfig | None) -> None:
        self._ctx = ctx
        self._turn = turn
        self._watch = RunWatch(turn.run_id, ctx.config, config)

    def __enter__(self) -> None:
        self._watch.begin(self._outline)

    def __exit__(self, *_: object) -> None:
        self._watch.end(self._transcript)

    async def __aenter__(self) -> None:
        self._watch.begin(self._outline)

    async def __aexit__(self, *_: object) -> None:
        # Off the loop: the transcript of many calls takes a while.
        if self._watch:
            await run_off_loop(self._watch.end, self._transcript)

    def _outline(self) -> Mapping[str, Any]:
        return outline(self._turn.tree)

    def _transcript(self) -> Transcript:
        return self._ctx.transcript(self._turn)


class _failing:  # noqa: N801  (reads as a word in `with`)
    """Records an error on the context, and does not suppress it."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._ctx.fail(error)
