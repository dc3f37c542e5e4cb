"""The compiler: from a tree to a LangGraph graph; and resuming a graph's run."""

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
    input_schema_with,
)
from mergepoint.engine.compiled_graph import CompiledTree
from mergepoint.engine.gates import by_path
from mergepoint.engine.graph_nodes import (
    ContainerEntry,
    DecisionNode,
    ExitNode,
    FusedNode,
    IterationEntry,
    LeafNode,
    LoopConditionNode,
    ParentRef,
    Root,
    RootNode,
    fan_out,
)
from mergepoint.engine.leaf_calls import TreeCalls
from mergepoint.engine.run_constants import RUN_ID, THREAD
from mergepoint.engine.start_and_resume import Journaling, Origin, RunStarter
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.stores import RunHeader, Store
from mergepoint.journal.writer import run_off_loop
from mergepoint.models.identity import ChatModel
from mergepoint.models.pricing import Price
from mergepoint.models.providers import ModelSettings, View, view_problem
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
    """Compile a tree to a LangGraph graph over messages.

    The input is `{"messages": [...], "inputs": {...}}`, with a `scope` (a string) for each of
    several runs that a host starts in parallel. The output is `{"messages": [...], "outputs":
    {...}}`.

    With a `journal`, each run is recorded under its run id (`configurable["mergepoint_run_id"]`),
    or its thread id. Invoking a recorded run with the same inputs resumes it: its recorded calls
    are not made again.

    Args:
        tree: The root of the tree.
        model: A chat model, "provider:name" or "offline".
        checkpointer: LangGraph's checkpointer.
        form: "subgraphs" compiles every block to a subgraph. "fused" runs the interpreter inside
            one node, with the same results and records.
        at: The path of the part to compile. It keeps its full path, and keys that it reads from
            the rest of the tree become its inputs. By default the whole tree.
        returns: "conversation" returns all messages. "delta" returns only the new ones, for a
            host whose reducer appends.
        view: How conversations are sent to the model. By default as its provider needs it.
        temperature: The default temperature of steps.
        max_tokens: The default output limit of each answer.
        timeout: The default seconds for each attempt of a call, 600 if None.
        base_url: The address of the model's server, or a mapping from names of models, or globs,
            to addresses.
        budget: The budget of each run.
        prices: Prices by `provider:name` or glob, which override those of genai-prices.
        journal: A folder, the URL of a database, or a store, in which runs are recorded.
        reuse: A run, by id or folder, whose answers are reused for equal requests.
        replay: A run, by id or folder, that has every answer. It works without a journal too.
        extra_inputs: Names of inputs in addition to those that the root declares.
        store: LangGraph's store, for functions of the tree and of the host.
        cache: LangGraph's cache, for functions of the tree and of the host.
        interrupt_before: Paths of nodes before which the graph stops, or "*" for all. It needs a
            checkpointer.
        interrupt_after: Paths of nodes after which the graph stops, or "*".
        context_schema: Your own schema of a run's context. Its field `model`, if it has one,
            chooses the model of the steps that name none.

    Raises:
        TreeError: The tree is invalid; the error lists all problems.
        StepError: A model is not available.
        JournalError: The journal's store cannot be opened.
    """
    _check_options(form, returns, view)
    checked(tree, given=extra_inputs)
    path = at or root_path(tree)
    part = find(tree, path)
    declared = needs_of(tree, path)
    known = {one.name for one in declared}
    needs = (*declared, *(Input(name) for name in extra_inputs if name not in known))
    settings = ModelSettings(
        temperature=temperature, max_tokens=max_tokens, timeout=timeout, base_url=base_url
    )
    origin = Origin(reuse, replay)
    runs = None if journal is None else store_at(journal)
    stops = _Stops.of(part, path, form, interrupt_before, interrupt_after)

    def root_with(model: str | ChatModel | None) -> RootNode:
        spending = Spending(budget, prices)
        calls = TreeCalls(model, view=view, spending=spending, settings=settings).made_for(
            part, path
        )
        journaling = None if runs is None else Journaling(runs, part, path, calls)
        root = _Compiler(calls, form, stops).node(part, Place(path), None)
        return RootNode(root, needs, RunStarter(path, spending, journaling, origin), root_with)

    def inside() -> Graph | None:
        """Return the graph that drawings show for the root, the same in both forms."""
        # A single leaf has no inside to draw.
        if isinstance(part, Step | Call):
            return None
        calls = TreeCalls(model, view=view, spending=Spending(budget, prices), settings=settings)
        calls = calls.made_for(part, path)
        return _Compiler(calls, "subgraphs", stops).container(part, Place(path))

    delta = returns == "delta"
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(
        DeltaConversation if delta else Conversation,
        input_schema=input_schema_with(DeltaInput if delta else PipelineInput, needs),
        output_schema=DeltaResult if delta else PipelineResult,
        context_schema=context_schema or Context,
    )
    name = path.rpartition("/")[2]
    node: Any = root_with(model)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    stopping = stops.at("", [name], path)
    compiled = builder.compile(
        checkpointer=checkpointer, name=name, store=store, cache=cache, **stopping
    )
    tree_graph = CompiledTree.of(compiled, path, inside, shown=part)
    if form == "fused" and _only_asks_models(part, path):
        tree_graph.direct = node.converse
    return tree_graph


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
        """Return the node of a leaf, the entry into a container, or a fused part of the tree."""
        # A gate is never fused: LangGraph matches the answers to several interrupts of one node by
        # their order only, and runs a node again from its start, with all its calls.
        if self.form == "fused" and not _has_gate(node, place.path):
            return FusedNode(node, place, self.calls, around)
        if isinstance(node, Step | Call):
            return LeafNode(node, place, self.calls.of(node, place.path), around)
        return ContainerEntry(self.container(node, place), node, place, around)

    def container(self, node: Block | Gate | Loop, place: Place) -> Graph:
        """Return the subgraph of a block, gate or loop."""
        keeps = self.calls.spending.keeps(place.path)
        state = _state_of(node, keeps=keeps)
        delta: type[BlockDelta] = BlockDelta
        if any(isinstance(one, Gate) and one.on_reject == "stop" for _, one in walk(node, "")):
            # Each channel costs time in every superstep, so only trees with such a gate have this
            # one.
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

    def _threads(self, block: Block, place: Place, group: range) -> ContainerEntry:
        """Return the entry into children of a sequential block that run concurrently.

        They are in their own graph, which has the place of the block, so that their paths do not
        change.
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
        return ContainerEntry(builder.compile(name=THREADS), beside, place, ParentRef(block, place))

    def _gate(self, builder: Builder, gate: Gate, place: Place) -> None:
        [(at, child)] = children(gate, place.path)
        name = at.rpartition("/")[2]
        _add(builder, name, self.node(child, place.child(name), ParentRef(gate, place)))
        _add(builder, DECIDE, DecisionNode(gate, place, self.calls.spending))
        _add(builder, EXIT, ExitNode(gate, place, ()))
        _connect(builder, (name, DECIDE), parallel=False)

    def _loop(self, builder: Builder, loop: Loop, place: Place) -> None:
        around, inside = ParentRef(loop, place), place.iteration()
        body = loop.body
        # One compiled body for all iterations. The number of the iteration is passed down with the
        # facts, so that paths do not depend on LangGraph's namespace.
        graph = self.container(body, inside)
        _add(builder, inside.name, IterationEntry(graph, body, inside, around))
        _add(builder, UNTIL, LoopConditionNode(loop, place))
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


def _only_asks_models(node: Node, path: str) -> bool:
    """Return whether a tree consists of steps without tools, in blocks and loops."""
    return all(
        isinstance(below, Block | Loop) or (isinstance(below, Step) and not below.tools)
        for _, below in walk(node, path)
    )


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


def resume_graph(
    graph: Graph,
    config: RunnableConfig,
    *,
    answers: Answerer | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resume a run that stopped at a gate, by an error, or with its process.

    With a checkpointer, the thread is resumed; if it has finished, its values are returned and
    nothing runs. Without one, or if it does not know the thread, the inputs are read from the
    run's journal. If a thread has several turns, this is the last.

    Args:
        graph: A compiled tree.
        config: Names the run, by `thread_id` or `mergepoint_run_id`.
        answers: Decisions at gates: a mapping by path, or a function of a Question. Each is
            written to the journal before it is used.

    Returns:
        The output of the graph.

    Raises:
        StepError: The run is unknown. Running it raises the errors of `invoke`.
    """
    resumption = _resumption(
        graph, config, answers, {} if not graph.checkpointer else _state(graph, config)
    )
    return (
        resumption.known
        if resumption.known is not None
        else dict(graph.invoke(resumption.given, resumption.config))
    )


