"""Artifacts: the working steps that the records of a turn's run come to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.path import ITERATION, SEPARATOR
from mergepoint.record.record import CallRecord
from mergepoint.session.memory import SessionMemory
from mergepoint.session.working_step import StepType
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, Order, root_path, walk
from mergepoint.tree.template import as_text

STEP = "step_type"
"""The key of a node's `meta` that makes its records working steps: plan, codegen or execute."""
_TYPES = tuple(str(one) for one in StepType if one is not StepType.RESPONSE)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a record comes to, as `add_working_step` takes it."""

    id: str
    type: StepType
    content: str
    path: str
    made_at: datetime
    about: Mapping[str, Any] = field(default_factory=dict)

    def added_to(self, memory: SessionMemory, turn: int) -> None:
        """Add the step to a turn, unless it is there already."""
        if self.id not in memory.past.by_id:
            memory.add_working_step(
                self.type,
                self.content,
                path=self.path,
                turn=turn,
                step_id=self.id,
                made_at=self.made_at,
                **self.about,
            )


class Artifacts:
    """What the nodes of a tree make that belongs into a session's steps.

    Those do whose `meta` says so: `Step(..., meta={"step_type": "plan"})`. A failed attempt is
    none. Raises TreeError for another type than plan, codegen and execute.
    """

    def __init__(self, tree: Node) -> None:
        root = root_path(tree)
        self._nodes = dict(walk(tree, root))
        self._order = Order(tree, root)
        faults = [
            Fault(path, f"meta {STEP}={word!r} is none of {', '.join(map(repr, _TYPES))}")
            for path, node in self._nodes.items()
            if (word := node.meta.get(STEP, _TYPES[0])) not in _TYPES
        ]
        if faults:
            raise TreeError(faults)

    def of(self, run: str, records: Iterable[CallRecord]) -> Iterator[Artifact]:
        """Give the artifacts of a run, in the order in which they were made."""
        made: Counter[str] = Counter()
        for record in records:
            type_ = self._type(record)
            if record.key.run != run or type_ is None or _nothing(record):
                continue
            made[record.path] += 1
            content, about = _content(record)
            yield Artifact(
                id=f"{run}/{record.path}/step-{made[record.path]}",
                type=type_,
                content=content,
                path=record.path,
                made_at=datetime.fromtimestamp(record.ended, UTC),
                about={"attempt": self.attempt_at(record.path, record.attempt), **about},
            )

    def _type(self, record: CallRecord) -> StepType | None:
        if not record.answered or record.kind == "inner":
            return None
        return self.type_at(record.path)

    def type_at(self, path: str) -> StepType | None:
        """Give which artifact is made at a path, None for none."""
        node = self.node_at(path)
        word = None if node is None else node.meta.get(STEP)
        return None if word is None else StepType(word)

    def place(self, path: str) -> str:
        """Give the path in the tree of a path in a run: the same in the first iteration."""
        return self._order.static(path)

    def node_at(self, path: str) -> Node | None:
        """Give the node at a path of a run, in any iteration."""
        return self._nodes.get(self._order.static(path))

    def attempt_at(self, path: str, tries: int = 1) -> int:
        """Give the number of the iteration that is nearest, else of the call's own tries."""
        names = path.split(SEPARATOR)
        for end in range(len(names) - 1, 0, -1):
            above = self._nodes.get(self._order.static(SEPARATOR.join(names[:end])))
            if isinstance(above, Loop):
                return int(names[end].removeprefix(ITERATION))
        return tries


def _nothing(record: CallRecord) -> bool:
    """Say whether a call tells that it ran nothing, by an output that is None."""
    value = record.value
    return isinstance(value, Mapping) and "output" in value and value["output"] is None


def _content(record: CallRecord) -> tuple[str, dict[str, Any]]:
    """Give the content of a record, and what else its step says."""
    if record.kind == "gate":
        decision = record.value
        return decision.get("text") or "", {
            "decision": decision["decision"],
            "feedback": decision["feedback"],
        }
    if record.kind == "call":
        value = record.value
        if not isinstance(value, Mapping):
            return "" if value is None else as_text(value), {}
        code, output = value.get("exit_code"), value.get("output")
        about = {"exit_code": code} if type(code) is int else {}
        return output if isinstance(output, str) else as_text(value), about
    said = _fields(record.response)
    names = [name for name in ("intent", "action") if isinstance(said.get(name), str)]
    return record.response, {name: said[name] for name in names}


def _fields(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}
