"""The account of one budget: the amounts used, and those reserved for attempts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage

from mergepoint.core.errors import BudgetExceeded
from mergepoint.journal.call_records import sound_usage
from mergepoint.models.pricing import PICO, Price
from mergepoint.models.retry import was_refused
from mergepoint.tree.policy import Budget


class Amount(NamedTuple):
    """Calls, tokens and picodollars."""

    calls: int = 0
    tokens: int = 0
    pico: int = 0

    def plus(self, other: Amount) -> Amount:
        """Return the sum."""
        return Amount(self.calls + other.calls, self.tokens + other.tokens, self.pico + other.pico)

    def minus(self, other: Amount) -> Amount:
        """Return the difference."""
        return Amount(self.calls - other.calls, self.tokens - other.tokens, self.pico - other.pico)


NOTHING = Amount()


class CallEstimate(NamedTuple):
    """The most that a call at a path may use: the amount, and the answer's share of the tokens."""

    path: str
    amount: Amount
    output: int = 0


@dataclass(slots=True)
class BudgetAccount:
    """One budget of a node, with its usage. Change it only under the ledger's lock.

    `earlier` is the number of seconds that a run used before it was resumed; `started` is the time
    of the first call in this process, on the ledger's stopwatch.
    """

    path: str
    budget: Budget
    spent: Amount = NOTHING
    held: Amount = NOTHING
    earlier: float = 0.0
    started: float | None = None
    counts_calls: bool = field(init=False)
    counts_tokens: bool = field(init=False)
    _limits: Sequence[tuple[str, int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        calls, tokens, usd = self.budget.calls, self.budget.tokens, self.budget.usd
        self.counts_calls = calls is not None
        self.counts_tokens = tokens is not None or usd is not None
        # Compare picodollars as integers: with floats, three calls of 0.1 USD would exceed 0.3.
        pico = None if usd is None else round(usd * PICO)
        limits = (("calls", 0, calls), ("tokens", 1, tokens), ("usd", 2, pico))
        self._limits = [(kind, at, most) for kind, at, most in limits if most is not None]

    def seconds(self, now: float) -> float:
        """Return the seconds since the first call, plus those of earlier processes."""
        return self.earlier + (0.0 if self.started is None else now - self.started)

    def check(self, need: CallEstimate, now: float) -> None:
        """Raise BudgetExceeded for a call that needs more than the available amount."""
        limit = self.budget.seconds
        if limit is not None and (seconds := self.seconds(now)) >= limit:
            problem = f"{seconds:.1f} s are used; allow more time"
            raise self._exceeded("seconds", seconds, 0, limit, need, problem)
        for kind, at, most in self._limits:
            spent, held, wanted = self.spent[at], self.held[at], need.amount[at]
            if spent + held + wanted > most:
                unit = PICO if kind == "usd" else 1
                problem = _problem(kind, spent, held, need)
                error = self._exceeded(kind, spent / unit, held / unit, most / unit, need, problem)
                error.wanted = wanted / unit
                raise error

    def _exceeded(
        self, kind: str, spent: float, held: float, limit: float, need: CallEstimate, problem: str
    ) -> BudgetExceeded:
        whole = kind in ("calls", "tokens")
        return BudgetExceeded(
            self.path,
            kind=kind,
            spent=int(spent) if whole else spent,
            held=int(held) if whole else held,
            limit=int(limit) if whole else limit,
            keep=self.budget.on_exhausted == "keep",
            problem=f"the budget of {self.path or 'the run'}, {shown(kind, limit)}, is not "
            f"enough for the call at {need.path}: {problem}",
        )


def shown(kind: str, amount: float) -> str:
    """Return an amount with its unit: `12 calls`, `3,000 tokens`, `0.5 USD`, `60 s`."""
    if kind == "usd":
        return f"{amount:.9f}".rstrip("0").rstrip(".") + " USD"
    if kind == "seconds":
        return f"{amount:g} s"
    return f"{int(amount):,} {kind if amount != 1 else kind[:-1]}"


def busy_seconds(times: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of several calls was in progress.

    A call that ended before it started, because the clock was set back, took no time.
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(times):
        if end > max(start, until):
            total += end - max(start, until)
            until = end
    return total


def _problem(kind: str, spent: int, held: int, need: CallEstimate) -> str:
    unit = PICO if kind == "usd" else 1
    parts = [f"{shown(kind, spent / unit)} spent"]
    if held:
        parts.append(f"{shown(kind, held / unit)} reserved for calls in progress")
    if kind == "calls":
        return f"{' and '.join(parts)}; raise the budget"
    wanted = need.amount.pico / PICO if kind == "usd" else need.amount.tokens
    prompt = need.amount.tokens - need.output
    parts.append(
        f"it may use {shown(kind, wanted)} (at most {prompt:,} tokens of prompt and "
        f"{need.output:,} of answer)"
    )
    fewer = ", or allow fewer concurrent calls" if held else ""
    return f"{', '.join(parts)}; raise the budget, or set a lower max_tokens{fewer}"


Settled = Callable[[tuple[BudgetAccount, ...], Amount, Amount], None]
"""Replaces a reservation by the actual usage, in all accounts of a call."""


class LedgerReservation:
    """The amount reserved for one attempt. A Reservation."""

    __slots__ = ("_chain", "_cost", "_held", "_most", "_open", "_price", "_settled", "counts_calls")

    def __init__(
        self,
        settled: Settled,
        chain: tuple[BudgetAccount, ...],
        price: Price | None,
        held: Amount | None,
        most: Callable[[], CallEstimate],
    ) -> None:
        self._settled = settled
        self._chain = chain
        self._price = price
        self._held = NOTHING if held is None else held
        self._most = most
        self._open = True
        self._cost: float | None = None
        self.counts_calls = any(map(attrgetter("counts_calls"), chain))

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> float | None:
        """Charge the actual usage of the attempt; return its cost in USD, or None if unknown.

        An answer without usage is charged the reserved amount. So is a failed attempt, whose cost
        is unknown, unless the provider refused the request. A second call charges nothing.
        """
        if not self._open:
            return self._cost
        self._open, known = False, True
        usage = None if message is None else sound_usage(message.usage_metadata)
        if usage:
            pico = 0 if self._price is None else self._price.cost(usage)
            used = Amount(1, tokens_of(usage), pico)
        elif message is not None:
            used = self._unmeasured()
        else:
            known = was_refused(error)
            used = self._held if self._chain and not known else Amount(calls=1)
        self._settled(self._chain, self._held, used)
        if known and self._price is not None:
            self._cost = used.pico / PICO
        return self._cost

    def release(self) -> None:
        """Release the reservation of an attempt that did not start; nothing is charged."""
        if self._open:
            self._open = False
            self._settled(self._chain, self._held, Amount())

    def _unmeasured(self) -> Amount:
        """Return the charge for an answer without usage: the most that it may have used."""
        # Bounding tokens reads the whole prompt, so it is done only if they have a price, or a
        # budget counts them.
        counted = self._price is not None or any(map(attrgetter("counts_tokens"), self._chain))
        return self._most().amount if counted and not self._held.tokens else self._held


def tokens_of(usage: Mapping[str, Any]) -> int:
    """Return all tokens of a call, from LangChain's usage metadata."""
    parts = int(usage.get("input_tokens") or 0) + int(usage.get("output_tokens") or 0)
    return max(int(usage.get("total_tokens") or 0), parts)


class PriorCall(NamedTuple):
    """A recorded call: its path, its usage, and the times of its start and end."""

    path: str
    amount: Amount
    span: tuple[float, float]


def by_path(calls: Iterable[PriorCall]) -> list[PriorCall]:
    """Return calls in the order that `below` needs."""
    return sorted(calls, key=_path)


def below(calls: Sequence[PriorCall], path: str) -> Sequence[PriorCall]:
    """Return the calls below a path, from calls sorted by path."""
    # They are adjacent: every path below `a` starts with `a/`, and `0` is the character after `/`.
    start, end = (bisect_left(calls, f"{path}{mark}", key=_path) for mark in "/0")
    return calls[start:end]


def charge_prior_calls(account: BudgetAccount, calls: Iterable[PriorCall]) -> None:
    """Count calls in an account that has none yet."""
    counted = list(calls)
    for one in counted:
        account.spent = account.spent.plus(one.amount)
    account.earlier = busy_seconds(one.span for one in counted)


def _path(call: PriorCall) -> str:
    return call.path
