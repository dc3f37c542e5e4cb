"""Blocks, Loops and Gates: nodes that contain nodes; and functions on any node of a tree."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import cached_property
from itertools import count, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, get_args

from mergepoint.core.errors import Fault, StepError, TreeError
from mergepoint.core.lazy import Displayed
from mergepoint.core.merge import MergeMode, mode_problem
from mergepoint.core.paths import (
    ITERATION,
    SEPARATOR,
    effective_name,
    iteration_name,
    join,
    name_problem,
    nearest,
    prefixes,
)
from mergepoint.tree.decision import Answerer
from mergepoint.tree.leaves import Call, Step, depth_problem, height_of, is_node, not_a_node
from mergepoint.tree.policy import Budget, budget_of
from mergepoint.tree.prompts import PromptContext, key_problem


class _Required(Enum):
    """The type of REQUIRED: an enum, since copies of a member are the member itself."""

    REQUIRED = "required"

    def __repr__(self) -> str:
        return self.name


REQUIRED: Final = _Required.REQUIRED

THREADS: Final = "threads"

Kind = type[Any]

TYPES: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "string": str,
        "integer": int,
        "number": float,
        "boolean": bool,
        "array": list,
        "object": dict,
    }
)
"""The types that an Input may have, by their names in a JSON schema."""

_EXAMPLES: Final = {
    "string": "text",
    "integer": 3,
    "number": 0.5,
    "boolean": True,
    "array": ["a", "b"],
    "object": {"key": "value"},
}


@dataclass(frozen=True, slots=True)
class Input:
    """A value that a run of the tree takes as input; optional if it has a default.

    Args:
        name: The name by which prompts read it.
        default: The value if a run does not pass one. None is valid for every type.
        type: str, int, float, bool, list or dict, or its name in a JSON schema: string, integer,
            number,
        boolean, array or object. A value of another type is rejected when a run begins; None allows
        any. An integer is a number too; a bool is neither.

    Raises:
        TreeError: The name or the type is invalid, or the default is of another type.
    """

    name: str
    _: KW_ONLY
    default: Any = REQUIRED
    type: Kind | str | None = None

    def __post_init__(self) -> None:
        if problem := key_problem(self.name):
            raise TreeError.of(f"input: {problem}")
        if isinstance(self.type, str):
            kinds = {**{kind.__name__: kind for kind in TYPES.values()}, **TYPES}
            object.__setattr__(self, "type", kinds.get(self.type, self.type))
        if self.type is not None and not self.json_type:
            near = nearest(self.type, TYPES) if isinstance(self.type, str) else ""
            raise TreeError.of(
                f"input {self.name!r}: its type is one of {', '.join(TYPES)}, not "
                f"{self.type!r}{near}"
            )
        if self.default is not REQUIRED and not self.takes(self.default):
            raise TreeError.of(
                f"input {self.name!r}: its default {reprlib.repr(self.default)} is not of its type "
                f"{self.json_type}; give it one that is, or None"
            )

    @property
    def json_type(self) -> str:
        """Return the name of the type in a JSON schema, or an empty string if any is allowed."""
        return next((name for name, kind in TYPES.items() if kind is self.type), "")

    @property
    def example(self) -> Any:
        """Return a value of the type."""
        return _EXAMPLES[self.json_type or "string"]

    def takes(self, value: Any) -> bool:
        """Return whether a value is of the type."""
        if self.type is None:
            return True
        if value is None:
            return self.default is None
        # A bool is an int in Python, but true isn't a number in JSON.
        if isinstance(value, bool):
            return self.type is bool
        return isinstance(value, (int, float) if self.type is float else TYPES[self.json_type])

    def problem(self, value: Any) -> str | None:
        """Return the problem of a value that a run passes, or None if it is of the type."""
        if self.takes(value):
            return None
        return (
            f"input {self.name!r} takes a value of type {self.json_type}, and was given "
            f"{reprlib.repr(value)} ({value.__class__.__name__})"
        )


@dataclass(frozen=True)
class Block(Displayed):
    """Nodes in order; each sees the block's base and what earlier nodes merged.

    Args:
        nodes: The children.
        name: The name in paths; by default one by position, such as `block_01`.
        merge: The messages that leave the block: "all_messages", "last_response" or "none".
        capture_key: The output under which the block's last response is stored, whatever the mode.
        parallel: With True, every child sees the state at entry, and their results are merged in
        declared order at the exit. With "threads", children run in order, but consecutive ones with
        merge="none" that read nothing of each other run concurrently, with the same results.
        inputs: Names, `(name, default)` or Input; only on the root.
        meta: Your own data.
        budget: A Budget, or a mapping of its fields, shared by all calls below.

    Raises:
        TreeError: The block itself is invalid; the error (a ValueError) lists all problems.
            Problems
        that show only in the whole tree are found by `check`.
    """

    kind: ClassVar[str] = "block"

    nodes: Sequence[Node]
    _: KW_ONLY
    name: str | None = None
    merge: MergeMode = "all_messages"
    capture_key: str | None = None
    parallel: bool | Literal["threads"] = False
    inputs: Sequence[Input | str | tuple[str, Any]] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        problems = [
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge, self.kind),
            None if self.capture_key is None else key_problem(self.capture_key),
            _parallel_problem(self.parallel),
        ]
        problems += self._take_nodes(self.nodes)
        inputs, bad = _inputs(self.inputs)
        object.__setattr__(self, "inputs", inputs)
        problems += bad
        problems.append(_meta_problem(self.meta))
        problems += self._take_budget()
        found = [problem for problem in problems if problem]
        if found:
            label = self.name if isinstance(self.name, str) else ""
            raise TreeError(Fault(label, problem) for problem in found)
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    def _take_budget(self) -> list[str]:
        budget, problems = budget_of(self.budget)
        object.__setattr__(self, "budget", budget)
        return problems

    def _take_nodes(self, nodes: Any) -> list[str]:
        # A text is iterable too, and its characters would be reported one by one.
        if isinstance(nodes, str) or is_node(nodes) or not isinstance(nodes, Iterable):
            return [f"nodes is a list of nodes, not {type(nodes).__name__}"]
        # A tuple: an iterator could be walked only once, and a list could change after the checks.
        object.__setattr__(self, "nodes", tuple(nodes))
        problem = depth_problem(self, self.nodes)
        return [*_children_problems(self.nodes), *([problem] if problem else [])]

    # The node classes have no slots: cached_property needs the instance's __dict__.
    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the effective names of the children, in order."""
        return tuple(
            effective_name(node.name, node.kind, position)
            for position, node in enumerate(self.nodes, start=1)
        )

    @cached_property
    def height(self) -> int:
        """Return the number of names in the longest path below the block, including its own."""
        return 1 + max(map(height_of, self.nodes), default=0)

    @property
    def side_by_side(self) -> bool:
        """Return whether every child sees the state at the block's entry."""
        return self.parallel is True

    @property
    def declared_inputs(self) -> tuple[Input, ...]:
        """Return the inputs as Input values."""
        return tuple(given for given in self.inputs if isinstance(given, Input))


