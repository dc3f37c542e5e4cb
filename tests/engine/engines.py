"""Every engine behind one call, so that one test holds all of them to one meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig

from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.interpreter import ainterpret, interpret
from mergepoint.engine.runner import ChatRunner
from mergepoint.tree.nodes import Node

RUN = "r1"


@dataclass(frozen=True)
class End:
    """The state at the end of a run."""

    messages: list[BaseMessage]
    outputs: dict[str, Any]

    @property
    def texts(self) -> list[str]:
        """Return the text of each message."""
        return texts(self.messages)


@dataclass(frozen=True)
class Engine:
    """One way to run a tree, sync or async; `limit` is LangChain's max_concurrency."""

    form: Literal["interpret", "subgraphs", "fused"]
    on_loop: bool

    def __str__(self) -> str:
        return f"{self.form}-async" if self.on_loop else self.form

    def __call__(
        self,
        tree: Node,
        model: BaseChatModel | str | None,
        *,
        messages: Sequence[BaseMessage] = (),
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        recorder: Recorder | None = None,
        limit: int | None = None,
    ) -> End:
        """Run the tree and give the state at the end."""
        if self.form == "interpret":
            return self._interpreted(tree, model, messages, inputs, seed, recorder)
        graph = compile_graph(tree, model=model, form=self.form)
        config: RunnableConfig = {
            "callbacks": [] if recorder is None else [recorder],
            "configurable": {"mergepoint_run_id": RUN, "mergepoint_seed": seed},
        }
        if limit is not None:
            config["max_concurrency"] = limit
        given = {"messages": list(messages), "inputs": dict(inputs or {})}
        if self.on_loop:
            found = asyncio.run(graph.ainvoke(given, config))
        else:
            found = graph.invoke(given, config)
        return End(found["messages"], found["outputs"])

    def _interpreted(
        self,
        tree: Node,
        model: BaseChatModel | str | None,
        messages: Sequence[BaseMessage],
        inputs: Mapping[str, Any] | None,
        seed: int,
        recorder: Recorder | None,
    ) -> End:
        about: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "inputs": inputs,
            "run_id": RUN,
            "seed": seed,
            "recorder": recorder,
        }
        ended = asyncio.run(ainterpret(tree, **about)) if self.on_loop else interpret(tree, **about)
        return End(list(ended.messages), dict(ended.outputs))


GRAPHS = tuple(
    Engine(form, on_loop) for form in ("subgraphs", "fused") for on_loop in (False, True)
)
ENGINES = (Engine("interpret", False), Engine("interpret", True), *GRAPHS)


@dataclass(frozen=True)
class Runner:
    """A ChatRunner of one form, sync or async."""

    form: Form
    on_loop: bool

    def __str__(self) -> str:
        return f"{self.form}-async" if self.on_loop else self.form

    def __call__(self, ctx: RunContext, tree: Node, model: BaseChatModel | None) -> RunContext:
        """Run the tree in the context."""
        runner = ChatRunner(model, form=self.form)
        return asyncio.run(runner.arun(ctx, tree)) if self.on_loop else runner.run(ctx, tree)


RUNNERS = tuple(
    Runner(form, on_loop) for form in ("subgraphs", "fused") for on_loop in (False, True)
)


class Echo(BaseChatModel):
    """A chat model that repeats the prompt and keeps nothing, for trees of many steps."""

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        message = AIMessage(f"to {messages[-1].text}")
        return ChatResult(generations=[ChatGeneration(message=message)])


def texts(messages: Iterable[BaseMessage]) -> list[str]:
    """Return the text of each message."""
    return [str(message.text) for message in messages]
