"""Siblings: the children of one parallel block while they run.

A child's failure is a value until the exit. Without a limit all children start at entry, and all
of them come to their end; with one, none starts after the first failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from mergepoint.core.errors import GateOpen


class Siblings:
    """The failures of one execution of a parallel block, by position."""

    def __init__(self, *, limited: bool) -> None:
        self._limited = limited
        self.failures: dict[int, Exception] = {}

    @property
    def may_start(self) -> bool:
        """Say whether another child may start."""
        return not (self._limited and self.failures)


SIBLINGS: ContextVar[Siblings | None] = ContextVar("mergepoint_siblings", default=None)


def first_failure(failures: Sequence[Exception]) -> Exception:
    """Give the failure that is first in declared order, with the others as notes.

    Gates that wait for a decision come before failures, and all of them together.
    """
    waiting = [failure for failure in failures if isinstance(failure, GateOpen)]
    if waiting:  # the others are tried again when the run goes on
        questions = [question for one in waiting for question in one.questions]
        rest = [failure for failure in failures if failure not in waiting]
        failures = [GateOpen(questions), *rest]
    first, *others = failures
    for other in others:
        if other is first:  # one object that several children raised
            continue
        path = getattr(other, "pipeline_path", "")
        first.add_note(f"also failed: {path}: {type(other).__name__}: {other}")
    return first
