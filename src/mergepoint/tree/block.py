"""Block: named nodes in order, or side by side; and Input, what a run must be given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.merge import MergeMode, mode_problem
from mergepoint.core.path import effective_name, name_problem
from mergepoint.tree.budget import Budget, budget_of
from mergepoint.tree.kinds import is_node, not_a_node
from mergepoint.tree.template import key_problem

if TYPE_CHECKING:
    from mergepoint.tree.node import Node


class _Required(Enum):
    """An enum, since its members stay what they are when they are copied."""

    REQUIRED = "required"

    def __repr__(self) -> str:
        return self.name


REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True, slots=True)
class Input:
    """A value that a run of the tree is given; with a default it may be left out."""

    name: str
    _: KW_ONLY
    default: Any = REQUIRED

    def __post_init__(self) -> None:
        if problem := key_problem(self.name):
            raise TreeError.of(f"input: {problem}")


@dataclass(frozen=True)
class Block:
    """Nodes in order; each sees the block's base and what earlier ones merged.

    With `parallel=True` every child sees the state at entry, and what they kept is merged in
    declared order at the exit. `merge` says which messages leave the block; its `capture_key`
    takes its last response, whatever the mode. `inputs` (names, `(name, default)` or Input)
    belong to the root. `budget` (a Budget or a mapping of its fields) is shared by all calls
    below.

    Raises TreeError (a ValueError) that lists everything that is wrong with the block itself;
    what can be seen only in the whole tree is found by `check`.
    """

    kind: ClassVar[str] = "block"

    nodes: Sequence[Node]
    _: KW_ONLY
    name: str | None = None
    merge: MergeMode = "all_messages"
    capture_key: str | None = None
    parallel: bool = False
    inputs: Sequence[Input | str | tuple[str, Any]] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        problems = [
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge),
            None if self.capture_key is None else key_problem(self.capture_key),
            None if isinstance(self.parallel, bool) else f"parallel={self.parallel!r} is no bool",
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
        if isinstance(nodes, str) or is_node(nodes) or not isinstance(nodes, Iterable):
            return [f"nodes is a list of nodes, not {type(nodes).__name__}"]
        object.__setattr__(self, "nodes", tuple(nodes))
        return list(_children_problems(self.nodes))

    @property
    def declared_inputs(self) -> tuple[Input, ...]:
        """Give the inputs as Input values."""
        return tuple(given for given in self.inputs if isinstance(given, Input))


def _children_problems(nodes: Sequence[Any]) -> Iterator[str]:
    taken: dict[str, int] = {}
    for position, node in enumerate(nodes, start=1):
        if not is_node(node):
            yield f"child {position} is {not_a_node(node)}"
            continue
        name = effective_name(node.name, node.kind, position)
        if name in taken:
            yield (
                f"children {taken[name]} and {position} are both named {name!r}; "
                "give one another name"
            )
        taken.setdefault(name, position)


def _inputs(given: Any) -> tuple[tuple[Input, ...], list[str]]:
    """Give the inputs, and what is wrong with those that are none."""
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
