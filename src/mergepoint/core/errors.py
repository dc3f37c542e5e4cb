"""Errors: every one says where, what, and the way out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class MergepointError(Exception):
    """The parent of every error that mergepoint raises itself.

    An error that left a running tree carries `pipeline_path`, `pipeline_node_type` and
    `pipeline_node_name` of the innermost node it came from (see `locate`); so do errors of
    other types, which keep their type.
    """


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a tree: `path` where, `problem` what and the way out."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


class TreeError(MergepointError, ValueError):
    """A tree that cannot be run. `faults` holds all of them in tree order."""

    faults: tuple[Fault, ...]

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        first = self.faults[0]
        self.pipeline_path = first.path
        if len(self.faults) == 1:
            text = str(first)
        else:
            lines = "".join(f"\n  {fault}" for fault in self.faults)
            text = f"the tree has {len(self.faults)} faults:{lines}"
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults,), self.__dict__

    @classmethod
    def of(cls, problem: str, *, path: str = "") -> TreeError:
        """Give the error for a single fault."""
        return cls([Fault(path, problem)])


class MergeError(MergepointError, ValueError):
    """A merge that has nothing to let out."""


class StepError(MergepointError, ValueError):
    """A prompt, a model's answer or a run's input that cannot be used."""


class MissingKey(StepError, KeyError):
    """A key that was asked for and is not there, or holds nothing. `key` names it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, str(self)), self.__dict__

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr


class RailError(MergepointError, RuntimeError):
    """A limit that stopped the run: budget, iterations, deadline, deadlock."""


class BudgetExceeded(RailError):
    """A budget that does not suffice for the next call; `path` is the node that it belongs to.

    `spent`, `held` (for calls in flight) and `limit` are in the unit of the budget's `kind`: usd,
    tokens, calls or seconds. With `keep` the node goes on without its remaining children.
    """

    def __init__(
        self,
        path: str,
        *,
        kind: str,
        spent: float,
        limit: float,
        problem: str,
        held: float = 0,
        keep: bool = False,
    ) -> None:
        super().__init__(problem)
        self.path = path
        self.kind = kind
        self.spent = spent
        self.held = held
        self.limit = limit
        self.keep = keep

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("kind", "spent", "held", "limit", "keep")
        facts = {name: getattr(self, name) for name in names}
        return _budget_exceeded, (self.path, facts, str(self)), self.__dict__


def _budget_exceeded(path: str, facts: dict[str, Any], problem: str) -> BudgetExceeded:
    return BudgetExceeded(path, **facts, problem=problem)


class GateOpen(MergepointError):
    """Gates that wait for a decision, which nobody in this run could give.

    `questions` holds what each asks (see `mergepoint.Question`), in tree order. Give the answers
    with the resumed run.
    """

    def __init__(self, questions: Iterable[Any]) -> None:
        self.questions = tuple(questions)
        paths = ", ".join(str(question.path) for question in self.questions)
        super().__init__(
            f"waiting for a decision at {paths}: give the run an answerer, or its answers by path "
            "when it is resumed"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.questions,), self.__dict__


class CallTimeout(MergepointError, TimeoutError):
    """A model or a function that gave nothing within the seconds that its node's policy allows."""


class ReplayMiss(MergepointError, LookupError):
    """A strict replay asked for a call that is not on record."""


class SessionError(MergepointError):
    """A session that cannot be read or written."""


class SandboxMissing(MergepointError, RuntimeError):
    """Code of a model that cannot be run here, since nothing would confine it."""


class SkillError(MergepointError, ValueError):
    """Skills that cannot be used. `faults` holds all of them; `path` is the file and its line."""

    faults: tuple[Fault, ...]

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        lines = "".join(f"\n  {fault}" for fault in self.faults)
        many = len(self.faults) > 1
        super().__init__(f"skills have {len(self.faults)} faults:{lines}" if many else lines[3:])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults,), self.__dict__


class RecipeError(MergepointError, ValueError):
    """A recipe that cannot be run."""


def locate(
    error: BaseException, path: str, *, kind: str, name: str, innermost: bool = False
) -> None:
    """Write on an error which node it came from; the innermost node wins.

    With `innermost` the node is known to be that: what an earlier run wrote on the same error
    object gives way.

    The type of the error stays as it is, so callers can go on catching what the provider
    raises. Errors whose instances take no attributes get the note alone.
    """
    if getattr(error, "pipeline_path", None) and not innermost:
        return
    note = f"at {path} ({kind})"
    with contextlib.suppress(AttributeError):  # an error may refuse attributes, and even notes
        error.pipeline_path = path  # type: ignore[attr-defined]
        error.pipeline_node_type = kind  # type: ignore[attr-defined]
        error.pipeline_node_name = name  # type: ignore[attr-defined]
    with contextlib.suppress(AttributeError):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
