"""States: the channels of the graphs that a tree is compiled to."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain_core.messages import BaseMessage
from langgraph.channels import EphemeralValue
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict


def _joined(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {**left, **right}


def appended(left: Any, right: Any) -> Any:
    """Do what `add_messages` does, and leave the caller's own messages without the ids it gives."""
    given = right if isinstance(right, list) else [right]
    return add_messages(left, [_own(message) for message in given])


def _own(message: Any) -> Any:
    nameless = isinstance(message, BaseMessage) and message.id is None
    return message.model_copy() if nameless else message


class BlockBase(TypedDict):
    """What a block's subgraph is given."""

    messages: list[BaseMessage]
    outputs: dict[str, Any]
    facts: dict[str, Any]


class BlockDelta(TypedDict):
    """What leaves a block's subgraph, and nothing else."""

    work: Annotated[list[BaseMessage], operator.add]
    captures: Annotated[dict[str, Any], _joined]


class BlockState(BlockBase, BlockDelta):
    """A block's state: the base, and the work on it."""


class ParallelState(BlockState):
    """A parallel block's state: what the children left waits for the exit."""

    results: Annotated[dict[str, Any], _joined]


class KeepingState(BlockState):
    """The state of a block that goes on without what its budget does not suffice for."""

    stopped: bool


class LoopState(KeepingState):
    """A loop's state: the number of the next iteration, and whether there is one."""

    round: int
    over: bool


class Given(TypedDict, total=False):
    """What a pipeline takes."""

    messages: Annotated[list[BaseMessage], appended]
    inputs: Annotated[dict[str, Any], EphemeralValue]
    scope: Annotated[str, EphemeralValue]


class Result(TypedDict):
    """What a pipeline gives: the conversation, and what was captured in this run."""

    messages: Annotated[list[BaseMessage], appended]
    outputs: dict[str, Any]


class Conversation(TypedDict):
    """The state of the graph around the root. Inputs and scope are those of one run only."""

    messages: Annotated[list[BaseMessage], appended]
    inputs: Annotated[dict[str, Any], EphemeralValue]
    scope: Annotated[str, EphemeralValue]
    outputs: dict[str, Any]


class DeltaGiven(TypedDict, total=False):
    """What a pipeline that returns its delta takes."""

    messages: list[BaseMessage]
    inputs: Annotated[dict[str, Any], EphemeralValue]
    scope: Annotated[str, EphemeralValue]


class DeltaResult(TypedDict):
    """What such a pipeline gives: the messages that the root kept, without the base."""

    messages: list[BaseMessage]
    outputs: dict[str, Any]


class DeltaConversation(TypedDict):
    """The state of the graph around the root, for hosts that append."""

    messages: list[BaseMessage]
    inputs: Annotated[dict[str, Any], EphemeralValue]
    scope: Annotated[str, EphemeralValue]
    outputs: dict[str, Any]
