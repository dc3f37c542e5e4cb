"""Child: what stands in a container; and the children that hold no graph, leaves and fused trees.

They are bare Runnables: a RunnableLambda around a function would cost more than a third of a
superstep for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.errors import GraphBubbleUp

from mergepoint.core.errors import BudgetExceeded
from mergepoint.core.merge import merge
from mergepoint.core.path import Place
from mergepoint.core.state import State
from mergepoint.run.calls import Calls, Leaf
from mergepoint.run.channels import (
    Channels,
    delta,
    located,
    view_in,
)
from mergepoint.run.facts import (
    Facts,
)
from mergepoint.run.interpret import Live
from mergepoint.run.siblings import SIBLINGS, Siblings
from mergepoint.tree.block import Block
from mergepoint.tree.call import Call
from mergepoint.tree.fold import (
    Messages,
    captured,
    drive,
    fold,
    keeps,
)
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node
from mergepoint.tree.step import Step


@dataclass(frozen=True, slots=True)
class Around:
    """What a child stands in: its container and place; its position among parallel siblings."""

    node: Block | Gate | Loop
    place: Place
    position: int | None = None

    def keeps(self, error: Exception, facts: Facts) -> bool:
        """Say whether the container goes on without the child."""
        if not isinstance(error, BudgetExceeded) or isinstance(self.node, Gate):
            return False
        return keeps(facts.path(self.place), error)


class Child:
    """A child of a container: it keeps something, at once or, side by side, for the exit to fold.

    Where the container's budget does not suffice for it, and says "keep", it keeps nothing, and
    those after it do not start.
    """

    node: Any
    place: Any
    around: Any  # None at the root

    def kept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Give what the child keeps."""
        raise NotImplementedError

    async def akept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Give what the child keeps."""
        raise NotImplementedError

    def failed(self, config: RunnableConfig) -> Channels | None:
        """Give what a resumed graph needs to go on with a child that failed beside others."""
        return None

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Run the child on the state of its block."""
        siblings = self._siblings_around()
        if input.get("stopped"):
            return {}
        if siblings is not None and not siblings.may_start:
            return self._held(None)
        try:
            kept = delta(self.kept(input, config or {}))
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001  (a value until the exit)
            return self._without(error, input, config or {}, siblings)
        return kept if siblings is None else self._held(kept)

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Run the child on the state of its block."""
        siblings = self._siblings_around()
        if input.get("stopped"):
            return {}
        if siblings is not None and not siblings.may_start:
            return self._held(None)
        try:
            kept = delta(await self.akept(input, config or {}))
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001  (a value until the exit)
            return self._without(error, input, config or {}, siblings)
        return kept if siblings is None else self._held(kept)

    def _siblings_around(self) -> Siblings | None:
        beside = self.around is not None and self.around.position is not None
        return SIBLINGS.get() if beside else None

    def _without(
        self, error: Exception, state: Channels, config: RunnableConfig, siblings: Siblings | None
    ) -> Channels:
        """Give the writes of a child that failed; alone it raises, side by side the exit does."""
        if self.around is not None and self.around.keeps(error, Facts.off_wire(state["facts"])):
            return {"stopped": True} if siblings is None else self._held({})
        if siblings is None:
            raise error
        siblings.failures[self.around.position] = error
        return self._held(self.failed(config))

    def _held(self, result: Channels | None) -> Channels:
        return {"results": {str(self.around.position): result}}


class LeafNode(Child, Runnable[Channels, Channels]):
    """A step or Call as a node: it is called, and merges what it made at its own exit."""

    def __init__(self, node: Step | Call, place: Place, call: Leaf, around: Around | None) -> None:
        self.node = node
        self.place = place
        self.around = around
        self.name = place.name
        self._call = call

    def kept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Give what the node keeps of what it makes."""
        facts = Facts.off_wire(state["facts"])
        path = facts.path(self.place)
        with located(self.node, path):
            made = self._call.invoke(path, view_in(state), facts, config)
            return merge(State(), self.node.merge, captured(self.node, made))

    async def akept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Give what the node keeps of what it makes."""
        facts = Facts.off_wire(state["facts"])
        path = facts.path(self.place)
        with located(self.node, path):
            made = await self._call.ainvoke(path, view_in(state), facts, config)
            return merge(State(), self.node.merge, captured(self.node, made))


class Fused(Child, Runnable[Channels, Any]):
    """A whole tree without gates in one node: the interpreter runs in it."""

    def __init__(self, tree: Node, place: Place, calls: Calls, around: Around | None) -> None:
        self.name = place.name
        self.node = tree
        self.place = place
        self.around = around
        self._calls = calls

    def kept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Give what the tree keeps."""
        return drive(self._fold(state, config, sync=True))

    async def akept(self, state: Channels, config: RunnableConfig) -> Messages:
        """Give what the tree keeps."""
        return await self._fold(state, config, sync=False)

    async def _fold(self, state: Channels, config: RunnableConfig, *, sync: bool) -> Messages:
        facts = Facts.off_wire(state["facts"])
        engine = Live(self._calls, facts, config, sync=sync)
        path = facts.path(self.place)
        return await fold(self.node, path, view_in(state), onto=State(), engine=engine)
