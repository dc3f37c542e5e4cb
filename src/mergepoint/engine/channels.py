"""Channels and state schemas of compiled graphs."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, Any, NotRequired, Required

from langchain_core.messages import BaseMessage
from langgraph.channels import EphemeralValue
from langgraph.errors import GraphBubbleUp
from langgraph.graph.message import add_messages
from langgraph.types import StreamMode
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict, get_type_hints

from mergepoint.core.merge import State
from mergepoint.tree.nodes import REQUIRED, TYPES, Input, Node
from mergepoint.tree.semantics import (
    Messages,
    RunStopped,
    locate_node,
)


def _joined(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {**left, **right}


def appended(left: Any, right: Any) -> Any:
    """Append messages like `add_messages`, without setting ids on the caller's own messages."""
    given = right if isinstance(right, list) else [right]
    # `add_messages` sets a missing id on the message object, which belongs to the caller.
    own = [
        one.model_copy() if isinstance(one, BaseMessage) and one.id is None else one
        for one in given
    ]
    return add_messages(left, own)


class BlockBase(TypedDict):
    """The input of a block's subgraph."""

    messages: list[BaseMessage]
    outputs: dict[str, Any]
    facts: dict[str, Any]


class BlockDelta(TypedDict):
    """The output of a block's subgraph."""

    work: Annotated[list[BaseMessage], operator.add]
    captures: Annotated[dict[str, Any], _joined]


class StoppingDelta(BlockDelta):
    """The output of a block in which a rejection can end the run."""

    rejected: bool


class BlockState(BlockBase, BlockDelta):
    """The state of a block: its base, and the new messages and captures."""


class ParallelState(BlockState):
    """The state of a parallel block, with the results of its children until the exit."""

    results: Annotated[dict[str, Any], _joined]


class KeepingState(BlockState):
    """The state of a block that skips children when its budget is not enough."""

    stopped: bool


class LoopState(KeepingState):
    """The state of a loop: the number of the next iteration, and whether the loop is over."""

    round: int
    over: bool


class StoppingState(BlockState):
    """The state of a block where a rejection can end the run; then `rejected` is true."""

    rejected: bool


class StoppingParallelState(ParallelState):
    """The state of a parallel block where a rejection can end the run."""

    rejected: bool


class StoppingKeepingState(KeepingState):
    """The state of a block that can skip children, where a rejection can end the run."""

    rejected: bool


class StoppingLoopState(LoopState):
    """The state of a loop where a rejection can end the run."""

    rejected: bool


STOPPING: dict[type[BlockState], type[BlockState]] = {
    BlockState: StoppingState,
    ParallelState: StoppingParallelState,
    KeepingState: StoppingKeepingState,
    LoopState: StoppingLoopState,
}
"""States with `rejected`. Other trees omit this channel, because each channel costs every step."""


class Context(TypedDict, total=False):
    """Settings of a run (`context={"model": ...}`) or of an assistant of a LangGraph server."""

    model: Annotated[
        str,
        Field(
            description="The model of steps that name none: 'provider:name', or 'offline'. "
            "By default the one with which the graph was compiled."
        ),
    ]


def input_schema_with(given: type[Any], inputs: Sequence[Input]) -> type[Any]:
    """Return the input schema `given` with the inputs that a tree declares, for servers and forms.

    Inputs without a default are required. The JSON schema has their types, which are those of the
    defaults where none is declared, and the defaults.
    """
    fields = {one.name: _field(one) for one in inputs}
    named = TypedDict("Inputs", fields)  # type: ignore[misc]
    named.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    hints = {**get_type_hints(given, include_extras=True)}
    hints["inputs"] = Annotated[named, EphemeralValue]
    needed = any(one.default is REQUIRED for one in inputs)
    kinds = {
        name: Required[hint] if needed and name == "inputs" else NotRequired[hint]
        for name, hint in hints.items()
    }
    made: type[Any] = TypedDict("Given", kinds)  # type: ignore[misc]
    return made


