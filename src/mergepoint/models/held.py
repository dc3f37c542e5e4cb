"""Held: what a ledger holds back for one attempt of a call, until its cost is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import AIMessage

from mergepoint.models.account import NOTHING, Account, Amount, Need
from mergepoint.models.prices import PICO, Price
from mergepoint.models.refused import was_refused

Settled = Callable[[tuple[Account, ...], Amount, Amount], None]
"""Puts what was used in the place of what was held, in all accounts of a call."""


class Held:
    """What is held back for one attempt. A Reservation."""

    __slots__ = ("_chain", "_cost", "_held", "_most", "_open", "_price", "_settled")

    def __init__(
        self,
        settled: Settled,
        chain: tuple[Account, ...],
        price: Price | None,
        held: Amount | None,
        most: Callable[[], Need],
    ) -> None:
        self._settled = settled
        self._chain = chain
        self._price = price
        self._held = NOTHING if held is None else held
        self._most = most
        self._open = True
        self._cost: float | None = None

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> float | None:
        """Charge what the attempt used, and give its cost in USD, None where it is not known.

        An answer without usage is charged what was held. So is a failed attempt, whose cost is
        not known, unless the provider refused it. A second time charges nothing.
        """
        if self._open:
            self._open = False
            if not self._chain and self._price is None:
                return None  # nobody charges: an answer that is in waits to be on record
            used, known = self._used(message, error)
            self._settled(self._chain, self._held, used)
            if known and self._price is not None:
                self._cost = used.pico / PICO
        return self._cost

    def release(self) -> None:
        """Give back what was held for an attempt that nobody began; it charges nothing."""
        if self._open:
            self._open = False
            self._settled(self._chain, self._held, Amount())

    def _used(self, message: AIMessage | None, error: BaseException | None) -> tuple[Amount, bool]:
        """Give what was used, and whether that is what the attempt cost."""
        if message is None:
            refused = was_refused(error)
            unknown = self._held if self._chain and not refused else Amount(calls=1)
            return unknown, refused
        usage: Any = message.usage_metadata
        if not usage:
            return self._unmeasured(), True
        pico = 0 if self._price is None else self._price.cost(usage)
        return Amount(1, tokens_of(usage), pico), True

    def _unmeasured(self) -> Amount:
        """Give what an answer without usage is charged: the most that it may have used.

        Nobody works out its tokens where they make no price and no budget counts them.
        """
        counted = self._price is not None or any(one.counts_tokens for one in self._chain)
        return self._most().amount if counted and not self._held.tokens else self._held


def tokens_of(usage: Mapping[str, Any]) -> int:
    """Give all tokens of a call, from LangChain's usage metadata."""
    parts = int(usage.get("input_tokens") or 0) + int(usage.get("output_tokens") or 0)
    return max(int(usage.get("total_tokens") or 0), parts)
