"""Callables for the leaves of a tree, each compiled once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import TreeError
from mergepoint.engine.budgets import Spending
from mergepoint.engine.function_call import FunctionCall
from mergepoint.engine.run_constants import Facts
from mergepoint.engine.step_call import StepCall
from mergepoint.engine.tools import ToolStepCall
from mergepoint.models.identity import ChatModel, View
from mergepoint.models.providers import NO_SETTINGS, ModelSettings, Resolver
from mergepoint.tree.evaluate import Messages
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Node, walk


class Leaf(Protocol):
    """A compiled node without children, which runs at any path."""

    def invoke(self, path: str, base: Messages, facts: Facts, config: RunnableConfig) -> Messages:
        """Return the messages and outputs that the node produces from its base."""
        ...

    async def ainvoke(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> Messages:
        """Return the messages and outputs that the node produces from its base."""
        ...


class TreeCalls:
    """The compiled steps and Calls of a tree, each compiled once."""

    def __init__(
        self,
        model: str | ChatModel | None,
        *,
        view: View | None,
        spending: Spending | None = None,
        settings: ModelSettings = NO_SETTINGS,
    ) -> None:
        self._given = model
        self.spending = spending or Spending()
        self._view = view
        self._models = Resolver(model, settings)
        self._made: dict[int, tuple[Node, StepCall | ToolStepCall | FunctionCall]] = {}

    def made_for(self, tree: Node, path: str) -> TreeCalls:
        """Compile every leaf of a tree, so that a missing model fails before a call costs anything.

        Raises TreeError too for steps under a budget in USD whose model has no price.
        """
        if self._given is not None:
            self._models.resolve(self._given, own=False)
        for at, node in walk(tree, path):
            if isinstance(node, Step | Call):
                self.of(node, at)
        shapes = {
            at: made.shape
            for at, node in walk(tree, path)
            if isinstance(node, Step)
            and isinstance(made := self.of(node, at), StepCall | ToolStepCall)
            and made.shape is not None
        }
        self.spending.set_budgets(tree, path, shapes)
        return self

    def of(self, node: Step | Call, path: str) -> StepCall | ToolStepCall | FunctionCall:
        """Return the compiled step or Call at a path.

        Raises TreeError where neither the step nor the run has a model.
        """
        # By identity, because nodes contain mappings and cannot be hashed. The stored node keeps
        # its id from being reused.
        known = self._made.get(id(node))
        if known is None:
            known = self._made[id(node)] = (node, self._make(node, path))
        return known[1]

    def fields(self, step: Step, path: str) -> Mapping[str, Any]:
        """Return the settings with which a step calls its model, by name."""
        made = self.of(step, path)
        return {} if isinstance(made, FunctionCall) else made.fields

    def _make(self, node: Step | Call, path: str) -> StepCall | ToolStepCall | FunctionCall:
        if isinstance(node, Call):
            models = partial(self._model, path=path)
            return FunctionCall(
                node,
                models,
                view=self._view,
                spending=self.spending,
                settings=self._models.settings,
            )
        kind = ToolStepCall if node.tools else StepCall
        return kind(
            node,
            self._model(node.model, path),
            view=self._view,
            spending=self.spending,
            settings=self._models.settings,
        )

    def _model(self, model: str | ChatModel | None, path: str) -> ChatModel:
        wanted = self._given if model is None else model
        if wanted is None:
            raise TreeError.of(
                "no model: give one to the run (model='provider:name', a chat model, or "
                "'offline') or to the step",
                path=path,
            )
        return self._models.resolve(wanted, own=model is not None)
