"""The calls of a tree's leaves, each compiled once; and steps whose models call tools.

A step with tools is one execution, as a Call is: its record contains its new messages. Each call
of its model has its own record (`inner`), and so has each execution of a tool, at `<step>/tool_01`
and so on. So a resumed run repeats neither calls nor tools.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_langchain_tool
from langgraph.errors import GraphBubbleUp

from mergepoint.core.errors import AnswerError, RailError, ReplayMiss, StepError, TreeError
from mergepoint.core.merge import State
from mergepoint.core.paths import join
from mergepoint.engine.budgets import Spending
from mergepoint.engine.function_call import FunctionCall, Prepared, tool_content
from mergepoint.engine.run_constants import Facts
from mergepoint.engine.step_call import StepCall
from mergepoint.journal.call_records import TOOL
from mergepoint.journal.checked_lines import JournalError
from mergepoint.models.budget import CallShape
from mergepoint.models.identity import ChatModel, composed
from mergepoint.models.providers import NO_SETTINGS, ModelSettings, Resolver, View
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Node, walk
from mergepoint.tree.policy import Policy
from mergepoint.tree.prompts import CallContext
from mergepoint.tree.semantics import Messages


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


_RESULT: Final = "result"
# These errors end the run. The model must not read them as results of a tool.
_NOT_FOR_THE_MODEL = (RailError, ReplayMiss, JournalError, GraphBubbleUp)


class ToolStepCall:
    """A step with tools, compiled once and called at any path in every run."""

    def __init__(
        self,
        step: Step,
        model: ChatModel,
        *,
        view: View | None,
        spending: Spending,
        settings: ModelSettings = NO_SETTINGS,
    ) -> None:
        asks = StepCall(
            replace(step, tools=()), model, view=view, spending=spending, settings=settings
        )
        loop = ToolLoop(step, asks, spending)
        own = step.policy
        self._call = FunctionCall(
            Call(loop, name=step.name, merge="all_messages", meta=step.meta),
            lambda _: model,
            view=view,
            spending=spending,
            settings=settings,
            inner=Policy(
                retry=own.retry, timeout=own.timeout, accept_truncated=own.accept_truncated
            ),
            lead=asks.lead,
        )
        self.fields: Mapping[str, Any] = loop.fields
        self.shape: CallShape | None = asks.shape

    def invoke(self, path: str, base: Messages, facts: Facts, config: RunnableConfig) -> Messages:
        """Return the new messages of the step: prompt, tool exchange and answer."""
        return self._call.invoke(path, base, facts, config)

    async def ainvoke(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> Messages:
        """Return the new messages of the step: prompt, tool exchange and answer."""
        return await self._call.ainvoke(path, base, facts, config)


class ToolLoop:
    """Calls a model until it answers without calling a tool. A CallTarget."""

    def __init__(self, step: Step, asks: StepCall, spending: Spending) -> None:
        self._step = step
        self._asks = asks
        self._spending = spending
        self._tools = {one.name: one for one in map(as_tool, step.tools)}
        shapes = [_shape_of(one) for one in self._tools.values()]
        self.fields = {**asks.fields, "tools": shapes, "max_tool_rounds": step.max_tool_rounds}

    @property
    def name_on_record(self) -> str:
        """Return the name of the model."""
        return str(self._asks.fields["model"])

    def argument_problems(self, args: Mapping[str, Any] | None) -> list[str]:
        """Return an empty list: a step has no arguments."""
        return []

    def fingerprint(self) -> str:
        """Return the identity of the step as JSON: its prompt, model settings and tools."""
        prompt = self._step.prompt
        said = prompt if isinstance(prompt, str) else getattr(prompt, "text", type(prompt).__name__)
        system = self._step.system
        about = {**self.fields, "prompt": said, "system": getattr(system, "text", system)}
        return json.dumps(about, sort_keys=True, default=lambda value: type(value).__name__)

    def perform(self, asked: Prepared, context: CallContext, /) -> Awaitable[list[BaseMessage]]:
        """Return the new messages of the step."""
        return self._messages(asked, context)

    async def _messages(self, asked: Prepared, context: CallContext) -> list[BaseMessage]:
        key = asked.key
        facts = Facts(key.run, key.host, context.seed, dict(context.inputs))
        base: Messages = State.of(tuple(context.messages), dict(context.outputs))
        request = self._asks.request(key.path, base, facts)
        how = self._asks.model_for(asked.config)
        model = self._bound(context)
        made: list[BaseMessage] = [request.prompt]
        numbers = count(1)
        # One call more than rounds, because the last answer must not call a tool.
        for number in range(self._step.max_tool_rounds + 1):
            seen = [*request.messages, *made[1:]]
            answer: AIMessage = await model.ainvoke(seen, asked.config, **how.params)
            made.append(answer)
            calls = [*answer.tool_calls, *answer.invalid_tool_calls]
            if not calls:
                how.accept(answer)
                return made
            if number == self._step.max_tool_rounds:
                break
            results = [self._result(call, next(numbers), asked, facts) for call in calls]
            made += await _all(results)
        called = ", ".join(str(call["name"]) for call in calls)
        raise AnswerError(
            f"after {self._step.max_tool_rounds} rounds the model still calls tools ({called}); "
            "allow more with Step(max_tool_rounds=...), or say in the prompt when to stop"
        )

    def _bound(self, context: CallContext) -> Runnable[Any, Any]:
        """Return the instrumented model with the tools."""
        tools = list(self._tools.values())
        model: ChatModel = context.model(None)
        if isinstance(model, BaseChatModel):
            return model.bind_tools(tools)
        return composed(model, lambda one: one.bind_tools(tools))

    async def _result(
        self, call: Mapping[str, Any], number: int, asked: Prepared, facts: Facts
    ) -> ToolMessage:
        """Return the result of a tool call, or a message for the model about its error."""
        name, call_id = str(call["name"]), call.get("id") or f"call_{number:02}"
        problem = self._problem(call)
        if problem is not None:
            return ToolMessage(problem, name=name, tool_call_id=call_id, status="error")
        at = join(asked.key.path, f"tool_{number:02}")
        execution = Call(
            _execution(self._tools[name]), args={"args": call["args"]}, capture_key=_RESULT
        )
        run = FunctionCall(execution, asked.models, view=asked.view, spending=self._spending)
        found = (await run.ainvoke(at, State(), facts, asked.config)).outputs[_RESULT]
        return ToolMessage(
            found["content"], name=name, tool_call_id=call_id, status=found["status"]
        )

    def _problem(self, call: Mapping[str, Any]) -> str | None:
        if call["name"] not in self._tools:
            known = ", ".join(self._tools)
            return f"Error: there is no tool {call['name']!r}; there are: {known}"
        if not isinstance(call["args"], Mapping):
            return f"Error: the arguments are no JSON object: {call.get('error') or call['args']}"
        return None


def as_tool(given: Any) -> BaseTool:
    """Return a LangChain tool unchanged, and a function as a tool."""
    if isinstance(given, BaseTool):
        return given
    made: BaseTool = as_langchain_tool(given)
    return made


def _shape_of(tool: BaseTool) -> dict[str, Any]:
    schema: Any = tool.tool_call_schema
    args = schema if isinstance(schema, dict) else schema.model_json_schema()
    return {"name": tool.name, "description": tool.description, "args": args}


def _execution(tool: BaseTool) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return the function that executes a tool; an error of the tool is its result too.

    So a recorded failure is not executed again: the model has read it.
    """

    async def execute(args: dict[str, Any]) -> dict[str, Any]:
        # The path distinguishes executions, so that a graph as a tool needs no id for its scope.
        asked = {"type": "tool_call", "id": "", "name": tool.name, "args": args}
        try:
            message = await tool.ainvoke(asked)
        except _NOT_FOR_THE_MODEL:
            raise
        except Exception as error:  # noqa: BLE001  (the model reads any error)
            return {"content": f"{type(error).__name__}: {error}", "status": "error"}
        if not isinstance(message, ToolMessage):
            raise StepError(f"the tool {tool.name!r} did not return a ToolMessage")
        return {"content": tool_content(message.content), "status": message.status}

    execute.__module__, execute.__qualname__ = TOOL.rstrip("."), tool.name
    return execute


async def _all(results: Sequence[Awaitable[ToolMessage]]) -> list[ToolMessage]:
    """Return all results in order; raise the first error when all have finished."""
    # All tools finish before an error is raised, so that their results are recorded.
    found = await asyncio.gather(*results, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, ToolMessage)]
