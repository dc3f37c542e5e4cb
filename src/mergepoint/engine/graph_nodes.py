"""Nodes of compiled graphs: entries of containers, leaves, and exits that merge."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import get_runtime
from langgraph.types import Command, Overwrite, Send

from mergepoint.core.errors import BudgetExceeded
from mergepoint.core.merge import State, merge
from mergepoint.core.paths import Place
from mergepoint.engine.budgets import Spending
from mergepoint.engine.callbacks import recorders_of, running
from mergepoint.engine.channels import (
    DECIDE,
    EXIT,
    FAILED_AT,
    UNTIL,
    VALUES,
    Channels,
    base_for,
    delta,
    kept_in,
    located,
    put_path,
    view_in,
)
from mergepoint.engine.gates import adecide, decide
from mergepoint.engine.interpreter import SIBLINGS, Live, Siblings, first_failure
from mergepoint.engine.leaf_calls import Leaf, TreeCalls
from mergepoint.engine.run_constants import Facts, context_of, facts_from, node_names
from mergepoint.engine.start_and_resume import OpenedRun, RunStarter
from mergepoint.engine.step_call import reusing_copies
from mergepoint.journal.writer import run_off_loop
from mergepoint.models.identity import ChatModel
from mergepoint.models.requests import sendable_messages
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Input, Loop, Node
from mergepoint.tree.prompts import copied_message
from mergepoint.tree.semantics import (
    Messages,
    RunStopped,
    captured,
    decided,
    drive,
    ends_run,
    evaluate,
    exhausted,
    keeps,
    mode_of,
    question_of,
)
from mergepoint.tree.transform import check_stack
from mergepoint.tree.validate import given_inputs


@dataclass(frozen=True, slots=True)
class ParentRef:
    """The container of a child, its place, and the child's position among parallel siblings."""

    node: Block | Gate | Loop
    place: Place
    position: int | None = None

    def keeps(self, error: Exception, facts: Facts) -> bool:
        """Return whether the container continues without the child."""
        if not isinstance(error, BudgetExceeded) or isinstance(self.node, Gate):
            return False
        return keeps(facts.path(self.place), error)


class ChildNode:
    """A child of a container. Its result merges directly, or at the exit of a parallel block.

    If the budget of the container is not enough and says "keep", the child is skipped, and later
    children don't start. Leaves are bare Runnables: a RunnableLambda around a function would cost
    more than a third of a superstep.
    """

    node: Any
    place: Any
    around: Any  # None at the root

    def kept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Return the messages and outputs that the child merges."""
        raise NotImplementedError

    async def akept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Return the messages and outputs that the child merges."""
        raise NotImplementedError

    def failed(self, config: RunnableConfig) -> Channels | None:
        """Return the data with which a resumed graph continues a failed parallel child."""
        return None

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Run the child on the state of its block."""
        around = self.around
        siblings = None if around is None or around.position is None else SIBLINGS.get()
        if input.get("stopped") or input.get("rejected"):
            return {}
        if siblings is not None and not siblings.may_start:
            return self._parallel_result(None)
        try:
            kept = delta(self.kept(input, config or {}))
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001  (a value until the exit)
            return self._without(error, input, config or {}, siblings)
        return kept if siblings is None else self._parallel_result(kept)

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Run the child on the state of its block."""
        around = self.around
        siblings = None if around is None or around.position is None else SIBLINGS.get()
        if input.get("stopped") or input.get("rejected"):
            return {}
        if siblings is not None and not siblings.may_start:
            return self._parallel_result(None)
        try:
            kept = delta(await self.akept(input, config or {}))
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001  (a value until the exit)
            return self._without(error, input, config or {}, siblings)
        return kept if siblings is None else self._parallel_result(kept)

    def _without(
        self, error: Exception, state: Channels, config: RunnableConfig, siblings: Siblings | None
    ) -> Channels:
        """Return the writes of a failed child; raise its error if it has no parallel siblings."""
        # A rejection that ends the run is no failure: the container merges the result so far.
        if isinstance(error, RunStopped) and self.around is not None:
            left = {**delta(error.kept), "rejected": True}
            return left if siblings is None else self._parallel_result(left)
        if self.around is not None and self.around.keeps(error, Facts.from_plain(state["facts"])):
            return {"stopped": True} if siblings is None else self._parallel_result({})
        if siblings is None:
            raise error
        # LangGraph ends a superstep at the first error and drops unfinished writes of the other
        # children. So a failure is a value until the exit of the block.
        siblings.failures[self.around.position] = error
        return self._parallel_result(self.failed(config))

    def _parallel_result(self, result: Channels | None) -> Channels:
        return {"results": {str(self.around.position): result}}