def _field(one: Input) -> Any:
    declared: Any = TYPES.get(one.json_type, Any)
    if one.default is REQUIRED:
        return Required[declared]
    try:
        shown = json.loads(json.dumps(one.default))
    except (TypeError, ValueError):  # a default that JSON does not hold is not shown
        return NotRequired[declared]
    kind: Any = declared
    if one.type is None and type(one.default) in TYPES.values():
        kind = type(one.default)
    elif one.type is not None and one.default is None:
        kind = declared | None
    return NotRequired[Annotated[kind, Field(json_schema_extra={"default": shown})]]


class PipelineInput(TypedDict, total=False):
    """The input of a pipeline."""

    messages: Annotated[list[BaseMessage], appended]
    inputs: Annotated[dict[str, Any], EphemeralValue]
    scope: Annotated[str, EphemeralValue]


class PipelineResult(TypedDict):
    """The output of a pipeline: the conversation, and the captures of this run."""

    messages: Annotated[list[BaseMessage], appended]
    outputs: dict[str, Any]


# Inputs and scope are ephemeral: the next run of a thread must not see those of this run.
class Conversation(TypedDict):
    """The state of the graph around the root. Inputs and scope belong to one run."""

    messages: Annotated[list[BaseMessage], appended]
    inputs: Annotated[dict[str, Any], EphemeralValue]
    scope: Annotated[str, EphemeralValue]
    outputs: dict[str, Any]


class DeltaInput(TypedDict, total=False):
    """The input of a pipeline that returns its delta."""

    messages: list[BaseMessage]
    inputs: Annotated[dict[str, Any], EphemeralValue]
    scope: Annotated[str, EphemeralValue]


class DeltaResult(TypedDict):
    """The output of a pipeline that returns its delta: the merged messages without the base."""

    messages: list[BaseMessage]
    outputs: dict[str, Any]


class DeltaConversation(TypedDict):
    """The state of the graph around the root, for hosts that append."""

    messages: list[BaseMessage]
    inputs: Annotated[dict[str, Any], EphemeralValue]
    scope: Annotated[str, EphemeralValue]
    outputs: dict[str, Any]


EXIT = "__merge__"
DECIDE = "__decide__"
UNTIL = "__until__"
FAILED_AT = "failed_at"

# `invoke` listens to updates too, for interrupts; a nested graph raises those by itself.
VALUES: StreamMode = "values"

Channels = dict[str, Any]


def view_in(state: Mapping[str, Any]) -> Messages:
    """Return the view of a node in a block: the base and the work so far."""
    outputs, captures = state["outputs"], state.get("captures")
    return State(
        (*state["messages"], *(state.get("work") or ())),
        MappingProxyType({**outputs, **captures} if captures else outputs),
    )


def delta(kept: Messages) -> Channels:
    """Return merged messages and outputs as writes to the channels of a block."""
    written: Channels = {}
    if kept.messages:
        written["work"] = list(kept.messages)
    if kept.outputs:
        written["captures"] = dict(kept.outputs)
    return written


def kept_in(written: Mapping[str, Any] | None) -> Messages:
    """Return the state that `delta` wrote."""
    if not written:
        return State()
    return State.of(written.get("work") or (), written.get("captures") or {})


@contextmanager
def located(node: Node, path: str) -> Iterator[None]:
    """Set the path on errors that pass. LangGraph's own signals pass unchanged."""
    try:
        yield
    except Exception as error:
        put_path(error, node, path)
        raise


def put_path(error: Exception, node: Node, path: str) -> None:
    """Write the path of a node on an error, unless it is one of the engine's own signals."""
    if not isinstance(error, GraphBubbleUp | RunStopped):
        locate_node(error, node, path)


def base_for(state: Mapping[str, Any]) -> Channels:
    """Return the base of a block nested in this state."""
    seen = view_in(state)
    return {
        "messages": list(seen.messages),
        "outputs": dict(seen.outputs),
        "facts": state["facts"],
    }