def _parallel_problem(parallel: object) -> str | None:
    if isinstance(parallel, bool) or parallel == THREADS:
        return None
    return f"parallel is True, False or {THREADS!r}, not {parallel!r}"


def _children_problems(nodes: Sequence[Any]) -> Iterator[str]:
    names: dict[int, str] = {}
    for position, node in enumerate(nodes, start=1):
        if is_node(node):
            names[position] = effective_name(node.name, node.kind, position)
        else:
            yield f"child {position} is {not_a_node(node)}"
    yield from duplicate_names(names)


def duplicate_names(names: Mapping[int, str]) -> Iterator[str]:
    """Yield a problem for each child that has the name of an earlier one, by position from 1."""
    first: dict[str, int] = {}
    for position, name in names.items():
        if name in first:
            yield (
                f"children {first[name]} and {position} are both named {name!r}; "
                "give one another name"
            )
        first.setdefault(name, position)


def _inputs(given: Any) -> tuple[tuple[Input, ...], list[str]]:
    """Return the inputs, and the problems of invalid ones."""
    if isinstance(given, str):
        return (), [f"inputs is a list of names, not the text {given!r}"]
    if not isinstance(given, Iterable):
        return (), [f"inputs is a list of names, not {given!r}"]
    made = [_input(item) for item in given]
    return (
        tuple(item for item in made if isinstance(item, Input)),
        [item for item in made if isinstance(item, str)],
    )


def _input(given: Any) -> Input | str:
    if isinstance(given, Input):
        return given
    try:
        if isinstance(given, str):
            return Input(given)
        if isinstance(given, tuple) and len(given) == 2:
            return Input(given[0], default=given[1])
    except TreeError as error:
        return str(error)
    return f"an input is a name, (name, default) or Input, not {given!r}"


