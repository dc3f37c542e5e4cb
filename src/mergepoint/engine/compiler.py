"""The compiler: from a tree to a LangGraph graph, and how a graph's run is resumed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from mergepoint.core.errors import Fault, StepError, TreeError
from mergepoint.core.paths import Place, nearest
from mergepoint.engine.budgets import Spending
from mergepoint.engine.callbacks import Recorder, with_recorder
from mergepoint.engine.calls import TreeCalls
from mergepoint.engine.channels import (
    DECIDE,
    EXIT,
    STOPPING,
    UNTIL,
    BlockBase,
    BlockDelta,
    BlockState,
    Context,
    Conversation,
    DeltaConversation,
    DeltaInput,
    DeltaResult,
    KeepingState,
    LoopState,
    ParallelState,
    PipelineInput,
    PipelineResult,
    StoppingDelta,
    taking,
)
from mergepoint.engine.compiled_graph import CompiledTree
from mergepoint.engine.facts import RUN_ID, THREAD
from mergepoint.engine.gates import by_path
from mergepoint.engine.graph_nodes import (
    Decide,
    Enter,
    EnterIteration,
    ExitNode,
    Fused,
    LeafNode,
    ParentRef,
    Root,
    RootNode,
    Until,
    fan_out,
)
from mergepoint.engine.journaling import Journaling, Origin, Rooted
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.stores import RunHeader, Store
from mergepoint.journal.writer import run_off_loop
from mergepoint.models.identity import ChatModel, View, view_problem
from mergepoint.models.pricing import Price
from mergepoint.models.providers import ModelSettings
from mergepoint.tree.decision import Answerer
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import (
    THREADS,
    Block,
    Gate,
    Input,
    Loop,
    Node,
    children,
    find,
    root_path,
    thread_groups,
    walk,
)
from mergepoint.tree.policy import Budget
from mergepoint.tree.validate import checked, needs_of

# The compiler: from a tree to a LangGraph graph.
#
# Each block becomes a subgraph. Its state holds the base (`messages`, read only), the work done
# on it (`work`, appended), and what was captured; the working copy is `messages + work`. Its exit
# node is the merge: it leaves in `work` what the block keeps, and the parent appends that to its
# own. Only deltas leave a subgraph, so nothing is applied twice and nothing of the parent can be
# rewritten.


Form = Literal["subgraphs", "fused"]
Returns = Literal["conversation", "delta"]
Graph = CompiledStateGraph[Any, Any, Any, Any]


def compile_graph(
    tree: Node,
    *,
    model: str | ChatModel | None = None,
    checkpointer: Checkpointer = None,
    form: Form = "subgraphs",
    at: str | None = None,
    returns: Returns = "conversation",
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
    extra_inputs: Sequence[str] = (),
    store: BaseStore | None = None,
    cache: BaseCache[Any] | None = None,
    interrupt_before: Sequence[str] | Literal["*"] = (),
    interrupt_after: Sequence[str] | Literal["*"] = (),
    context_schema: type[Any] | None = None,
) -> CompiledTree:
    """Compile a tree to a LangGraph graph that takes and gives what any chat graph does.

    It takes `{"messages": [...], "inputs": {...}}` and gives `{"messages": [...], "outputs":
    {...}}`, where `messages` is the whole conversation; with `returns="delta"` only what the
    pipeline adds, for a host whose reducer appends. A host that runs it several times side by
    side passes a `scope` (text) with each.

    `form="subgraphs"` makes every block a subgraph; `form="fused"` runs the interpreter inside
    one node, with the same results and records. `at` compiles one part of the tree, which keeps
    its full path and takes as inputs what it reads from the rest. `model` is a chat model,
    "provider:name" or "offline"; `view` overrides how conversations are sent to it.
    `temperature`, `max_tokens` and `timeout` (seconds for each attempt, 600 where nothing says
    otherwise) hold for all steps that do not set their own. `base_url` is the address of a server
    that answers for the model, or a mapping of names of models, or globs of them, to addresses.
    Each run has the whole `budget`; `prices` stand over those of genai-prices, by `provider:name`
    or glob. `extra_inputs` are names of inputs that every run gets beside those that the root
    declares.

    With a `journal` (a folder, the URL of a database, or a store) each run is written there as it
    happens, under its run's id (`configurable["mergepoint_run_id"]`), else its thread's. A run
    that is there and was given the same goes on: no call that is on record is made again. A new
    one takes over what another was answered (`reuse`), or every answer (`replay`, which also
    works without a journal); both name a run by its id in the journal's store, or by its folder.

    `store` and `cache` are LangGraph's, for functions of the tree and of the host. The graph stops
    before or after the nodes at the paths in `interrupt_before` and `interrupt_after` ("*" for
    all), which needs a checkpointer. A run's `context={"model": ...}` chooses the model of the
    steps that name none; a `context_schema` of your own may have such a field `model`.

    Raises TreeError that lists every fault of the tree, StepError for a model that cannot be had,
    and what `store_at` raises.
    """
    _check_options(form, returns, view)
    checked(tree, given=extra_inputs)
    path = at or root_path(tree)
    part = find(tree, path)
    needs = (*needs_of(tree, path), *map(Input, extra_inputs))
    settings = ModelSettings(
        temperature=temperature, max_tokens=max_tokens, timeout=timeout, base_url=base_url
    )
    origin = Origin(reuse, replay)
    runs = None if journal is None else store_at(journal)
    stops = _Stops.of(part, path, form, interrupt_before, interrupt_after)

    def rooted(model: str | ChatModel | None) -> RootNode:
        spending = Spending(budget, prices)
        calls = TreeCalls(model, view=view, spending=spending, settings=settings).made_for(
            part, path
        )
        journaling = None if runs is None else Journaling(runs, part, path, calls)
        root = _Compiler(calls, form, stops).node(part, Place(path), None)
        return RootNode(root, needs, Rooted(path, spending, journaling, origin), rooted)

    def inside() -> Graph | None:
        """Return what a drawing shows of the root, which is the same in both forms."""
        if isinstance(part, Step | Call):
            return None
        calls = TreeCalls(model, view=view, spending=Spending(budget, prices), settings=settings)
        calls = calls.made_for(part, path)
        return _Compiler(calls, "subgraphs", stops).container(part, Place(path))

    delta = returns == "delta"
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(
        DeltaConversation if delta else Conversation,
        input_schema=taking(DeltaInput if delta else PipelineInput, needs),
        output_schema=DeltaResult if delta else PipelineResult,
        context_schema=context_schema or Context,
    )
    name = path.rpartition("/")[2]
    node: Any = rooted(model)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    stopping = stops.at("", [name], path)
    compiled = builder.compile(
        checkpointer=checkpointer, name=name, store=store, cache=cache, **stopping
    )
    return CompiledTree.of(compiled, path, inside, shown=part)


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
class _Stops:
    """The paths of nodes before and after which a graph stops."""

    before: frozenset[str]
    after: frozenset[str]

    @classmethod
    def of(
        cls,
        part: Node,
        path: str,
        form: Form,
        before: Sequence[str] | Literal["*"],
        after: Sequence[str] | Literal["*"],
    ) -> _Stops:
        """Check the paths. Raises TreeError for one at which the graph has no node."""
        known = [at for at, _ in walk(part, path)]
        if form == "fused" and not _has_gate(part, path):
            known = [path]
        faults = [
            Fault(at, f"interrupt_{when}: the graph has no node there{nearest(at, known)}")
            for when, given in (("before", before), ("after", after))
            for at in (() if given == "*" else given)
            if at not in known
        ]
        if faults:
            raise TreeError(faults)
        return cls(*(frozenset(known if one == "*" else one) for one in (before, after)))

    def at(self, around: str, own: Sequence[str], *paths: str) -> dict[str, Any]:
        """Return LangGraph's options for a graph of nodes, by name, at these paths."""
        at = paths or [f"{around}/{name}" for name in own]
        pairs = list(zip(own, at, strict=True))
        return {
            "interrupt_before": [name for name, path in pairs if path in self.before],
            "interrupt_after": [name for name, path in pairs if path in self.after],
        }