class LeafNode(ChildNode, Runnable[Channels, Channels]):
    """A step or Call as a node, which merges its result at its own exit."""

    def __init__(
        self, node: Step | Call, place: Place, call: Leaf, around: ParentRef | None
    ) -> None:
        self.node = node
        self.place = place
        self.around = around
        self.name = place.name
        self._call = call

    def kept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Return the merged result of the node."""
        facts = Facts.from_plain(state["facts"])
        path = facts.path(self.place)
        # Without `located`, which takes two calls more for each step.
        try:
            made = self._call.invoke(path, view_in(state), facts, config)
            whole = made if self.node.capture_key is None else captured(self.node, made)
            return merge(State(), self.node.merge, whole)
        except Exception as error:
            put_path(error, self.node, path)
            raise

    async def akept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Return the merged result of the node."""
        facts = Facts.from_plain(state["facts"])
        path = facts.path(self.place)
        try:
            made = await self._call.ainvoke(path, view_in(state), facts, config)
            whole = made if self.node.capture_key is None else captured(self.node, made)
            return merge(State(), self.node.merge, whole)
        except Exception as error:
            put_path(error, self.node, path)
            raise


class FusedNode(ChildNode, Runnable[Channels, Any]):
    """A tree without gates in one node, which the interpreter runs."""

    def __init__(
        self, tree: Node, place: Place, calls: TreeCalls, around: ParentRef | None
    ) -> None:
        self.name = place.name
        self.node = tree
        self.place = place
        self.around = around
        self._calls = calls

    def kept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Return the merged result of the tree."""
        return drive(self._fold(state, config, sync=True))

    async def akept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Return the merged result of the tree."""
        return await self._fold(state, config, sync=False)

    async def _fold(self, state: Channels, config: RunnableConfig, *, sync: bool) -> Messages:
        facts = Facts.from_plain(state["facts"])
        engine = Live(self._calls, facts, config, sync=sync)
        path = facts.path(self.place)
        return await evaluate(self.node, path, view_in(state), onto=State(), engine=engine)


class Showing(RunnableLambda[Channels, Channels]):
    """A node that runs a graph itself, and exposes it to LangGraph as a lambda's dependency.

    LangGraph finds the subgraph by `deps`, for drawings, states and streams. It would take a
    RunnableSequence apart, and not see the graph inside a plain callable.
    """

    def __init__(self, graph: Any, name: str) -> None:
        super().__init__(base_for, name=name)
        self.graph = graph

    @property
    def deps(self) -> list[Runnable[Any, Any]]:
        """Return the graph."""
        return [self.graph]

    # A RunnableLambda streams the result of its function, which is only a placeholder here. So
    # every way of streaming must go through `invoke`.
    stream = Runnable.stream
    astream = Runnable.astream
    transform = Runnable.transform
    atransform = Runnable.atransform