def _meta_problem(meta: Any) -> str | None:
    return None if isinstance(meta, Mapping) else f"meta is a mapping, not {meta!r}"


Until = str | Callable[[PromptContext], bool]


@dataclass(frozen=True)
class Loop(Displayed):
    """Runs its nodes in iterations; each iteration sees the results of the ones before it.

    It means `Block(merge)[iteration_01: Block(all_messages, nodes), iteration_02: ...]`: its own
    merge acts once, at its exit.

    Args:
        nodes: The children of each iteration.
        until: The condition, checked after each iteration: the key of an output, or a function of a
        PromptContext that returns a bool. An output may be a bool, or the capture of a gate, which
        is true unless it was rejected. An output that was not written yet is false.
        max_iterations: The maximum number of iterations.
        on_exhausted: If the condition is not met by then: "raise" raises RailError, "keep"
            continues
        with the result so far.
        may_skip: Check the condition before the first iteration too; if it is met, run nothing.
        name: The name in paths; by default one by position, such as `loop_01`.
        merge: The messages that leave the loop.
        capture_key: The output under which the loop's last response is stored.
        budget: A Budget, or a mapping of its fields, shared by all calls below.
        meta: Your own data.

    Raises:
        TreeError: The loop is invalid; the error (a ValueError) lists all problems.
    """

    kind: ClassVar[str] = "loop"

    nodes: Sequence[Node]
    _: KW_ONLY
    until: Until
    max_iterations: int = 10
    on_exhausted: Literal["raise", "keep"] = "raise"
    may_skip: bool = False
    name: str | None = None
    merge: MergeMode = "all_messages"
    capture_key: str | None = None
    budget: Budget | Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes: Any = self.nodes
        if isinstance(nodes, Iterable) and not isinstance(nodes, str):
            object.__setattr__(self, "nodes", tuple(nodes))
        body = _body_problems(self.nodes)
        found = [
            *body,
            None if body else depth_problem(self, self.nodes),
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge, self.kind),
            None if self.capture_key is None else key_problem(self.capture_key),
            _until_problem(self.until),
            _most_problem(self.max_iterations),
            _exhausted_problem(self.on_exhausted),
            None
            if isinstance(self.may_skip, bool)
            else f"may_skip is True or False, not {self.may_skip!r}",
            None if isinstance(self.meta, Mapping) else f"meta is a mapping, not {self.meta!r}",
        ]
        budget, problems = budget_of(self.budget)
        object.__setattr__(self, "budget", budget)
        if faults := [problem for problem in (*found, *problems) if problem]:
            label = self.name if isinstance(self.name, str) else ""
            raise TreeError(Fault(label, problem) for problem in faults)
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    @cached_property
    def height(self) -> int:
        """Return the number of names in the longest path below the loop, including its own."""
        return 2 + max(map(height_of, self.nodes), default=0)  # iterations have names too

    @cached_property
    def body(self) -> Block:
        """Return the block that runs in each iteration."""
        return Block(self.nodes)

    def holds(self, context: PromptContext) -> bool:
        """Return whether the condition is met, so that the loop may end.

        Raises StepError if `until` returns something other than a bool, and any error of its
        function.
        """
        if isinstance(self.until, str):
            return _holds(self.until, context.outputs.get(self.until))
        found = self.until(context)
        if not isinstance(found, bool):
            raise StepError(f"until gave {found!r}; give True or False")
        return found


def _holds(key: str, value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, Mapping) and "decision" in value:
        return bool(value["decision"] != "reject")
    raise StepError(
        f"until={key!r} has the value {value!r}, which is neither a bool nor a gate's decision; "
        "use a function of a PromptContext"
    )


def _body_problems(nodes: Any) -> list[str]:
    try:
        # A block checks them, so that a loop's children have the same rules and messages.
        Block(nodes)
    except TreeError as error:
        return [fault.problem for fault in error.faults]
    return [] if nodes else ["a loop without nodes would only turn"]


def _until_problem(until: object) -> str | None:
    if isinstance(until, str):
        return key_problem(until)
    return None if callable(until) else f"until is a key or a function, not {until!r}"


def _most_problem(most: object) -> str | None:
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        return f"max_iterations is an integer of at least 1, not {most!r}"
    return None


