"""Ledger: the purse of a run, with budgets of its nodes one inside the other.

A call is granted only where every budget above it has room for the most that it may use, and all
of that is held back at once, under one lock, until the call is settled. So calls side by side
never spend the same money twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.path import ancestors
from mergepoint.models.account import Account, Amount, Need
from mergepoint.models.before import Before, below, by_path, take_over
from mergepoint.models.bound import OUTPUT_ESTIMATE, CallShape, output_at_most, prompt_at_most
from mergepoint.models.held import Held, tokens_of
from mergepoint.models.prices import PICO, Price, Prices
from mergepoint.models.stopwatch import Stopwatch
from mergepoint.record.record import CallKey, CallRecord
from mergepoint.tree.budget import Budget


class Ledger:
    """Grants the calls of one run, and knows what they cost. A Purse.

    `budgets` gives a node's budget by its path, `run` is the budget of the whole run, which
    errors name by the path `root`. `shape_at` tells by path what is known of a step's calls, so
    that a model's own max_tokens counts. Without any budget it grants everything, and prices it.

    `output_estimate` (tokens) stands for an answer whose length nothing limits. `clock` gives
    seconds that never go back.
    """

    def __init__(
        self,
        budgets: Mapping[str, Budget] | Callable[[str], Budget | None] | None = None,
        *,
        run: Budget | None = None,
        root: str = "",
        prices: Prices | None = None,
        shape_at: Callable[[str], CallShape | None] | None = None,
        output_estimate: int = OUTPUT_ESTIMATE,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._budget_at = budgets if callable(budgets) else dict(budgets or {}).get
        self._run = None if run is None else Account(root, run)
        self.prices = prices or Prices()
        self._shape_at = shape_at or (lambda path: None)
        self._estimate = output_estimate
        self._stopwatch = Stopwatch(clock or monotonic)
        self._lock = threading.Lock()
        self._accounts: dict[str, Account | None] = {}
        self._chains: dict[str, tuple[Account, ...]] = {}
        self._before: list[Before] = []

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Held:
        """Hold back what one attempt may use at most.

        Raises BudgetExceeded that names the innermost budget without room, and TreeError where a
        budget is in USD and the model has no price.
        """
        chain, price = self._chain(key.path), self.prices.of(model)

        def most() -> Need:
            return self._need(key.path, price, messages, params)

        if not chain:
            return Held(self.settled, chain, price, None, most)
        if price is None and (fault := _unpriced(chain, key.path, model)):
            raise TreeError([fault])
        counted = any(account.counts_tokens for account in chain)
        need = most() if counted else Need(key.path, Amount(calls=1))
        self._stopwatch.start()
        with self._lock:
            now = self._stopwatch.elapsed
            for account in chain:
                account.check(need, now)
            for account in chain:
                account.held = account.held.plus(need.amount)
                account.started = now if account.started is None else account.started
        return Held(self.settled, chain, price, need.amount, most)

    def charge(self, key: CallKey, model: str, message: AIMessage | None) -> float | None:
        """Charge a call that was made without asking; give its cost in USD, None where unknown.

        It may overdraw a budget; the next call is then refused.
        """
        price = self.prices.of(model)
        usage: Any = message.usage_metadata if message is not None else None
        known = price is not None and bool(usage)
        pico = price.cost(usage) if price is not None and usage else 0
        used = Amount(1, tokens_of(usage) if usage else 0, pico)
        self.settled(self._chain(key.path), Amount(), used)
        return pico / PICO if known else None

    def prime(self, records: Iterable[CallRecord]) -> Ledger:
        """Count calls that are on record already, such as those of a run that is resumed.

        What was replayed from another run costs nothing. A failed call whose cost is not on
        record counts as a call.
        """
        self._before = by_path(
            Before(record.path, self._recorded(record), (record.started, record.ended))
            for record in records
            if record.source == "live" and record.kind in ("step", "inner")
        )
        counted: dict[int, tuple[Account, list[Before]]] = {}
        for one in self._before:
            for account in self._above(one.path):
                counted.setdefault(id(account), (account, []))[1].append(one)
        for account, calls in counted.values():
            take_over(account, calls)
        return self

    def govern(self, budgets: Mapping[str, Budget]) -> None:
        """Hold calls to budgets, by path, that were not known when the run began.

        To be told before the first call below one of the paths. What was primed counts; a path
        that has a budget keeps it.
        """
        with self._lock:
            for path, budget in budgets.items():
                if self._accounts.get(path) is None:
                    account = self._accounts[path] = Account(path, budget)
                    take_over(account, below(self._before, path))

    def unpriced(
        self, path: str, model: str, budgets: Mapping[str, Budget] | None = None
    ) -> Fault | None:
        """Give the fault of calls below a budget in USD whose model has no price, or None.

        `budgets` are those, by path, that would hold for them beside the ones that are known.
        """
        if self.prices.of(model) is not None:
            return None
        more = budgets or {}
        own = [Account(at, more[at]) for at in (path, *ancestors(path)) if at in more]
        with self._lock:
            return _unpriced([*own, *self._above(path)], path, model)

    def pause(self) -> AbstractContextManager[None]:
        """Stop the clock of all budgets, while a person is waited for."""
        return self._stopwatch.pause()

    def rest(self) -> None:
        """Stop the clock of all budgets until the next call is asked for."""
        self._stopwatch.stop()

    def spent(self, path: str | None = None) -> Amount:
        """Give what is spent of the budget at a path; None is the run's.

        Raises LookupError where there is no budget.
        """
        account = self._run if path is None else self._account(path)
        if account is None:
            raise LookupError(f"no budget at {path or 'the run'}")
        with self._lock:
            return account.spent

    def settled(self, chain: tuple[Account, ...], held: Amount, used: Amount) -> None:
        """Put what was used in the place of what was held."""
        if chain:
            with self._lock:
                for account in chain:
                    account.held = account.held.minus(held)
                    account.spent = account.spent.plus(used)

    def _need(
        self,
        path: str,
        price: Price | None,
        messages: Sequence[BaseMessage],
        params: Mapping[str, Any],
    ) -> Need:
        shape = self._shape_at(path)
        prompt = prompt_at_most(messages, params, schema=shape.schema if shape else 0)
        output = output_at_most(params, shape, estimate=self._estimate)
        pico = 0 if price is None else price.at_most(prompt, output)
        return Need(path, Amount(1, prompt + output, pico), output)

    def _recorded(self, record: CallRecord) -> Amount:
        usage = record.usage
        cost = None if record.cost is None else round(record.cost * PICO)
        if usage is None:
            if not record.answered:
                return Amount(1, 0, cost or 0)
            shown = [*record.lead, *filter(None, [record.message])]
            need = self._need(record.path, self.prices.of(record.model), shown, record.params)
            return Amount(1, need.amount.tokens, need.amount.pico if cost is None else cost)
        price = self.prices.of(record.model)
        if cost is None:
            cost = 0 if price is None else price.cost(usage)
        return Amount(1, tokens_of(usage), cost)

    def _chain(self, path: str) -> tuple[Account, ...]:
        """Give the accounts above a call, the innermost first."""
        chain = self._chains.get(path)
        if chain is None:
            with self._lock:
                chain = self._chains[path] = self._above(path)
        return chain

    def _above(self, path: str) -> tuple[Account, ...]:
        own = (self._account(at) for at in (path, *ancestors(path)))
        return tuple(account for account in (*own, self._run) if account is not None)

    def _account(self, path: str) -> Account | None:
        if path not in self._accounts:
            budget = self._budget_at(path)
            self._accounts[path] = None if budget is None else Account(path, budget)
        return self._accounts[path]


def unpriced(path: str, model: str, budget: str) -> Fault:
    """Give the fault of a step under a budget in USD whose model has no price."""
    return Fault(
        path,
        f"the budget of {budget or 'the run'} is in USD, and no price of {model!r} is known; "
        f"declare it, in USD a million tokens: prices={{{model!r}: Price(input, output)}}",
    )


def _unpriced(chain: Iterable[Account], path: str, model: str) -> Fault | None:
    bound = next((account.path for account in chain if account.budget.usd is not None), None)
    return None if bound is None else unpriced(path, model, bound)