class ContainerEntry(ChildNode, Showing):
    """The entry of a container: the parent's view becomes the base of its subgraph."""

    def __init__(
        self, graph: Any, node: Block | Gate | Loop, place: Place, around: ParentRef | None
    ) -> None:
        super().__init__(graph, place.name)
        self.node = node
        self.place = place
        self.around = around
        self._parallel = isinstance(node, Block) and node.side_by_side

    def kept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Return the merged result of the block. Raises RunStopped if a rejection ended the run."""
        state = self._entered(state)
        with located(self.node, self._path(state)), self._siblings(config):
            written = None
            # `stream` in the mode "values" instead of `invoke`, which also streams updates to
            # collect interrupts. A nested graph raises its interrupts itself; this saves 2 to 5 %
            # of a step.
            for values in self.graph.stream(*self._start(state, config), stream_mode=VALUES):
                written = values
            return _result_of_subgraph(written)

    async def akept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Return the merged result of the block."""
        state = self._entered(state)
        with located(self.node, self._path(state)), self._siblings(config):
            written = None
            async for values in self.graph.astream(*self._start(state, config), stream_mode=VALUES):
                written = values
            return _result_of_subgraph(written)

    def _entered(self, state: Channels) -> Channels:
        """Return the state with the facts that hold inside."""
        return state

    def _path(self, state: Channels) -> str:
        return Facts.from_plain(state["facts"]).path(self.place)

    def failed(self, config: RunnableConfig) -> Channels | None:
        """Return the namespace in which a checkpointer stores the finished calls of the block."""
        return {FAILED_AT: config.get("configurable", {}).get("checkpoint_ns", "")}

    def _start(self, state: Channels, config: RunnableConfig) -> tuple[Any, RunnableConfig]:
        """Return the input and config, which resume a block that failed next to its siblings."""
        # The exit sends a resumed graph to the failed children by new tasks. In the namespace of a
        # new task, the block would start from its beginning and repeat its paid calls.
        left = self._left(state)
        config = self._with_recursion_limit(config)
        if FAILED_AT not in left:
            return base_for(state), config
        options = {**config.get("configurable", {}), "checkpoint_ns": left[FAILED_AT]}
        return None, {**config, "configurable": options}

    def _left(self, state: Channels) -> Channels:
        if self.around is None or self.around.position is None:
            return {}
        results: dict[str, Channels | None] = state.get("results") or {}
        return results.get(str(self.around.position)) or {}

    @contextmanager
    def _siblings(self, config: RunnableConfig) -> Iterator[None]:
        if not self._parallel:
            yield
            return
        token = SIBLINGS.set(Siblings(limited=config.get("max_concurrency") is not None))
        try:
            yield
        finally:
            SIBLINGS.reset(token)

    def _with_recursion_limit(self, config: RunnableConfig) -> RunnableConfig:
        """Return the config with room for every child; the engine's limit guards against cycles."""
        # A container takes a superstep per child or iteration, and LangGraph's limit does not grow
        # with them. It guards against endless cycles, which a tree cannot have.
        needed = supersteps_of(self.node) + 5
        if config.get("recursion_limit", needed) >= needed:
            return config
        return {**config, "recursion_limit": needed}


class IterationEntry(ContainerEntry):
    """The entry of an iteration, which adds its number to the facts."""

    def _entered(self, state: Channels) -> Channels:
        facts = state["facts"]
        return {**state, "facts": {**facts, "rounds": [*facts["rounds"], state.get("round") or 1]}}


def supersteps_of(node: Block | Gate | Loop) -> int:
    """Return how many supersteps the subgraph of a node may take."""
    if isinstance(node, Loop):
        return 2 * node.max_iterations + node.may_skip
    return len(node.nodes) if isinstance(node, Block) else 2


Root = LeafNode | ContainerEntry | FusedNode


