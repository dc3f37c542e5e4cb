"""Loop: nodes again and again, until something holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mergepoint.core.errors import Fault, StepError, TreeError
from mergepoint.core.merge import MergeMode, mode_problem
from mergepoint.core.path import name_problem
from mergepoint.tree.block import Block
from mergepoint.tree.budget import Budget, budget_of
from mergepoint.tree.context import PromptContext
from mergepoint.tree.template import key_problem

if TYPE_CHECKING:
    from mergepoint.tree.node import Node

Until = str | Callable[[PromptContext], bool]


@dataclass(frozen=True)
class Loop:
    """Runs its nodes in iterations; each sees what the ones before it made.

    It means `Block(merge)[iteration_01: Block(all_messages, nodes), iteration_02: ...]`: its own
    merge acts once, at its exit. After each iteration `until` is looked at: an output's key, or a
    function of a PromptContext that gives a bool. Under a key stands a bool, or what a gate
    captured, which holds unless it was rejected; a key that nobody wrote does not hold yet. With
    `may_skip` it is looked at before the first iteration too: where it holds, nothing is run.

    After `max_iterations` without it the loop raises RailError, or with `on_exhausted="keep"`
    goes on with what there is.

    Raises TreeError (a ValueError) that lists everything that is wrong with the loop.
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
        found = [
            *_body_problems(self.nodes),
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge),
            None if self.capture_key is None else key_problem(self.capture_key),
            _until_problem(self.until),
            _most_problem(self.max_iterations),
            _exhausted_problem(self.on_exhausted),
            None if isinstance(self.may_skip, bool) else f"may_skip={self.may_skip!r} is no bool",
            None if isinstance(self.meta, Mapping) else f"meta is a mapping, not {self.meta!r}",
        ]
        budget, problems = budget_of(self.budget)
        object.__setattr__(self, "budget", budget)
        if faults := [problem for problem in (*found, *problems) if problem]:
            label = self.name if isinstance(self.name, str) else ""
            raise TreeError(Fault(label, problem) for problem in faults)
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    @cached_property
    def body(self) -> Block:
        """Give the block that each iteration is."""
        return Block(self.nodes)

    def holds(self, context: PromptContext) -> bool:
        """Say whether the loop may end.

        Raises StepError where `until` gives no bool, and whatever a function raises.
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
        f"until={key!r} holds {value!r}, which is no bool and no gate's decision; give a function "
        "of the context that says when it is good"
    )


def _body_problems(nodes: Any) -> list[str]:
    try:
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
        return f"max_iterations is a number from 1 on, not {most!r}"
    return None


def _exhausted_problem(act: object) -> str | None:
    if act in ("raise", "keep"):
        return None
    return f"on_exhausted={act!r}; allowed are 'raise', 'keep'"