def _exhausted_problem(act: object) -> str | None:
    if act in ("raise", "keep"):
        return None
    return f"on_exhausted={act!r}; allowed are 'raise', 'keep'"


OnReject = Literal["continue", "stop"]


@dataclass(frozen=True)
class Gate(Displayed):
    """Holds its node's output until it is approved, edited or rejected.

    The reviewer sees exactly what would be merged. After a rejection nothing of it is merged,
    neither messages nor captures. The gate itself captures `{"decision", "feedback"}`. To try
    again, put a Loop around it.

    Args:
        node: The wrapped node.
        name: The name in paths; by default one by position, such as `gate_01`.
        merge: The messages that leave the gate.
        capture_key: The output under which the decision is stored.
        question: Text to show to the reviewer.
        decide: Answers instead of a person: a function of a Question that returns a Decision, or
            any
        value that `Decision.of` takes. Without it, or if it returns None, the run's own answerer
        decides, or LangGraph's `interrupt`.
        on_reject: With "stop" a rejection ends the run: no later node starts, and the result is
        everything merged before. With "continue" the next node runs.
        meta: Your own data.

    Raises:
        TreeError: The gate is invalid; the error (a ValueError) lists all problems.
    """

    kind: ClassVar[str] = "gate"

    node: Node
    _: KW_ONLY
    name: str | None = None
    merge: MergeMode = "all_messages"
    capture_key: str | None = None
    question: str = ""
    decide: Answerer | None = None
    on_reject: OnReject = "continue"
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        decide, question = self.decide, self.question
        found = [
            None
            if is_node(self.node)
            else f"a gate wraps one node; this is {_unwrapped(self.node)}",
            depth_problem(self, [self.node]),
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge, self.kind),
            None if self.capture_key is None else key_problem(self.capture_key),
            None if isinstance(question, str) else f"question is text, not {question!r}",
            None if decide is None or callable(decide) else f"decide is a function, not {decide!r}",
            _reject_problem(self.on_reject),
            None if isinstance(self.meta, Mapping) else f"meta is a mapping, not {self.meta!r}",
        ]
        if faults := [problem for problem in found if problem]:
            label = self.name if isinstance(self.name, str) else ""
            raise TreeError(Fault(label, problem) for problem in faults)
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    @cached_property
    def height(self) -> int:
        """Return the number of names in the longest path below the gate, including its own."""
        return 1 + height_of(self.node)


def _reject_problem(act: object) -> str | None:
    allowed = get_args(OnReject)
    if act in allowed:
        return None
    return f"on_reject={act!r}{nearest(str(act), allowed)}; allowed are 'continue', 'stop'"


def _unwrapped(node: Any) -> str:
    if isinstance(node, list | tuple):
        return "a list; put a Block around it"
    return not_a_node(node)


Node = Step | Call | Gate | Block | Loop


def root_path(tree: Node) -> str:
    """Return the root's path: its name, or `pipeline` for a block, `step_01` for a lone step."""
    if tree.name is not None:
        return tree.name
    return "pipeline" if isinstance(tree, Block) else effective_name(None, tree.kind, 1)


def children(node: Node, path: str) -> list[tuple[str, Node]]:
    """Return (path, child) for each child of a node, in order; an empty list for a leaf.

    A loop has one child, its body under the path of the first iteration.
    """
    if isinstance(node, Block):
        # The path is empty where only the nodes matter, as in `thread_groups`.
        start = f"{path}{SEPARATOR}" if path else ""
        return list(zip(map(start.__add__, node.names), node.nodes, strict=True))
    if isinstance(node, Gate):
        return [(join(path, effective_name(node.node.name, node.node.kind, 1)), node.node)]
    if isinstance(node, Loop):
        return [(join(path, iteration_name(1)), node.body)]
    return []


def inside(node: Node, path: str) -> list[tuple[str, Node]]:
    """Return (path, node) for the nodes that a container was made with; a loop's own nodes too."""
    if isinstance(node, Loop):
        return children(node.body, join(path, iteration_name(1)))
    return children(node, path)


def walk(node: Node, path: str | None = None) -> list[tuple[str, Node]]:
    """Return (path, node) for the node and all nodes below it, parents first."""
    walked = []
    waiting = [(root_path(node) if path is None else path, node)]
    while waiting:
        at, found = waiting.pop()
        walked.append((at, found))
        if not isinstance(found, Step | Call):
            waiting += reversed(children(found, at))
    return walked


