"""The same work in LangGraph, written by hand.

As its documentation has it: a node function for each call, messages under `add_messages`, a
subgraph for each stage that is called from a node, because it takes and gives something else
than the graph around it. Sync and async nodes are two graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from tests.benchmarks import work as text
from tests.benchmarks.contender import Contender, Ran
from tests.benchmarks.disk import Disk
from tests.benchmarks.transcript import HandTranscript
from tests.benchmarks.work import CRITICS, QUESTION, Enclave, Fan, Flat, Work
from typing_extensions import TypedDict

NodeFunction = Callable[..., Any]


class Conversation(TypedDict):
    """The state of the whole graph."""

    messages: Annotated[list[AnyMessage], add_messages]
    outputs: Annotated[dict[str, str], operator.or_]


class Stage(TypedDict):
    """The state of a stage."""

    messages: Annotated[list[AnyMessage], add_messages]
    critiques: Annotated[dict[str, str], operator.or_]


def by_hand(work: Work, model: BaseChatModel) -> Contender:
    """Return the work as a LangGraph graph."""
    graph, agraph = _graph(work, _Sync(model)), _graph(work, _Async(model))

    def ran(result: dict[str, Any], transcript: HandTranscript) -> Ran:
        return Ran(result["messages"], result.get("outputs") or {}, transcript.rows)

    def run() -> Ran:
        transcript = HandTranscript()
        return ran(graph.invoke(_given(), _config(work, transcript)), transcript)

    async def arun() -> Ran:
        transcript = HandTranscript()
        return ran(await agraph.ainvoke(_given(), _config(work, transcript)), transcript)

    return Contender("h", run, arun)


def saved_by_hand(work: Flat, model: BaseChatModel) -> Contender:
    """Return a row of steps as the same graph, its state saved by SqliteSaver after each step."""
    graph, disk = _graph(work, _Sync(model)), Disk()

    def run() -> Ran:
        run_id, folder = disk.fresh()
        transcript = HandTranscript()
        config = _config(work, transcript) | {"configurable": {"thread_id": run_id}}
        with SqliteSaver.from_conn_string(str(folder / "saved.db")) as saver:
            graph.checkpointer = saver
            result = graph.invoke(_given(), config, durability="sync")
        return Ran(result["messages"], result.get("outputs") or {}, transcript.rows)

    async def arun() -> Ran:
        raise NotImplementedError("SqliteSaver has no async methods")

    return Contender("hq", run, arun, disk)


def _given() -> dict[str, Any]:
    return {"messages": [HumanMessage(QUESTION)]}


def _config(work: Work, transcript: HandTranscript) -> RunnableConfig:
    config: RunnableConfig = {"callbacks": [transcript], "recursion_limit": work.calls + 10}
    if isinstance(work, Fan):
        config["max_concurrency"] = work.limit
    return config


class _Sync:
    """Node functions that wait."""

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model

    def turn(self, prompt_of: Callable[[Any], str], *, keeps: bool = True) -> NodeFunction:
        """Return a node that adds a prompt and the answer to the conversation, if it keeps them."""

        def node(state: Any, config: RunnableConfig) -> dict[str, Any]:
            prompt = HumanMessage(prompt_of(state))
            response = self._model.invoke([*state["messages"], prompt], config)
            return {"messages": [prompt, response]} if keeps else {}

        return node

    def critic(self, critic: str, prompt: str) -> NodeFunction:
        """Return a node that keeps the answer beside the conversation."""

        def node(state: Stage, config: RunnableConfig) -> dict[str, Any]:
            response = self._model.invoke([*state["messages"], HumanMessage(prompt)], config)
            return {"critiques": {critic: response.text}}

        return node

    def stage(self, number: int, graph: Any) -> NodeFunction:
        """Return a node that runs a stage and returns its last response."""

        def node(state: Conversation, config: RunnableConfig) -> dict[str, Any]:
            return _left(number, graph.invoke({"messages": state["messages"]}, config))

        return node


class _Async:
    """The same node functions, awaited."""

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model

    def turn(self, prompt_of: Callable[[Any], str], *, keeps: bool = True) -> NodeFunction:
        """Return a node that adds a prompt and the answer to the conversation, if it keeps them."""

        async def node(state: Any, config: RunnableConfig) -> dict[str, Any]:
            prompt = HumanMessage(prompt_of(state))
            response = await self._model.ainvoke([*state["messages"], prompt], config)
            return {"messages": [prompt, response]} if keeps else {}

        return node

    def critic(self, critic: str, prompt: str) -> NodeFunction:
        """Return a node that keeps the answer beside the conversation."""

        async def node(state: Stage, config: RunnableConfig) -> dict[str, Any]:
            seen = [*state["messages"], HumanMessage(prompt)]
            response = await self._model.ainvoke(seen, config)
            return {"critiques": {critic: response.text}}

        return node

    def stage(self, number: int, graph: Any) -> NodeFunction:
        """Return a node that runs a stage and returns its last response."""

        async def node(state: Conversation, config: RunnableConfig) -> dict[str, Any]:
            return _left(number, await graph.ainvoke({"messages": state["messages"]}, config))

        return node


def _left(number: int, stage: dict[str, Any]) -> dict[str, Any]:
    critiques = stage["critiques"]
    kept = {text.key(number, critic): critiques[critic] for critic in CRITICS}
    return {"messages": [stage["messages"][-1]], "outputs": kept}


def _graph(work: Work, nodes: _Sync | _Async) -> Any:
    builder = StateGraph(Conversation)
    if isinstance(work, Fan):
        for number in range(1, work.branches + 1):
            name = text.step_name(number)
            builder.add_node(name, _step(nodes, number))
            builder.add_edge(START, name)
            builder.add_edge(name, END)
        return builder.compile()
    before = START
    for number in range(1, (work.steps if isinstance(work, Flat) else work.stages) + 1):
        if isinstance(work, Flat):
            name, node = text.step_name(number), _step(nodes, number, keeps=work.keeps)
        else:
            name, node = text.stage_name(number), _stage(nodes, number, work)
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    builder.add_edge(before, END)
    return builder.compile()


def _step(nodes: _Sync | _Async, number: int, *, keeps: bool = True) -> NodeFunction:
    return nodes.turn(lambda state: text.step_prompt(number), keeps=keeps)


def _stage(nodes: _Sync | _Async, number: int, work: Enclave) -> NodeFunction:
    builder = StateGraph(Stage)
    builder.add_node("draft", nodes.turn(lambda state: text.draft_prompt(number)))
    builder.add_node(
        "consensus",
        nodes.turn(lambda state: text.consensus_prompt(number, state["critiques"])),
    )
    builder.add_edge(START, "draft")
    before = "draft"
    for critic in CRITICS:
        builder.add_node(critic, nodes.critic(critic, text.critic_prompt(number, critic)))
        builder.add_edge(before, critic)
        if not work.parallel:
            before = critic
    builder.add_edge(list(CRITICS) if work.parallel else [before], "consensus")
    builder.add_edge("consensus", END)
    return nodes.stage(number, builder.compile())