@dataclass(frozen=True, slots=True)
class _Compiler:
    """Compiles the nodes of one tree; the calls of its leaves are shared by all forms."""

    calls: TreeCalls
    form: Form
    stops: _Stops

    def node(self, node: Node, place: Place, around: ParentRef | None) -> Root:
        """Return the node of a leaf, the entry into a container, or what is fused into one node.

        Gates are never fused: within a node the engine tells its questions apart by position
        only.
        """
        if self.form == "fused" and not _has_gate(node, place.path):
            return Fused(node, place, self.calls, around)
        if isinstance(node, Step | Call):
            return LeafNode(node, place, self.calls.of(node, place.path), around)
        return Enter(self.container(node, place), node, place, around)

    def container(self, node: Block | Gate | Loop, place: Place) -> Graph:
        """Return the subgraph of a block, gate or loop."""
        keeps = self.calls.spending.keeps(place.path)
        state = _state_of(node, keeps=keeps)
        delta: type[BlockDelta] = BlockDelta
        if any(isinstance(one, Gate) and one.on_reject == "stop" for _, one in walk(node, "")):
            state, delta = STOPPING[state], StoppingDelta
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(
            state, input_schema=BlockBase, output_schema=delta
        )
        if isinstance(node, Gate):
            self._gate(builder, node, place)
        elif isinstance(node, Loop):
            self._loop(builder, node, place)
        else:
            self._block(builder, node, place)
        builder.add_edge(EXIT, END)
        own = [name for name in builder.nodes if name not in _OURS]
        return builder.compile(name=place.name, **self.stops.at(place.path, own))

    def _block(self, builder: Builder, block: Block, place: Place) -> None:
        own = block.names
        chain: list[str] = []
        for group in thread_groups(block):
            if len(group) > 1:
                chain.append(f"__{THREADS}_{group.start + 1}__")
                _add(builder, chain[-1], self._threads(block, place, group))
                continue
            name = own[group.start]
            chain.append(name)
            around = ParentRef(block, place, group.start if block.side_by_side else None)
            _add(builder, name, self.node(block.nodes[group.start], place.child(name), around))
        _add(builder, EXIT, ExitNode(block, place, own))
        _connect(builder, chain, parallel=block.side_by_side)

    def _threads(self, block: Block, place: Place, group: range) -> Enter:
        """Return the entry into children of a sequential block that run concurrently.

        They are in a graph of their own, which has the place of the block, so that their paths are
        the same.
        """
        own = [block.names[number] for number in group]
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(
            ParallelState, input_schema=BlockBase, output_schema=BlockDelta
        )
        beside = Block((), parallel=True)
        for number, name in enumerate(own):
            child = block.nodes[group[number]]
            around = ParentRef(block, place, number)
            _add(builder, name, self.node(child, place.child(name), around))
        _add(builder, EXIT, ExitNode(beside, place, own))
        _connect(builder, own, parallel=True)
        builder.add_edge(EXIT, END)
        return Enter(builder.compile(name=THREADS), beside, place, ParentRef(block, place))

    def _gate(self, builder: Builder, gate: Gate, place: Place) -> None:
        [(at, child)] = children(gate, place.path)
        name = at.rpartition("/")[2]
        _add(builder, name, self.node(child, place.child(name), ParentRef(gate, place)))
        _add(builder, DECIDE, Decide(gate, place, self.calls.spending))
        _add(builder, EXIT, ExitNode(gate, place, ()))
        _connect(builder, (name, DECIDE), parallel=False)

    def _loop(self, builder: Builder, loop: Loop, place: Place) -> None:
        around, inside = ParentRef(loop, place), place.iteration()
        body = loop.body
        graph = self.container(body, inside)
        _add(builder, inside.name, EnterIteration(graph, body, inside, around))
        _add(builder, UNTIL, Until(loop, place))
        _add(builder, EXIT, ExitNode(loop, place, ()))
        builder.add_edge(START, UNTIL if loop.may_skip else inside.name)
        builder.add_edge(inside.name, UNTIL)
        builder.add_conditional_edges(
            UNTIL, lambda state: EXIT if state["over"] else inside.name, [EXIT, inside.name]
        )


