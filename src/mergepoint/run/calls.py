"""Calls: how the leaves of a tree are run, each made once."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import TreeError
from mergepoint.models.resolve import resolve_model
from mergepoint.models.view import View
from mergepoint.run.call import StepCall
from mergepoint.run.facts import Facts
from mergepoint.run.function import FunctionCall
from mergepoint.run.spending import Spending
from mergepoint.tree.call import Call
from mergepoint.tree.fold import Messages
from mergepoint.tree.node import Node, walk
from mergepoint.tree.step import Step


class Leaf(Protocol):
    """How a node without children is run at a path."""

    def invoke(self, path: str, base: Messages, facts: Facts, config: RunnableConfig) -> Messages:
        """Give what the node makes of its base."""
        ...

    async def ainvoke(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> Messages:
        """Give what the node makes of its base."""
        ...


class Calls:
    """The calls of a tree's steps and Calls, each made once."""

    def __init__(
        self,
        model: str | BaseChatModel | None,
        *,
        view: View | None,
        spending: Spending | None = None,
    ) -> None:
        self._given = model
        self.spending = spending or Spending()
        self._view = view
        self._named: dict[str, BaseChatModel] = {}
        self._made: dict[int, tuple[Node, StepCall | FunctionCall]] = {}

    def made_for(self, tree: Node, path: str) -> Calls:
        """Make every call of a tree now, so that a missing model is found before one is paid.

        Raises TreeError too for steps under a budget in USD whose model has no price.
        """
        if self._given is not None:
            self._resolved(self._given)
        for at, node in walk(tree, path):
            if isinstance(node, Step | Call):
                self.of(node, at)
        shapes = {
            at: made.shape
            for at, node in walk(tree, path)
            if isinstance(node, Step) and isinstance(made := self.of(node, at), StepCall)
        }
        self.spending.governs(tree, path, shapes)
        return self

    def of(self, node: Step | Call, path: str) -> Leaf:
        """Give how the step or Call at a path is run.

        Raises TreeError where neither the step nor the run has a model.
        """
        known = self._made.get(id(node))
        if known is None:
            known = self._made[id(node)] = (node, self._make(node, path))
        return known[1]

    def setting(self, step: Step, path: str) -> bytes:
        """Give the digest of how a step calls its model, the same in all of its calls."""
        made = self.of(step, path)
        return made.setting if isinstance(made, StepCall) else b""

    def _make(self, node: Step | Call, path: str) -> StepCall | FunctionCall:
        if isinstance(node, Call):
            models = partial(self._model, path=path)
            return FunctionCall(node, models, view=self._view, spending=self.spending)
        return StepCall(
            node, self._model(node.model, path), view=self._view, spending=self.spending
        )

    def _model(self, model: str | BaseChatModel | None, path: str) -> BaseChatModel:
        wanted = self._given if model is None else model
        if wanted is None:
            raise TreeError.of(
                "no model: give one to the run (model='provider:name', a chat model, or "
                "'offline') or to the step",
                path=path,
            )
        return self._resolved(wanted)

    def _resolved(self, model: str | BaseChatModel) -> BaseChatModel:
        if not isinstance(model, str):
            return resolve_model(model)
        if model not in self._named:
            self._named[model] = resolve_model(model)
        return self._named[model]
