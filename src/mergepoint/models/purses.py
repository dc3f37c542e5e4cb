"""Purses: two who both have to grant a call: of what is run, and of the run around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.core.errors import BudgetExceeded
from mergepoint.models.ledger import Held, Ledger
from mergepoint.models.purse import Purse, Reservation
from mergepoint.record.record import CallKey


class Purses:
    """A Purse: what `own` grants, `around` has to grant too; both are charged.

    `refused` is the first error by which the one around refused a call, None where none did.
    """

    def __init__(self, own: Ledger, around: Purse) -> None:
        self._own = own
        self._around = around
        self.refused: BudgetExceeded | None = None

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Reservation:
        """Hold back in both what one attempt may use; where one refuses, in none.

        Raises what they raise.
        """
        own = self._own.reserve(key, model, messages, params)
        try:
            around = self._around.reserve(key, model, messages, params)
        except BaseException as error:
            own.release()
            if isinstance(error, BudgetExceeded) and self.refused is None:
                self.refused = error
            raise
        return _Both(own, around)


class _Both:
    """What is held back in two purses for one attempt. A Reservation."""

    def __init__(self, own: Held, around: Reservation) -> None:
        self._own = own
        self._around = around

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> float | None:
        """Charge both, and give the cost that is known."""
        costs = [one.settle(message, error) for one in (self._own, self._around)]
        return next((cost for cost in costs if cost is not None), None)
