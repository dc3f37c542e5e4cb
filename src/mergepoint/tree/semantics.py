"""The meaning of a tree, with the calls left open.

Everything that determines a tree's results is here, once. How calls are answered and how parallel
children run is delegated to an Engine: a live one calls models, a replaying one looks up recorded
answers. The LangGraph compiler states the same meaning a second time; tests compare the two.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import BudgetExceeded, MergeError, RailError, locate
from mergepoint.core.merge import MergeMode, State, last_response, merge
from mergepoint.core.paths import iteration_name, join
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Gate, Loop, Node, children, thread_groups

Messages = State[BaseMessage]


class RunStopped(Exception):
    """A signal that a rejection ends the run; each container that it passes merges its part.

    `kept` is the result of the nodes that it has passed so far.
    """

    def __init__(self, kept: Messages) -> None:
        super().__init__("a rejection ended the run")
        self.kept = kept


Branch = Callable[[], Awaitable[Messages]]
T = TypeVar("T")


class Engine(Protocol):
    """The services that `evaluate` needs: answers, decisions, conditions and parallel runs."""

    async def ask(self, step: Step, path: str, view: Messages) -> Messages:
        """Return the prompt and the response of a step that sees `view`."""
        ...

    async def call(self, call: Call, path: str, view: Messages) -> Messages:
        """Return the messages and the captured result of a call that sees `view`."""
        ...

    async def decide(self, gate: Gate, question: Question) -> Decision:
        """Return the decision about the output that waits at a gate."""
        ...

    async def holds(self, loop: Loop, path: str, view: Messages, number: int) -> bool:
        """Return whether a loop ends after iteration `number`, from 1; 0 is before the first."""
        ...

    async def fork(self, branches: Sequence[Branch]) -> Sequence[Messages]:
        """Run parallel children and return their results in declared order."""
        ...


async def evaluate(
    node: Node, path: str, base: Messages, *, onto: Messages, engine: Engine
) -> Messages:
    """Evaluate a tree on its base state and merge its result onto a parent.

    A rejection that ends the run is not an error: the result is everything merged before it.

    Args:
        node: The root of the tree.
        path: The path of the root.
        base: The state that the root sees.
        onto: The parent's state, to which the merge adds.
        engine: Answers calls and questions.
    """
    try:
        return await _fold(node, path, base, onto=onto, engine=engine)
    except RunStopped as stop:
        return stop.kept


async def _fold(
    node: Node, path: str, base: Messages, *, onto: Messages, engine: Engine
) -> Messages:
    """Evaluate a node. In a run that ends, raise RunStopped with the parent's state after it."""
    stopped = False
    try:
        try:
            made = await _make(node, path, base, engine)
        except RunStopped as stop:
            made, stopped = stop.kept, True
        whole = captured(node, made, stopped=stopped)
        after = merge(onto, mode_of(node, made, stopped=stopped), whole)
    # Not BaseException: a cancellation comes from outside, and belongs to no node.
    except Exception as error:
        locate_node(error, node, path)
        raise
    if stopped:
        # Outside the `try`: this signal is no error, and gets no note about a node.
        raise RunStopped(after)
    return after


async def _make(node: Node, path: str, base: Messages, engine: Engine) -> Messages:
    if isinstance(node, Step):
        return await engine.ask(node, path, base)
    if isinstance(node, Call):
        return await engine.call(node, path, base)
    if isinstance(node, Gate):
        return await _held_back(node, path, base, engine)
    if isinstance(node, Loop):
        return await _repeated(node, path, base, engine)
    own = children(node, path)
    if node.side_by_side:
        return await _side_by_side(path, own, base, engine)
    made: Messages = State()
    for group in thread_groups(node):
        if len(group) > 1:
            together = own[group.start : group.stop]
            made = made + await _side_by_side(path, together, base + made, engine)
            continue
        at, child = own[group.start]
        try:
            # `onto=made`: the child's merge adds to what earlier siblings merged, not to the base.
            made = await _fold(child, at, base + made, onto=made, engine=engine)
        except BudgetExceeded as error:
            if not keeps(path, error):
                raise
            break
    return made


async def _side_by_side(
    path: str, own: Sequence[tuple[str, Node]], base: Messages, engine: Engine
) -> Messages:
    made: Messages = State()
    stops: list[str] = []
    branches = [_branch(path, at, child, base, engine, stops) for at, child in own]
    for kept in await engine.fork(branches):
        made = made + kept
    if stops:
        raise RunStopped(made)
    return made