def thread_groups(block: Block) -> list[range]:
    """Return the positions of a block's children in order, those that run concurrently together.

    With `parallel="threads"` a group is consecutive children with merge="none" of which none reads
    a capture of an earlier one. A function that declares no reads may read anything. Children with
    gates are in groups of their own, since a rejection may end the run. So are all children of a
    block whose budget ends it early, because the budget decides child by child.
    """
    if block.parallel != THREADS:
        return [range(position, position + 1) for position in range(len(block.nodes))]
    groups: list[range] = []
    written: set[str] = set()
    # Which children a budget skips must not depend on which of them happens to run first.
    alone = getattr(block.budget, "on_exhausted", "") == "keep"
    for position, child in enumerate(block.nodes):
        keys, anything = _reads(child)
        joins = bool(groups) and not alone and _may_join(child)
        # The child before it too: if that one merges messages, this one has to see them.
        joins = joins and _may_join(block.nodes[position - 1])
        joins = joins and (not written if anything else keys.isdisjoint(written))
        if joins:
            groups[-1] = range(groups[-1].start, position + 1)
        else:
            groups.append(range(position, position + 1))
            # A new group starts after the earlier ones were merged, so it may read their captures.
            written = set()
        written |= {key for _, node in walk(child, "") if (key := node.capture_key)}
    return groups


def _may_join(child: Node) -> bool:
    return child.merge == "none" and not any(isinstance(one, Gate) for _, one in walk(child, ""))


def _reads(child: Node) -> tuple[set[str], bool]:
    """Return the keys that a child is known to read, and whether it may read any other."""
    keys: set[str] = set()
    anything = False
    for _, node in walk(child, ""):
        if isinstance(node, Step | Call):
            reads = node.reads
            anything = anything or reads is None
            keys.update(() if reads is None else reads.keys)
        if isinstance(node, Loop):
            anything = anything or not isinstance(node.until, str)
            keys.update({node.until} if isinstance(node.until, str) else ())
    return keys, anything


def find(tree: Node, path: str) -> Node:
    """Return the node at an exact path. Raises LookupError that lists the existing paths."""
    nodes = dict(walk(tree))
    if path not in nodes:
        raise LookupError(f"no node at {path!r}; the paths are:\n  " + "\n  ".join(nodes))
    return nodes[path]


_FIRST: Final = iteration_name(1)


class Order:
    """The order of a tree's paths, in any iteration."""

    def __init__(self, tree: Node, path: str) -> None:
        paths, nodes = zip(*walk(tree, path), strict=True)
        self._places = dict(zip(paths, count()))
        self._loops = Loop.kind in map(attrgetter("kind"), nodes)

    def static(self, path: str) -> str:
        """Return the path in the tree for a path in a run: the same path in the first iteration."""
        return path if path in self._places or not self._loops else self._statics(path)[-1]

    def _statics(self, path: str) -> list[str]:
        """Return the paths in the tree for a path in a run and those above it, from the root."""
        found, at = [], ""
        for name in path.split(SEPARATOR):
            below = join(at, name)
            first = join(at, _FIRST)
            # A child may be named `iteration_02` itself; then its own path is in the tree.
            rounds = name.startswith(ITERATION) and first in self._places
            at = first if below not in self._places and rounds else below
            found.append(at)
        return found

    def __contains__(self, path: str) -> bool:
        """Return whether the tree has such a path, in any iteration."""
        return self.static(path) in self._places

    def __call__(self, path: str) -> tuple[tuple[int, int], ...]:
        """Return a sort key for a path; paths outside the tree come last."""
        paths, outside = prefixes(path), len(self._places)
        if path in self._places or not self._loops:
            places = map(self._places.get, paths, repeat(outside))
            return tuple(zip(places, repeat(0), strict=False))
        key: list[tuple[int, int]] = []
        for at, static in zip(paths, self._statics(path), strict=True):
            # All iterations have the place of the first one, so their number decides the order.
            moved = static != at and static.endswith(_FIRST)
            number = _number(at.rpartition(SEPARATOR)[2]) if moved else 0
            key.append((self._places.get(static, outside), number))
        return tuple(key)


def _number(name: str) -> int:
    digits = name.removeprefix(ITERATION)
    return int(digits) if digits.isdecimal() else 0
