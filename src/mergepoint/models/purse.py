"""Purse: what the door asks before a call is made, and tells after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.record.record import CallKey


class Reservation(Protocol):
    """What is held back for one attempt of a call, until its price is known."""

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> float | None:
        """Charge what the attempt used, and give its cost in USD, None where it is not known.

        None for the message where the attempt failed, and nothing is known of what it used; its
        `error` may tell that the provider refused it, which costs nothing. To be called once for
        each reservation, in every case.
        """
        ...


class Purse(Protocol):
    """Who grants calls. Safe to ask from several threads and tasks."""

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Reservation:
        """Hold back what one attempt may use at most.

        Raises BudgetExceeded, before anything is sent, when that is more than what is left.
        """
        ...
