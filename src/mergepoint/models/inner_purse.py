"""InnerPurse: the purse of a run inside of a Call, with budgets of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.models.held import Held
from mergepoint.models.ledger import Ledger
from mergepoint.models.prices import Prices
from mergepoint.models.purse import Purse, Reservation
from mergepoint.record.record import CallKey


class InnerPurse:
    """Grants a call where the run itself and the run around have room for it. A Purse."""

    def __init__(self, own: Ledger, around: Purse) -> None:
        self._own = own
        self._around = around

    @property
    def prices(self) -> Prices:
        """Give the prices of the run itself."""
        return self._own.prices

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Reservation:
        """Hold back what one attempt may use at most, of both.

        Raises BudgetExceeded that names the budget without room, the inner one first.
        """
        own = self._own.reserve(key, model, messages, params)
        try:
            around = self._around.reserve(key, model, messages, params)
        except BaseException:
            own.release()
            raise
        return _Both(own, around)

    def charge(self, key: CallKey, model: str, message: AIMessage | None) -> float | None:
        """Charge both a call that was made without asking; give its cost in USD."""
        cost = self._own.charge(key, model, message)
        if isinstance(self._around, Ledger | InnerPurse):
            return self._around.charge(key, model, message)
        return cost

    def pause(self) -> AbstractContextManager[object]:
        """Stop the clocks of both, while a person is waited for."""
        both = ExitStack()
        for purse in self._clocks():
            both.enter_context(purse.pause())
        return both

    def rest(self) -> None:
        """Stop the clocks of both until the next call is asked for."""
        for purse in self._clocks():
            purse.rest()

    def _clocks(self) -> list[Ledger | InnerPurse]:
        around = self._around
        return [self._own, *([around] if isinstance(around, Ledger | InnerPurse) else [])]


class _Both:
    """What is held back in two purses. A Reservation."""

    def __init__(self, own: Held, around: Reservation) -> None:
        self._own = own
        self._around = around

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> float | None:
        """Charge both what the attempt used, and give its cost in USD, None where unknown."""
        self._own.settle(message, error)
        return self._around.settle(message, error)