async def _held_back(gate: Gate, path: str, base: Messages, engine: Engine) -> Messages:
    [(at, child)] = children(gate, path)
    try:
        # Onto an empty state: the question shows exactly what a rejection drops.
        kept = await _fold(child, at, base, onto=State(), engine=engine)
    except RunStopped:  # no decision can follow, so nothing passes the gate
        raise RunStopped(State()) from None
    question = question_of(gate, path, kept)
    decision = await engine.decide(gate, question)
    made = decided(gate, question, decision)
    if ends_run(gate, decision):
        raise RunStopped(made)
    return made


async def _repeated(loop: Loop, path: str, base: Messages, engine: Engine) -> Messages:
    made: Messages = State()
    if loop.may_skip and await engine.holds(loop, path, base, 0):
        return made
    for number in range(1, loop.max_iterations + 1):
        at = join(path, iteration_name(number))
        try:
            made = await _fold(loop.body, at, base + made, onto=made, engine=engine)
        except BudgetExceeded as error:
            if not keeps(path, error):
                raise
            # The iteration that was cut short adds nothing: `made` ends with the one before it.
            return made
        if await engine.holds(loop, path, base + made, number):
            return made
    if loop.on_exhausted == "raise":
        raise exhausted(loop)
    return made


def mode_of(node: Node, made: Messages, *, stopped: bool = False) -> MergeMode:
    """Return the mode of a node's merge.

    A gate that was rejected merges nothing. Neither does a node without a response if its run was
    `stopped` by a rejection.
    """
    if isinstance(node, Gate) and not made.messages:
        return "none"
    if stopped and node.merge == "last_response" and last_response(made.messages) is None:
        return "none"
    return node.merge


def ends_run(gate: Gate, decision: Decision) -> bool:
    """Return whether the decision at a gate ends the run."""
    return gate.on_reject == "stop" and decision.decision == "reject"


def question_of(gate: Gate, path: str, kept: Messages) -> Question:
    """Return the question of a gate about the output of its node."""
    inside = gate.node
    key = None if isinstance(inside, Gate) else inside.capture_key  # a gate captures no response
    structured = isinstance(inside, Step) and inside.schema is not None
    # What a Call captured may be any JSON; an edited text stays of the kind that readers expect.
    structured = structured or not isinstance(kept.outputs.get(key or "", ""), str)
    return Question(path, gate.question, kept, capture_key=key, structured=structured)


def decided(gate: Gate, question: Question, decision: Decision) -> Messages:
    """Return a gate's result after a decision, with the gate's own capture."""
    made = question.settled(decision)
    if gate.capture_key is None:
        return made
    said = {"decision": decision.decision, "feedback": decision.feedback}
    return made + State.of((), {gate.capture_key: said})


def exhausted(loop: Loop) -> RailError:
    """Return the error of a loop that used up its iterations."""
    until = f"until={loop.until!r}" if isinstance(loop.until, str) else "until"
    return RailError(
        f"{until} wasn't met after {loop.max_iterations} iterations; allow more with "
        "max_iterations, or keep the result so far with on_exhausted='keep'"
    )


def keeps(path: str, error: BudgetExceeded) -> bool:
    """Return whether this block or loop ends early and keeps its result so far."""
    # Only the node with the budget ends early; the error passes the nodes below it.
    return error.keep and error.path == path


def _branch(
    path: str, at: str, child: Node, base: Messages, engine: Engine, stops: list[str]
) -> Branch:
    async def branch() -> Messages:
        try:
            return await _fold(child, at, base, onto=State(), engine=engine)
        # Collect the signal instead of raising it: all branches finish before the run stops.
        except RunStopped as stop:
            stops.append(at)
            return stop.kept
        except BudgetExceeded as error:
            if not keeps(path, error):
                raise
            return State()

    return branch


def captured(node: Node, made: Messages, *, stopped: bool = False) -> Messages:
    """Return the result with the node's own capture: its last response, or its JSON for a schema.

    Raises MergeError if there is no response to capture, unless the run was `stopped`.
    """
    if node.capture_key is None or isinstance(node, Call | Gate):  # they captured theirs already
        return made
    response = last_response(made.messages)
    if response is None and stopped:
        return made
    if response is None:
        raise MergeError(f"capture_key={node.capture_key!r}, but no assistant output exists")
    text = str(response.text)
    value = json.loads(text) if isinstance(node, Step) and node.schema is not None else text
    return made + State.of((), {node.capture_key: value})


def locate_node(error: BaseException, node: Node, path: str) -> None:
    """Write on an error which node it came from; the innermost node wins."""
    leaf = isinstance(node, Step | Call)
    locate(error, path, kind=node.kind, name=path.rpartition("/")[2], innermost=leaf)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop.

    Raises RuntimeError if it does wait.
    """
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("this work waits for an event loop; await it")
