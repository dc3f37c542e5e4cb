"""The compiler: from a tree to a LangGraph graph.

Each block becomes a subgraph. Its state holds the base (`messages`, read only), the work done on
it (`work`, appended), and what was captured; the working copy is `messages + work`. Its exit
node is the merge: it leaves in `work` what the block keeps, and the parent appends that to its
own. Only deltas leave a subgraph, so nothing is applied twice and nothing of the parent can be
rewritten.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Checkpointer

from mergepoint.core.errors import TreeError
from mergepoint.core.path import Place, nearest
from mergepoint.models.prices import Price
from mergepoint.models.view import View, view_problem
from mergepoint.record.store import Store
from mergepoint.record.store_at import store_at
from mergepoint.run.calls import Calls
from mergepoint.run.channels import DECIDE, EXIT, UNTIL
from mergepoint.run.child import Around, Fused, LeafNode
from mergepoint.run.exits import Decide, Exit, Until, fan_out
from mergepoint.run.journaled import Journaling, Origin
from mergepoint.run.nodes import Enter, EnterIteration, Root, RootNode
from mergepoint.run.rooted import Rooted
from mergepoint.run.spending import Spending
from mergepoint.run.states import (
    BlockBase,
    BlockDelta,
    BlockState,
    Conversation,
    DeltaConversation,
    DeltaGiven,
    DeltaResult,
    Given,
    KeepingState,
    LoopState,
    ParallelState,
    Result,
)
from mergepoint.tree.block import Block
from mergepoint.tree.budget import Budget
from mergepoint.tree.call import Call
from mergepoint.tree.check import checked, needs_of
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, children, find, names, root_path, walk
from mergepoint.tree.step import Step

Form = Literal["subgraphs", "fused"]
Returns = Literal["conversation", "delta"]
Graph = CompiledStateGraph[Any, Any, Any, Any]


def compile_graph(
    tree: Node,
    *,
    model: str | BaseChatModel | None = None,
    checkpointer: Checkpointer = None,
    form: Form = "subgraphs",
    at: str | None = None,
    returns: Returns = "conversation",
    view: View | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    prices: Mapping[str, Price] | None = None,
    journal: Path | str | Store | None = None,
    reuse: Path | str | None = None,
    replay: Path | str | None = None,
) -> Graph:
    """Compile a tree to a LangGraph graph that takes and gives what any chat graph does.

    It takes `{"messages": [...], "inputs": {...}}` and gives `{"messages": [...], "outputs":
    {...}}`, where `messages` is the whole conversation; with `returns="delta"` only what the
    pipeline adds, for a host whose reducer appends. A host that runs it several times side by
    side passes a `scope` (text) with each.

    `form="subgraphs"` makes every block a subgraph; `form="fused"` runs the interpreter inside
    one node, with the same results and records. `at` compiles one part of the tree, which keeps
    its full path and takes as inputs what it reads from the rest. `model` is a chat model,
    "provider:name" or "offline"; `view` overrides how conversations are sent to it. Each
    run has the whole `budget`; `prices` stand over those of genai-prices, by `provider:name` or
    glob.

    With a `journal` (a folder, the URL of a database, or a store) each run is written there as it
    happens, under its run's id (`configurable["mergepoint_run_id"]`), else its thread's. A run
    that is there and was given the same goes on: no call that is on record is made again. A new
    one takes over what another was answered (`reuse`), or every answer (`replay`, which also
    works without a journal); both name a run by its id in the journal's store, or by its folder.

    Raises TreeError that lists every fault of the tree, StepError for a model that cannot be had,
    and what `store_at` raises.
    """
    _check_options(form, returns, view)
    checked(tree)
    path = at or root_path(tree)
    part = find(tree, path)
    spending = Spending(budget, prices)
    origin = Origin(reuse, replay)
    store = None if journal is None else store_at(journal)
    calls = Calls(model, view=view, spending=spending).made_for(part, path)
    journaling = None if store is None else Journaling(store, part, path, calls)
    compiler = _Compiler(calls, form)
    root = compiler.node(part, Place(path), None)
    builder: StateGraph[Any, Any, Any, Any]
    if returns == "delta":
        builder = StateGraph(DeltaConversation, input_schema=DeltaGiven, output_schema=DeltaResult)
    else:
        builder = StateGraph(Conversation, input_schema=Given, output_schema=Result)
    name = path.rpartition("/")[2]
    node: Any = RootNode(root, needs_of(tree, path), Rooted(path, spending, journaling, origin))
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile(checkpointer=checkpointer, name=name)


def _check_options(form: str, returns: str, view: str | None) -> None:
    for label, given, allowed in (
        ("form", form, get_args(Form)),
        ("returns", returns, get_args(Returns)),
    ):
        if given not in allowed:
            raise TreeError.of(
                f"{label}={given!r}{nearest(str(given), allowed)}; allowed are "
                f"{', '.join(map(repr, allowed))}"
            )
    if view is not None and (problem := view_problem(view)):
        raise TreeError.of(problem)


@dataclass(frozen=True, slots=True)
class _Compiler:
    """Compiles the nodes of one tree; the calls of its leaves are shared by all forms."""

    calls: Calls
    form: Form

    def node(self, node: Node, place: Place, around: Around | None) -> Root:
        """Give the node of a leaf, the entry into a container, or what is fused into one node.

        Gates are never fused: within a node the engine tells its questions apart by position
        only.
        """
        if self.form == "fused" and not _has_gate(node, place.path):
            return Fused(node, place, self.calls, around)
        if isinstance(node, Step | Call):
            return LeafNode(node, place, self.calls.of(node, place.path), around)
        return Enter(self.container(node, place), node, place, around)

    def container(self, node: Block | Gate | Loop, place: Place) -> Graph:
        """Give the subgraph of a block, gate or loop."""
        keeps = self.calls.spending.keeps(place.path)
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(
            _state_of(node, keeps=keeps), input_schema=BlockBase, output_schema=BlockDelta
        )
        if isinstance(node, Gate):
            self._gate(builder, node, place)
        elif isinstance(node, Loop):
            self._loop(builder, node, place)
        else:
            self._block(builder, node, place)
        builder.add_edge(EXIT, END)
        return builder.compile(name=place.name)

    def _block(self, builder: Builder, block: Block, place: Place) -> None:
        own = names(block)
        for number, (name, child) in enumerate(zip(own, block.nodes, strict=True)):
            around = Around(block, place, number if block.parallel else None)
            _add(builder, name, self.node(child, place.child(name), around))
        _add(builder, EXIT, Exit(block, place, own))
        _connect(builder, own, parallel=block.parallel)

    def _gate(self, builder: Builder, gate: Gate, place: Place) -> None:
        [(at, child)] = children(gate, place.path)
        name = at.rpartition("/")[2]
        _add(builder, name, self.node(child, place.child(name), Around(gate, place)))
        _add(builder, DECIDE, Decide(gate, place, self.calls.spending))
        _add(builder, EXIT, Exit(gate, place, ()))
        _connect(builder, (name, DECIDE), parallel=False)

    def _loop(self, builder: Builder, loop: Loop, place: Place) -> None:
        around, inside = Around(loop, place), place.iteration()
        body = loop.body
        graph = self.container(body, inside)
        _add(builder, inside.name, EnterIteration(graph, body, inside, around))
        _add(builder, UNTIL, Until(loop, place))
        _add(builder, EXIT, Exit(loop, place, ()))
        builder.add_edge(START, UNTIL if loop.may_skip else inside.name)
        builder.add_edge(inside.name, UNTIL)
        builder.add_conditional_edges(
            UNTIL, lambda state: EXIT if state["over"] else inside.name, [EXIT, inside.name]
        )


Builder = StateGraph[Any, Any, Any, Any]


def _add(builder: Builder, name: str, node: Any) -> None:
    builder.add_node(name, node)


def _has_gate(node: Node, path: str) -> bool:
    return any(isinstance(below, Gate) for _, below in walk(node, path))


def _state_of(node: Block | Gate | Loop, *, keeps: bool) -> type[BlockState]:
    if isinstance(node, Loop):
        return LoopState
    if isinstance(node, Block) and node.parallel:
        return ParallelState
    return KeepingState if keeps and not isinstance(node, Gate) else BlockState


def _connect(
    builder: StateGraph[Any, Any, Any, Any], own: Sequence[str], *, parallel: bool
) -> None:
    if parallel and own:
        builder.add_conditional_edges(START, fan_out(own), list(own))
        for name in own:
            builder.add_edge(name, EXIT)
        return
    chain: list[str] = [START, *own, EXIT]
    for before, after in itertools.pairwise(chain):
        builder.add_edge(before, after)