class RootNode(Showing):
    """The root node, which reads the run's input and merges its conversation."""

    def __init__(
        self,
        root: Root,
        needs: Sequence[Input],
        starter: RunStarter,
        with_model: Callable[[str | ChatModel], RootNode],
    ) -> None:
        super().__init__(root.graph if isinstance(root, ContainerEntry) else root, str(root.name))
        self._root = root
        self._needs = needs
        self._with_model = with_model
        self._others: OrderedDict[Any, RootNode] = OrderedDict()
        self.starter = starter

    def _chosen(self, config: RunnableConfig) -> RootNode:
        """Return the root with the model that a run's context names, compiled at its first use."""
        model = _model_in(config)
        if model is None:
            return self
        # The compiled calls keep the model alive, so that no other model can get its id.
        key = model if isinstance(model, str) else id(model)
        root = self._others.get(key)
        if root is None:
            root = self._others[key] = self._with_model(model)
            while len(self._others) > _MOST_MODELS:
                self._others.popitem(last=False)
        return root

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Run the root on a conversation."""
        return self._chosen(config or {})._conversed(input, config or {})

    def _conversed(self, given: Channels, config: RunnableConfig) -> Channels:
        root = self._start_of(given, config)
        with closing(self.starter.opened(*root)) as opened, self._run(opened, *root) as started:
            try:
                return _result(self._root.kept(*started))
            except RunStopped as stop:
                return _result(stop.kept)

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Run the root on a conversation; files and databases are opened in a thread."""
        config = config or {}
        chosen = self
        if _model_in(config) is not None:
            chosen = await run_off_loop(self._chosen, config)
        return await chosen._aconversed(input, config)

    async def converse(self, given: Mapping[str, Any], config: RunnableConfig) -> Channels:
        """Run the root on a conversation as `ainvoke` does, outside LangGraph."""
        return await self._aconversed(dict(given), config)

    async def _aconversed(self, given: Channels, config: RunnableConfig) -> Channels:
        root = self._start_of(given, config)
        waits = self.starter.waits
        opened = (
            await run_off_loop(self.starter.opened, *root) if waits else self.starter.opened(*root)
        )
        try:
            with self._run(opened, *root) as started:
                try:
                    return _result(await self._root.akept(*started))
                except RunStopped as stop:
                    return _result(stop.kept)
        finally:
            # Also after an error or a cancellation; closing waits for the journal's writer thread.
            if waits:
                await run_off_loop(opened.close)

    def _start_of(
        self, state: Channels, config: RunnableConfig
    ) -> tuple[Facts, list[BaseMessage], RunnableConfig]:
        """Return the facts, conversation and config with which a run starts."""
        check_stack(self._root.node, self._root.place.path)
        inputs = given_inputs(self._needs, state.get("inputs"), path=self._root.place.path)
        messages = sendable_messages(state.get("messages") or [])
        return facts_from(config, inputs=inputs, scope=state.get("scope") or ""), messages, config

    @contextmanager
    def _run(
        self,
        opened: OpenedRun,
        facts: Facts,
        messages: list[BaseMessage],
        config: RunnableConfig,
    ) -> Iterator[tuple[Channels, RunnableConfig]]:
        """Yield the base and config of a run, which has its path to itself until it ends."""
        with (
            # The order matters: the recorder of the journal must be in the config before the run
            # claims its path in every recorder.
            self.starter.run(opened, facts, messages, config) as (facts, config),
            running(recorders_of(config), facts, self.starter.path) as facts,
            reusing_copies(),
        ):
            # The caller can edit its messages while the run uses them.
            base = [copied_message(message) for message in messages]
            yield {"messages": base, "outputs": {}, "facts": facts.to_plain()}, config


_MOST_MODELS = 16  # that runs have chosen, and that are kept compiled


def _model_in(config: RunnableConfig) -> str | ChatModel | None:
    """Return the model in the context of a run; the context of a host graph is the host's own."""
    if len(node_names(config.get("metadata", {}))) > 1:
        return None
    context: Any = get_runtime().context
    model: str | ChatModel | None = (
        context.get("model") if isinstance(context, Mapping) else getattr(context, "model", None)
    )
    return model or None


def _result_of_subgraph(written: Channels | None) -> Messages:
    """Return the result of a subgraph. Raises RunStopped if a rejection in it ended the run."""
    if written and written.get("rejected"):
        raise RunStopped(kept_in(written))
    return kept_in(written)


def _result(kept: Messages) -> Channels:
    return {"messages": list(kept.messages), "outputs": dict(kept.outputs)}


def fan_out(own: Sequence[str]) -> Callable[[Channels, RunnableConfig], list[Any]]:
    """Return the edge into parallel children, which starts them in declared order."""

    # LangGraph starts triggered nodes in alphabetical order, but messages to nodes in the order
    # in which they are sent. The order matters only if a limit delays some of them.
    def start(state: Channels, config: RunnableConfig) -> list[Any]:
        if config.get("max_concurrency") is None:
            return list(own)
        return [Send(name, state) for name in own]

    return start