Builder = StateGraph[Any, Any, Any, Any]
_OURS = (EXIT, DECIDE, UNTIL)  # nodes that are none of the tree's


def _add(builder: Builder, name: str, node: Any) -> None:
    builder.add_node(name, node)


def _has_gate(node: Node, path: str) -> bool:
    return any(isinstance(below, Gate) for _, below in walk(node, path))


def _state_of(node: Block | Gate | Loop, *, keeps: bool) -> type[BlockState]:
    if isinstance(node, Loop):
        return LoopState
    if isinstance(node, Block) and node.side_by_side:
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


# Resume a compiled graph's run from its thread's checkpoint, else from its journal.


def resume_graph(
    graph: Graph,
    config: RunnableConfig,
    *,
    answers: Answerer | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resume a run that stopped at a gate, by an error, or with its process.

    The config names it by `thread_id` or `mergepoint_run_id`. With a checkpointer its thread goes
    on; of one that has come to its end the values are given, and nothing is run. Without one, or
    where it holds nothing of the thread, what the run was given is read from its journal. Of a
    thread's turns it is the last. `answers` are decisions at gates: by path, or a function of a
    Question; each is written to the journal before it is used.

    Raises StepError where nothing of such a run is known, and what running it raises.
    """
    way = _way(graph, config, answers, {} if not graph.checkpointer else _state(graph, config))
    return way.known if way.known is not None else dict(graph.invoke(way.given, way.config))


async def aresume_graph(
    graph: Graph,
    config: RunnableConfig,
    *,
    answers: Answerer | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resume a run as `resume_graph` does, on an event loop."""
    state = await _astate(graph, config) if graph.checkpointer else {}
    way = await run_off_loop(_way, graph, config, answers, state)
    return way.known if way.known is not None else dict(await graph.ainvoke(way.given, way.config))


@dataclass(frozen=True, slots=True)
class _Way:
    """How a run goes on: the values at its end are `known`, or the graph is invoked."""

    config: RunnableConfig
    given: dict[str, Any] | None = None
    known: dict[str, Any] | None = None


def _state(graph: Graph, config: RunnableConfig) -> dict[str, Any]:
    state = graph.get_state(config)
    return {"values": state.values, "next": state.next}


async def _astate(graph: Graph, config: RunnableConfig) -> dict[str, Any]:
    state = await graph.aget_state(config)
    return {"values": state.values, "next": state.next}


def _way(
    graph: Graph,
    config: RunnableConfig,
    answers: Answerer | Mapping[str, Any] | None,
    state: Mapping[str, Any],
) -> _Way:
    if answers is not None:
        answerer = by_path(answers) if isinstance(answers, Mapping) else answers
        config = with_recorder(config, Recorder(answerer=answerer))
    if state.get("next"):
        return _Way(config)
    if state.get("values"):
        return _Way(config, known=dict(state["values"]))
    header = _on_record(graph, config)
    options = {**config.get("configurable", {}), RUN_ID: header.run_id}
    given = {"messages": list(header.messages), "inputs": dict(header.inputs)}
    return _Way({**config, "configurable": options}, given)


def _on_record(graph: Graph, config: RunnableConfig) -> RunHeader:
    """Return what the run of a config began with, of a thread's turns the last."""
    options = config.get("configurable", {})
    root = graph.nodes[str(graph.name)].bound
    journaling = root.rooted.journaling if isinstance(root, RootNode) else None
    named = options.get(RUN_ID) or options.get(THREAD)
    if not named:
        raise StepError(f"name the run to resume: configurable={{{THREAD!r}: ...}} or {RUN_ID!r}")
    if journaling is None:
        raise StepError(
            f"nothing is known of {named!r}: the graph has no journal, and its checkpointer holds "
            "no such thread; compile it with the journal or checkpointer that the run began with"
        )
    store, run_id = journaling.store, str(named)
    if not options.get(RUN_ID):
        turns = (f"{named}.{number}" for number in itertools.count(2))
        later = list(itertools.takewhile(store.has, turns))
        run_id = later[-1] if later else run_id
    return store.read(run_id)[0]
