"""The meaning of a tree, with the call left open.

Everything that gives a tree its results is here, once. Who answers a call, and how parallel
children are run, is asked of an Engine: a live one calls models, a replaying one looks answers
up. The LangGraph compiler states the same meaning a second time, and is held to this one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import BudgetExceeded, MergeError, RailError, locate
from mergepoint.core.merge import MergeMode, last_response, merge
from mergepoint.core.path import iteration_name, join
from mergepoint.core.state import State
from mergepoint.tree.call import Call
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, children
from mergepoint.tree.step import Step

Messages = State[BaseMessage]
Branch = Callable[[], Awaitable[Messages]]
T = TypeVar("T")


class Engine(Protocol):
    """What a fold needs from outside."""

    async def ask(self, step: Step, path: str, view: Messages) -> Messages:
        """Give what a step makes of what it sees: its prompt and the response."""
        ...

    async def call(self, call: Call, path: str, view: Messages) -> Messages:
        """Give what a call makes of what it sees: its messages, and its captured result."""
        ...

    async def decide(self, gate: Gate, question: Question) -> Decision:
        """Give what is decided about what a gate holds back."""
        ...

    async def holds(self, loop: Loop, path: str, view: Messages, number: int) -> bool:
        """Say whether a loop ends after this iteration, counted from 1; 0 is before the first."""
        ...

    async def fork(self, branches: Sequence[Branch]) -> Sequence[Messages]:
        """Run parallel children, give what they kept in declared order."""
        ...


async def fold(
    node: Node, path: str, base: Messages, *, onto: Messages, engine: Engine
) -> Messages:
    """Run a node on its base and merge what it made onto a parent, at its exit."""
    try:
        made = await _make(node, path, base, engine)
        return merge(onto, mode_of(node, made), captured(node, made))
    except Exception as error:
        locate_node(error, node, path)
        raise


async def _make(node: Node, path: str, base: Messages, engine: Engine) -> Messages:
    if isinstance(node, Step):
        return await engine.ask(node, path, base)
    if isinstance(node, Call):
        return await engine.call(node, path, base)
    if isinstance(node, Gate):
        return await _held_back(node, path, base, engine)
    if isinstance(node, Loop):
        return await _repeated(node, path, base, engine)
    made: Messages = State()
    if node.parallel:
        own = children(node, path)
        branches = [_branch(path, at, child, base, engine) for at, child in own]
        for kept in await engine.fork(branches):
            made = made + kept
        return made
    for at, child in children(node, path):
        try:
            made = await fold(child, at, base + made, onto=made, engine=engine)
        except BudgetExceeded as error:
            if not keeps(path, error):
                raise
            break
    return made


async def _held_back(gate: Gate, path: str, base: Messages, engine: Engine) -> Messages:
    [(at, child)] = children(gate, path)
    kept = await fold(child, at, base, onto=State(), engine=engine)
    question = question_of(gate, path, kept)
    return decided(gate, question, await engine.decide(gate, question))


async def _repeated(loop: Loop, path: str, base: Messages, engine: Engine) -> Messages:
    made: Messages = State()
    if loop.may_skip and await engine.holds(loop, path, base, 0):
        return made
    for number in range(1, loop.max_iterations + 1):
        at = join(path, iteration_name(number))
        try:
            made = await fold(loop.body, at, base + made, onto=made, engine=engine)
        except BudgetExceeded as error:
            if not keeps(path, error):
                raise
            return made
        if await engine.holds(loop, path, base + made, number):
            return made
    if loop.on_exhausted == "raise":
        raise exhausted(loop)
    return made


def mode_of(node: Node, made: Messages) -> MergeMode:
    """Give the mode of a node's merge; a gate that was answered with a no merges nothing."""
    return "none" if isinstance(node, Gate) and not made.messages else node.merge


def question_of(gate: Gate, path: str, kept: Messages) -> Question:
    """Give what a gate asks about what its node would keep."""
    inside = gate.node
    structured = isinstance(inside, Step) and inside.schema is not None
    key = None if isinstance(inside, Gate) else inside.capture_key  # a gate captures no response
    return Question(path, gate.question, kept, capture_key=key, structured=structured)


def decided(gate: Gate, question: Question, decision: Decision) -> Messages:
    """Give what a gate makes of what it held back, with its own capture."""
    made = question.settled(decision)
    if gate.capture_key is None:
        return made
    said = {"decision": decision.decision, "feedback": decision.feedback}
    return made + State.of((), {gate.capture_key: said})


def exhausted(loop: Loop) -> RailError:
    """Give the error of a loop that did not come to its end."""
    until = f"until={loop.until!r}" if isinstance(loop.until, str) else "until"
    return RailError(
        f"{until} did not hold after {loop.max_iterations} iterations; allow more with "
        "max_iterations, or go on with what there is: on_exhausted='keep'"
    )


def keeps(path: str, error: BudgetExceeded) -> bool:
    """Say whether a block or loop goes on without the child that its budget did not suffice for."""
    return error.keep and error.path == path


def _branch(path: str, at: str, child: Node, base: Messages, engine: Engine) -> Branch:
    async def branch() -> Messages:
        try:
            return await fold(child, at, base, onto=State(), engine=engine)
        except BudgetExceeded as error:
            if not keeps(path, error):
                raise
            return State()

    return branch


def captured(node: Node, made: Messages) -> Messages:
    """Give what was made with the node's own capture: its last response, for a schema its JSON.

    Raises MergeError where there is no response to capture.
    """
    if node.capture_key is None or isinstance(node, Call | Gate):  # they captured theirs already
        return made
    response = last_response(made.messages)
    if response is None:
        raise MergeError(f"capture_key={node.capture_key!r}, but no assistant output exists")
    text = str(response.text)
    value = json.loads(text) if isinstance(node, Step) and node.schema is not None else text
    return made + State.of((), {node.capture_key: value})


def locate_node(error: BaseException, node: Node, path: str) -> None:
    """Write on an error which node it came from; the innermost wins."""
    leaf = isinstance(node, Step | Call)
    locate(error, path, kind=node.kind, name=path.rpartition("/")[2], innermost=leaf)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop.

    Raises RuntimeError when it does wait.
    """
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("this work waits for an event loop; await it")
