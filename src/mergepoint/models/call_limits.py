"""Limits that the calls of several runs share, such as those of a batch.

Each live attempt of a model call passes them before it starts. A recorded answer doesn't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.journal.call_records import CallKey
from mergepoint.models.budget import BudgetLedger, BudgetSource, NestedBudget
from mergepoint.models.budget_account import CallEstimate
from mergepoint.models.pricing import Price


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One attempt of a call that is about to be made.

    `budget` is the source of the run's own reservations. Its prices, and the output limits that it
    knows, apply here too.
    """

    key: CallKey
    model: str
    messages: Sequence[BaseMessage]
    params: Mapping[str, object]
    budget: BudgetSource | None = None

    def at_most(self) -> tuple[CallEstimate, Price | None]:
        """Return the most that the attempt can use, and the price of its model or None."""
        source = self.budget
        ledger = source if isinstance(source, BudgetLedger | NestedBudget) else BudgetLedger()
        return ledger.at_most(self.key.path, self.model, self.messages, self.params)


class CallPermit(Protocol):
    """The permission for one attempt, until its actual usage is known."""

    @property
    def counts_calls(self) -> bool:
        """Return whether a budget counts calls: then a call's start is recorded before it."""
        ...

    @property
    def fresh(self) -> bool:
        """Return whether the attempt may be sent now. An old permit must be renewed first."""
        ...

    def renew(self, check: Callable[[], None]) -> None:
        """Wait for a new permission to send the attempt, as `CallLimits.admit` does."""
        ...

    async def arenew(self, check: Callable[[], None]) -> None:
        """Wait as `renew` does, on an event loop."""
        ...

    def release(self) -> None:
        """Return the permission of an attempt that did not start; nothing is charged."""
        ...

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> None:
        """Replace the reserved usage by the actual one. It never waits.

        Args:
            message: The answer; None if the attempt failed, and its usage is unknown.
            error: The failure.
        """
        ...


class CallLimits(Protocol):
    """Limits that grant attempts, safe to use from several threads and tasks."""

    def admit(self, request: CallRequest, check: Callable[[], None]) -> CallPermit:
        """Wait until an attempt may be sent.

        Raises RailError for an attempt that the limits can't grant. `check` is called about twice a
        second, and may raise to end the wait.
        """
        ...

    async def aadmit(self, request: CallRequest, check: Callable[[], None]) -> CallPermit:
        """Wait as `admit` does, on an event loop. A cancellation ends the wait."""
        ...


LIMITS: ContextVar[CallLimits | None] = ContextVar("mergepoint_limits", default=None)


@contextmanager
def shared_limits(limits: CallLimits | None) -> Iterator[None]:
    """Apply limits to all runs that begin inside `with`; None applies none."""
    token = LIMITS.set(limits)
    try:
        yield
    finally:
        LIMITS.reset(token)
