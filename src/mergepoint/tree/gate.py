"""Gate: a person between what a node made and its merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.merge import MergeMode, mode_problem
from mergepoint.core.path import name_problem
from mergepoint.tree.decision import Answerer
from mergepoint.tree.kinds import is_node, not_a_node
from mergepoint.tree.template import key_problem

if TYPE_CHECKING:
    from mergepoint.tree.node import Node


@dataclass(frozen=True)
class Gate:
    """Holds back what a node keeps until somebody has decided about it.

    They see exactly what would be kept, and approve it, edit it, or reject it: then nothing of it
    is kept, neither messages nor captures. The gate itself captures `{"decision", "feedback"}`
    under its `capture_key`. Trying again is a Loop around it.

    `decide` answers in place of a person: a function of a Question that gives a Decision, or what
    `Decision.of` takes. Without it, or where it gives None, the run's own answerer is asked, then
    LangGraph's `interrupt`.

    Raises TreeError (a ValueError) that lists everything that is wrong with the gate.
    """

    kind: ClassVar[str] = "gate"

    node: Node
    _: KW_ONLY
    name: str | None = None
    merge: MergeMode = "all_messages"
    capture_key: str | None = None
    question: str = ""
    decide: Answerer | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        decide, question = self.decide, self.question
        found = [
            None if is_node(self.node) else f"a gate wraps one node; this is {_told(self.node)}",
            None if self.name is None else name_problem(self.name),
            mode_problem(self.merge),
            None if self.capture_key is None else key_problem(self.capture_key),
            None if isinstance(question, str) else f"question is text, not {question!r}",
            None if decide is None or callable(decide) else f"decide is no function: {decide!r}",
            None if isinstance(self.meta, Mapping) else f"meta is a mapping, not {self.meta!r}",
        ]
        if faults := [problem for problem in found if problem]:
            label = self.name if isinstance(self.name, str) else ""
            raise TreeError(Fault(label, problem) for problem in faults)
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))


def _told(node: Any) -> str:
    if isinstance(node, list | tuple):
        return "a list; put a Block around it"
    return not_a_node(node)
