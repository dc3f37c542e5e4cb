"""Account: one budget, what is spent of it and what is held for calls in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mergepoint.core.errors import BudgetExceeded
from mergepoint.models.prices import PICO
from mergepoint.tree.budget import Budget


class Amount(NamedTuple):
    """Calls, tokens and picodollars."""

    calls: int = 0
    tokens: int = 0
    pico: int = 0

    def plus(self, other: Amount) -> Amount:
        """Give the sum."""
        return Amount(self.calls + other.calls, self.tokens + other.tokens, self.pico + other.pico)

    def minus(self, other: Amount) -> Amount:
        """Give the difference."""
        return Amount(self.calls - other.calls, self.tokens - other.tokens, self.pico - other.pico)


NOTHING = Amount()


class Need(NamedTuple):
    """What a call at a path may use at most: the amount, and the answer's part of its tokens."""

    path: str
    amount: Amount
    output: int = 0


@dataclass(slots=True)
class Account:
    """One budget of a node. Whoever changes it holds the ledger's lock.

    `earlier` are seconds that a run used before it was resumed, `started` when the first call
    of this process began, on the ledger's stopwatch.
    """

    path: str
    budget: Budget
    spent: Amount = NOTHING
    held: Amount = NOTHING
    earlier: float = 0.0
    started: float | None = None

    @property
    def counts_tokens(self) -> bool:
        """Say whether it has to know how many tokens a call may use."""
        return self.budget.tokens is not None or self.budget.usd is not None

    def seconds(self, now: float) -> float:
        """Give the seconds since its first call, with those of earlier processes."""
        return self.earlier + (0.0 if self.started is None else now - self.started)

    def check(self, need: Need, now: float) -> None:
        """Raise BudgetExceeded for a call that is more than what is left."""
        seconds, limit = self.seconds(now), self.budget.seconds
        if limit is not None and seconds >= limit:
            way_out = "give more time"
            raise self._exceeded(
                "seconds", seconds, 0, limit, need, f"{seconds:.1f} s are used; {way_out}"
            )
        for kind, spent, held, wanted, most in self._limits(need.amount):
            if spent + held + wanted > most:
                unit = PICO if kind == "usd" else 1
                problem = _problem(kind, spent, held, need)
                raise self._exceeded(kind, spent / unit, held / unit, most / unit, need, problem)

    def _limits(self, need: Amount) -> Iterator[tuple[str, int, int, int, int]]:
        budget, spent, held = self.budget, self.spent, self.held
        if budget.calls is not None:
            yield "calls", spent.calls, held.calls, need.calls, budget.calls
        if budget.tokens is not None:
            yield "tokens", spent.tokens, held.tokens, need.tokens, budget.tokens
        if budget.usd is not None:
            yield "usd", spent.pico, held.pico, need.pico, round(budget.usd * PICO)

    def _exceeded(
        self, kind: str, spent: float, held: float, limit: float, need: Need, problem: str
    ) -> BudgetExceeded:
        whole = kind in ("calls", "tokens")
        return BudgetExceeded(
            self.path,
            kind=kind,
            spent=int(spent) if whole else spent,
            held=int(held) if whole else held,
            limit=int(limit) if whole else limit,
            keep=self.budget.on_exhausted == "keep",
            problem=f"the budget of {self.path or 'the run'}, {shown(kind, limit)}, does not "
            f"suffice for the call at {need.path}: {problem}",
        )


def shown(kind: str, amount: float) -> str:
    """Give an amount with its unit: `12 calls`, `3,000 tokens`, `0.5 USD`, `60 s`."""
    if kind == "usd":
        return f"{amount:.9f}".rstrip("0").rstrip(".") + " USD"
    if kind == "seconds":
        return f"{amount:g} s"
    return f"{int(amount):,} {kind if amount != 1 else kind[:-1]}"


def busy_seconds(times: Iterable[tuple[float, float]]) -> float:
    """Give for how long at least one of several calls was under way.

    One that ended before it started, since the clock was set back, took no time.
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(times):
        if end > max(start, until):
            total += end - max(start, until)
            until = end
    return total


def _problem(kind: str, spent: int, held: int, need: Need) -> str:
    unit = PICO if kind == "usd" else 1
    parts = [f"{shown(kind, spent / unit)} spent"]
    if held:
        parts.append(f"{shown(kind, held / unit)} held for calls in flight")
    if kind == "calls":
        return f"{' and '.join(parts)}; raise the budget"
    wanted = need.amount.pico / PICO if kind == "usd" else need.amount.tokens
    prompt = need.amount.tokens - need.output
    parts.append(
        f"it may use {shown(kind, wanted)} (at most {prompt:,} tokens of prompt and "
        f"{need.output:,} of answer)"
    )
    fewer = ", fewer calls at once" if held else ""
    return f"{', '.join(parts)}; raise the budget, or set a lower max_tokens{fewer}"
