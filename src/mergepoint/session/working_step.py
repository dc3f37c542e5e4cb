"""WorkingStep: how a turn came about; it is never what a model is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

CANCELLED = "Cancelled"


class StepType(StrEnum):
    """What a step of a turn was."""

    PLAN = "plan"
    CODEGEN = "codegen"
    EXECUTE = "execute"
    RESPONSE = "response"


class StepCategory(StrEnum):
    """Whether a step is work, or what the turn came to."""

    WORKING = "working"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingStep:
    """An artifact of a turn: a plan, code, its run, or what the turn came to.

    `path` says where in the tree it was made, `attempt` counts from 1. A plan has `intent` and
    `action`, code that ran an `exit_code`, what a person decided about is `decision` and
    `feedback`. A response holds no text: `message` is the id of the answer, or `error` says
    {type, message, path, node} of what came in its place.
    """

    id: str
    type: StepType
    turn: int
    created_at: datetime
    content: str = ""
    path: str = ""
    attempt: int | None = None
    exit_code: int | None = None
    intent: str = ""
    action: str = ""
    decision: str = ""
    feedback: str = ""
    message: str = ""
    error: Mapping[str, str] | None = None
    changed: tuple[str, ...] = ()

    @property
    def category(self) -> StepCategory:
        """Give whether it is work or a response."""
        response = self.type is StepType.RESPONSE
        return StepCategory.RESPONSE if response else StepCategory.WORKING

    @property
    def cancelled(self) -> bool:
        """Say whether the turn was ended by a person."""
        return self.error is not None and self.error.get("type") == CANCELLED