class ExitNode(Runnable[Channels, Any]):
    """The exit of a container, the only place where its result is merged."""

    def __init__(self, block: Block | Gate | Loop, place: Place, own: Sequence[str]) -> None:
        self.name = EXIT
        self._block = block
        self._place = place
        self._own = own
        self._parallel = isinstance(block, Block) and block.side_by_side

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Merge; in a parallel block, first join the results of the children in declared order."""
        path = Facts.from_plain(input["facts"]).path(self._place)
        with located(self._block, path):
            if not self._parallel:
                made = State.of(input.get("work") or (), input.get("captures") or {})
                return self._leave(made, rejected=bool(input.get("rejected")))
            results = input.get("results") or {}
            unanswered = [n for n in range(len(self._own)) if _unanswered(results.get(str(n)))]
            if unanswered:
                return self._without(unanswered)
            made = State()
            # In declared order, not in order of completion: the result must not depend on timing.
            for number in range(len(self._own)):
                made = made + kept_in(results[str(number)])
            return self._leave(made, rejected=any(one.get("rejected") for one in results.values()))

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Merge like `invoke`, without waiting."""
        return self.invoke(input, config)

    def _leave(self, made: Messages, *, rejected: bool) -> Channels:
        """Return the writes; a sequential block writes only the differences to its channels.

        If a rejection ends the run, the result so far leaves the block too, marked as rejected.
        """
        mode = mode_of(self._block, made, stopped=rejected)
        kept = merge(State(), mode, captured(self._block, made, stopped=rejected))
        if self._parallel:
            return {**delta(kept), "rejected": True} if rejected else delta(kept)
        written: Channels = {}
        if len(kept.messages) != len(made.messages):
            written["work"] = Overwrite(list(kept.messages))
        key = self._block.capture_key
        if key is not None and key in kept.outputs:
            written["captures"] = {key: kept.outputs[key]}
        return written

    def _without(self, unanswered: Sequence[int]) -> Any:
        """Raise the first failure; in a resumed graph, whose failures are gone, try them again."""
        siblings = SIBLINGS.get()
        failures = siblings.failures if siblings is not None else {}
        if failures:
            raise first_failure([failures[number] for number in sorted(failures)])
        # Failures are kept in memory only, so a resumed graph has none. It runs the children again
        # that have no result.
        return Command(goto=[self._own[number] for number in unanswered])


def _unanswered(result: Channels | None) -> bool:
    return result is None or FAILED_AT in result


# A separate node, because LangGraph runs a node again from its start after an interrupt. This one
# has only the question, so that running it again repeats no call.
class DecisionNode(Runnable[Channels, Channels]):
    """The decision of a person between the work of a gate's node and the gate's exit."""

    def __init__(self, gate: Gate, place: Place, spending: Spending) -> None:
        self.name = DECIDE
        self._spending = spending
        self._gate = gate
        self._place = place

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Write the result of the gate's node as it was decided."""
        if input.get("rejected"):
            return _overwrite(State())
        facts, question = self._question(input)
        with located(self._gate, question.path), self._waiting(facts, config or {}):
            decision = decide(self._gate, question, facts, config or {}, interrupts=True)
            return self._decided(question, decision)

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Write the result of the gate's node as it was decided."""
        if input.get("rejected"):
            return _overwrite(State())
        facts, question = self._question(input)
        with located(self._gate, question.path), self._waiting(facts, config or {}):
            decision = await adecide(self._gate, question, facts, config or {}, interrupts=True)
            return self._decided(question, decision)

    def _decided(self, question: Question, decision: Decision) -> Channels:
        written = _overwrite(decided(self._gate, question, decision))
        return {**written, "rejected": True} if ends_run(self._gate, decision) else written

    def _waiting(self, facts: Facts, config: RunnableConfig) -> AbstractContextManager[None]:
        return self._spending.waiting(facts, recorders_of(config))

    def _question(self, state: Channels) -> tuple[Facts, Question]:
        facts = Facts.from_plain(state["facts"])
        kept = State.of(state.get("work") or (), state.get("captures") or {})
        return facts, question_of(self._gate, facts.path(self._place), kept)


def _overwrite(made: Messages) -> Channels:
    return {"work": Overwrite(list(made.messages)), "captures": Overwrite(dict(made.outputs))}


class LoopConditionNode(Runnable[Channels, Channels]):
    """The node that evaluates a loop's `until` after each iteration and counts iterations.

    If the loop may be skipped, it also runs before the first iteration.
    """

    def __init__(self, loop: Loop, place: Place) -> None:
        self.name = UNTIL
        self._loop = loop
        self._place = place

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Write whether the loop is over, and the number of the next iteration."""
        facts = Facts.from_plain(input["facts"])
        path = facts.path(self._place)
        # The channel is unset before the first iteration.
        number = input.get("round") or (0 if self._loop.may_skip else 1)
        with located(self._loop, path):
            stopped = input.get("stopped") or input.get("rejected")
            if stopped or self._loop.holds(context_of(path, view_in(input), facts, None)):
                return {"over": True}
            if number < self._loop.max_iterations:
                return {"over": False, "round": number + 1}
            if self._loop.on_exhausted == "raise":
                raise exhausted(self._loop)
            return {"over": True}

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Write the same as `invoke`, without waiting."""
        return self.invoke(input, config)