async def aresume_graph(
    graph: Graph,
    config: RunnableConfig,
    *,
    answers: Answerer | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resume a run as `resume_graph` does, on an event loop."""
    state = await _astate(graph, config) if graph.checkpointer else {}
    resumption = await run_off_loop(_resumption, graph, config, answers, state)
    return (
        resumption.known
        if resumption.known is not None
        else dict(await graph.ainvoke(resumption.given, resumption.config))
    )


@dataclass(frozen=True, slots=True)
class _Resumption:
    """How to resume a run: the values of a finished one, or the input for the graph."""

    config: RunnableConfig
    given: dict[str, Any] | None = None
    known: dict[str, Any] | None = None


def _state(graph: Graph, config: RunnableConfig) -> dict[str, Any]:
    state = graph.get_state(config)
    return {"values": state.values, "next": state.next}


async def _astate(graph: Graph, config: RunnableConfig) -> dict[str, Any]:
    state = await graph.aget_state(config)
    return {"values": state.values, "next": state.next}


def _resumption(
    graph: Graph,
    config: RunnableConfig,
    answers: Answerer | Mapping[str, Any] | None,
    state: Mapping[str, Any],
) -> _Resumption:
    if answers is not None:
        answerer = by_path(answers) if isinstance(answers, Mapping) else answers
        config = with_recorder(config, Recorder(answerer=answerer))
    # The checkpoint has pending tasks: LangGraph continues them when it is invoked without input.
    if state.get("next"):
        return _Resumption(config)
    if state.get("values"):
        return _Resumption(config, known=dict(state["values"]))
    header = _recorded_header(graph, config)
    options = {**config.get("configurable", {}), RUN_ID: header.run_id}
    given = {"messages": list(header.messages), "inputs": dict(header.inputs)}
    return _Resumption({**config, "configurable": options}, given)


def _recorded_header(graph: Graph, config: RunnableConfig) -> RunHeader:
    """Return the header of the run that a config names; of a thread's turns, the last."""
    options = config.get("configurable", {})
    root = graph.nodes[str(graph.name)].bound
    journaling = root.starter.journaling if isinstance(root, RootNode) else None
    named = options.get(RUN_ID) or options.get(THREAD)
    if not named:
        raise StepError(f"name the run to resume: configurable={{{THREAD!r}: ...}} or {RUN_ID!r}")
    if journaling is None:
        raise StepError(
            f"the run {named!r} is unknown: the graph has no journal, and its checkpointer has no "
            "such thread; compile it with the journal or checkpointer that the run began with"
        )
    store, run_id = journaling.store, str(named)
    if not options.get(RUN_ID):
        # The journals of a thread's later turns are `<thread>.2`, `<thread>.3` and so on.
        turns = (f"{named}.{number}" for number in itertools.count(2))
        later = list(itertools.takewhile(store.has, turns))
        run_id = later[-1] if later else run_id
    return store.read(run_id)[0]
