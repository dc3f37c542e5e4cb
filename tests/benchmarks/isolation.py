"""Isolation: what it costs that each call receives its own copy of the conversation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from tests.benchmarks.contender import Contender, Ran
from tests.benchmarks.model import EchoModel
from tests.benchmarks.result import Group, Results
from tests.benchmarks.timing import in_turn
from tests.benchmarks.work import step_name, step_prompt

from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import copied_message

CALLS = 20
TEXT = "The keeper lit the lamp, and read the letters that nobody had sent. " * 4


class Foreign(BaseCallbackHandler):
    """A handler of a user's, which might edit what it is shown; this one does not."""

    run_inline = True

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        """See the prompt."""


def conversation(length: int) -> list[BaseMessage]:
    """Return questions and answers; answers have usage and metadata, as providers give them."""
    found: list[BaseMessage] = []
    for number in range(length):
        if number % 2 == 0:
            found.append(HumanMessage(TEXT, id=f"m{number}"))
            continue
        found.append(
            AIMessage(
                TEXT,
                id=f"m{number}",
                response_metadata={"finish_reason": "stop", "model_name": "m-1", "logprobs": None},
                usage_metadata={"input_tokens": 80, "output_tokens": 20, "total_tokens": 100},
            )
        )
    return found


def isolation(lengths: Sequence[int], repetitions: int, results: Results) -> None:
    """Time calls over given conversations, whose own messages are dropped.

    h: by hand; s, f: both forms; fc: fused, with a callback of others, which is shown copies of
    its own; c: the copies alone, once for each call.
    """
    for length in lengths:
        print(f"isolation, {length:,} messages", file=sys.stderr, flush=True)
        messages, model = conversation(length), EchoModel()
        contenders = [
            Contender("h", partial(_invoked, _by_hand(model), messages, None), _never),
            Contender("s", partial(_invoked, _ours(model, "subgraphs"), messages, None), _never),
            Contender("f", partial(_invoked, _ours(model, "fused"), messages, None), _never),
            Contender("fc", partial(_invoked, _ours(model, "fused"), messages, Foreign()), _never),
            Contender("c", partial(_copies, messages), _never),
        ]
        times = in_turn(contenders, "sync", "cpu", calls=CALLS, repetitions=repetitions)
        group = Group("cpu", f"{length:,} messages", "sync", "cpu", CALLS, times)
        group.told(results, {"s/h": None, "f/h": None, "fc/h": None, "c/f": None})


def _ours(model: EchoModel, form: Form) -> Any:
    steps = [Step(step_prompt(n), name=step_name(n), merge="none") for n in range(1, CALLS + 1)]
    return compile_graph(Block(steps), model=model, form=form)


def _by_hand(model: EchoModel) -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    before = START
    for number in range(1, CALLS + 1):
        builder.add_node(step_name(number), _node(model, step_prompt(number)))
        builder.add_edge(before, step_name(number))
        before = step_name(number)
    return builder.compile()


def _node(model: EchoModel, prompt: str) -> Callable[..., dict[str, Any]]:
    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        model.invoke([*state["messages"], HumanMessage(prompt)], config)
        return {}

    return node


def _invoked(graph: Any, messages: list[BaseMessage], handler: Foreign | None) -> Ran:
    recorder = Recorder()
    handlers = [recorder] if handler is None else [recorder, handler]
    result = graph.invoke({"messages": messages}, {"callbacks": handlers, "recursion_limit": 100})
    return Ran(result["messages"], {}, list)


def _copies(messages: list[BaseMessage]) -> Ran:
    for _ in range(CALLS):
        copies = [copied_message(message) for message in messages]
    return Ran(copies, {}, list)


async def _never() -> Ran:
    raise NotImplementedError("this measure is sync")
