"""The nodes that run a graph: the ways into containers, and the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.graph import START

from mergepoint.core.path import Place, join
from mergepoint.run.channels import (
    FAILED_AT,
    VALUES,
    Channels,
    base_for,
    kept_in,
    located,
)
from mergepoint.run.child import Around, Child, Fused, LeafNode
from mergepoint.run.facts import (
    Facts,
    facts_from,
    given_inputs,
    whole_messages,
)
from mergepoint.run.recorder import recorders_of
from mergepoint.run.rooted import Rooted
from mergepoint.run.siblings import SIBLINGS, Siblings
from mergepoint.run.states import BlockBase
from mergepoint.tree.block import Block, Input
from mergepoint.tree.fold import (
    Messages,
)
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop


class Showing(RunnableLambda[Channels, Channels]):
    """A node that runs a graph itself, and shows it to LangGraph as a lambda's dependency.

    By `deps` LangGraph finds the subgraph, for drawings, states and streams. (A RunnableSequence
    would be taken apart; a callable that holds the graph would hide it.)
    """

    def __init__(self, graph: Any, name: str) -> None:
        super().__init__(base_for, name=name)
        self.graph = graph

    @property
    def deps(self) -> list[Runnable[Any, Any]]:
        """Give the graph."""
        return [self.graph]

    # A lambda streams what its function gives; this one runs by `invoke` in every case.
    stream = Runnable.stream
    astream = Runnable.astream
    transform = Runnable.transform
    atransform = Runnable.atransform


class Enter(Child, Showing):
    """The way into a container: the parent's view becomes the base of its subgraph."""

    def __init__(
        self, graph: Any, node: Block | Gate | Loop, place: Place, around: Around | None
    ) -> None:
        super().__init__(graph, place.name)
        self.node = node
        self.place = place
        self.around = around
        self._parallel = isinstance(node, Block) and node.parallel
        self._begun, self._first = begun_at_once(graph)

    def kept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Give what the block keeps."""
        state = self._entered(state)
        with located(self.node, self._path(state)), self._siblings(config):
            written = None
            for values in self._begun.stream(*self._start(state, config), stream_mode=VALUES):
                written = values
            return kept_in(written)

    async def akept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Give what the block keeps."""
        state = self._entered(state)
        with located(self.node, self._path(state)), self._siblings(config):
            written = None
            async for values in self._begun.astream(
                *self._start(state, config), stream_mode=VALUES
            ):
                written = values
            return kept_in(written)

    def _entered(self, state: Channels) -> Channels:
        """Give the state with the facts that hold inside."""
        return state

    def _path(self, state: Channels) -> str:
        return Facts.off_wire(state["facts"]).path(self.place)

    def failed(self, config: RunnableConfig) -> Channels | None:
        """Give the namespace under which a checkpointer keeps what the block had done."""
        return {FAILED_AT: config.get("configurable", {}).get("checkpoint_ns", "")}

    def _start(self, state: Channels, config: RunnableConfig) -> tuple[Any, RunnableConfig]:
        """Give input and config; for a block that failed beside others, those that resume it.

        The exit sends a resumed graph to the failed children by new tasks. With the namespace of
        a new task the block would start over, and pay again for the calls it had made.
        """
        left = self._left(state)
        config = self._roomy(config)
        if FAILED_AT not in left:
            return {**base_for(state), **self._first}, config
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

    def _roomy(self, config: RunnableConfig) -> RunnableConfig:
        """Give the config with room for every child; the engine's limit guards against cycles."""
        needed = turns_of(self.node) + 5
        if config.get("recursion_limit", needed) >= needed:
            return config
        return {**config, "recursion_limit": needed}


def begun_at_once(graph: Any) -> tuple[Any, Channels]:
    """Give a graph that needs no superstep to begin, and what its input holds beside the base.

    LangGraph writes an input by a node of its own, which is a step more for each container. Here
    the input goes straight into the channels, and with it what starts the first node. Children
    side by side are started by a condition, which needs that step.
    """
    first = [end for start, end in graph.builder.edges if start == START]
    starts = [name for name in map("branch:to:{}".format, first) if name in graph.channels]
    if len(starts) != 1:
        return graph, {}
    at_once = copy(graph)
    at_once.input_channels = [*BlockBase.__annotations__, *starts]
    return at_once, dict.fromkeys(starts)


class EnterIteration(Enter):
    """The way into an iteration: which one it is goes down with the facts."""

    def _entered(self, state: Channels) -> Channels:
        facts = state["facts"]
        return {**state, "facts": {**facts, "rounds": [*facts["rounds"], state.get("round") or 1]}}


def turns_of(node: Block | Gate | Loop) -> int:
    """Give how many supersteps the subgraph of a node may take."""
    if isinstance(node, Loop):
        return 2 * node.max_iterations + node.may_skip
    return len(node.nodes) if isinstance(node, Block) else 2


Root = LeafNode | Enter | Fused


class RootNode(Showing):
    """The root in the graph around it: inputs and facts come in, the conversation is merged."""

    def __init__(self, root: Root, needs: Sequence[Input], rooted: Rooted) -> None:
        super().__init__(root.graph if isinstance(root, Enter) else root, str(root.name))
        self._root = root
        self._needs = needs
        self.rooted = rooted

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Run the root on a conversation."""
        with self._run(input, config or {}) as (base, config):
            return _result(self._root.kept(base, config))

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Run the root on a conversation."""
        with self._run(input, config or {}) as (base, config):
            return _result(await self._root.akept(base, config))

    @contextmanager
    def _run(
        self, state: Channels, config: RunnableConfig
    ) -> Iterator[tuple[Channels, RunnableConfig]]:
        """Give base and config of a run; hold its root's path in every journal meanwhile."""
        inputs = given_inputs(self._needs, state.get("inputs"), path=self._root.place.path)
        messages = whole_messages(state.get("messages") or [])
        facts = facts_from(config, inputs=inputs, scope=state.get("scope") or "")
        path = join(facts.around, self.rooted.path)
        with ExitStack() as held:
            facts, config = held.enter_context(self.rooted.run(facts, messages, config))
            for recorder in recorders_of(config):
                held.enter_context(recorder.journal.running(path))
            yield {"messages": messages, "outputs": {}, "facts": facts.on_wire()}, config


def _result(kept: Messages) -> Channels:
    return {"messages": list(kept.messages), "outputs": dict(kept.outputs)}
