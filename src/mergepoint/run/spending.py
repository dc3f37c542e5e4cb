"""Spending: the budgets of a tree, and the purse of each run of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mergepoint.core.errors import BudgetExceeded, TreeError
from mergepoint.core.path import SEPARATOR, ancestors, join
from mergepoint.models.bound import CallShape
from mergepoint.models.inner_purse import InnerPurse
from mergepoint.models.ledger import Ledger, unpriced
from mergepoint.models.prices import Price, Prices
from mergepoint.models.purse import Purse
from mergepoint.record.record import CallRecord
from mergepoint.run.facts import Facts
from mergepoint.run.recorder import Recorder
from mergepoint.tree.block import Block
from mergepoint.tree.budget import Budget, as_budget
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, Order, walk

_KEPT = 10_000  # runs of one graph whose spending is remembered


class Spending:
    """What the calls of one tree share: budgets, prices, what is known of each call beforehand.

    A run's calls are granted by the purse of its recorder. Where that has none, the run gets a
    ledger of its own here, under its id, which is found again when the run goes on. So does a run
    inside of a Call where the tree has budgets; then both have to grant a call.

    Raises TreeError for a budget or prices that are none.
    """

    def __init__(
        self,
        budget: Budget | Mapping[str, Any] | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._run = as_budget(budget)
        self._prices = Prices(prices)
        self._budgets: dict[str, Budget] = {}
        self._shapes: dict[str, CallShape] = {}
        self._root = ""
        self._static: Callable[[str], str] = str
        self._around: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._ledgers: OrderedDict[tuple[str, str, str], Ledger] = OrderedDict()
        self.unlimited = Ledger(prices=self._prices)

    @contextmanager
    def waiting(self, facts: Facts, recorders: Sequence[Recorder]) -> Iterator[None]:
        """Stop the clock of a run's budgets while a person is waited for.

        Where the run ends since nobody is there, it stands still until the next call is asked for.
        """
        purse = self.purse(facts, recorders)
        if not isinstance(purse, Ledger | InnerPurse):
            yield
            return
        try:
            with purse.pause():
                yield
        except BaseException:
            purse.rest()
            raise

    @property
    def limited(self) -> bool:
        """Say whether there is any budget."""
        return self._run is not None or bool(self._budgets)

    def keeps(self, path: str) -> bool:
        """Say whether a node may have to go on without some of its children."""
        budgets = [self._budgets.get(path), self._run if path == self._root else None]
        return any(budget is not None and budget.on_exhausted == "keep" for budget in budgets)

    def goes_on(self, error: BudgetExceeded, within: str) -> bool:
        """Say whether a node goes on without the call that its budget did not suffice for.

        Only blocks and loops have children that can be left out. `within` is the path of the Call
        that the run is inside of, if it is.
        """
        at = _below(error.path, within)
        return error.keep and at is not None and self._static(at) in self._around

    def governs(self, tree: Node, path: str, shapes: Mapping[str, CallShape]) -> None:
        """Take over a tree's budgets, and what is known of its steps' calls.

        Raises TreeError that lists every step under a budget in USD whose model has no price.
        """
        self._root = path
        self._budgets = budgets_of(tree, path)
        self._shapes = dict(shapes)
        around = (at for at, node in walk(tree, path) if isinstance(node, Block | Loop))
        self._around = frozenset(around)
        self._static = Order(tree, path).static
        faults = [
            unpriced(at, shape.model, budget)
            for at, shape in self._shapes.items()
            if (budget := self._in_usd(at)) is not None and self._prices.of(shape.model) is None
        ]
        if faults:
            raise TreeError(faults)

    def ledger(self, records: Iterable[CallRecord] = (), *, within: str = "") -> Ledger:
        """Give the ledger of one run; the run's records that there are already count.

        `within` is the path of the Call that the run is inside of, if it is.
        """

        def known(of: Mapping[str, Any], path: str) -> Any:
            at = _below(path, within)
            return None if at is None else of.get(self._static(at))

        ledger = Ledger(
            lambda at: known(self._budgets, at),
            run=self._run,
            root=join(within, self._root) if within else self._root,
            prices=self._prices,
            shape_at=lambda at: known(self._shapes, at),
        )
        return ledger.prime(records)

    def purse(self, facts: Facts, recorders: Sequence[Recorder]) -> Purse:
        """Give who grants the calls of a run."""
        around = next((one.purse for one in recorders if one.purse is not None), None)
        if around is not None and not (facts.within and self.limited):
            return around
        if not self.limited:
            return self.unlimited
        own = self._own(facts, recorders)
        return own if around is None else InnerPurse(own, around)

    def _own(self, facts: Facts, recorders: Sequence[Recorder]) -> Ledger:
        key = (facts.run, facts.host, facts.within)
        with self._lock:
            ledger = self._ledgers.get(key)
            if ledger is None:
                records = recorders[0].journal.records if recorders else ()
                ledger = self._ledgers[key] = self.ledger(
                    (
                        record
                        for record in records
                        if (record.key.run, record.key.host) == key[:2]
                        and _below(record.path, facts.within) is not None
                    ),
                    within=facts.within,
                )
            self._ledgers.move_to_end(key)
            if len(self._ledgers) > _KEPT:
                self._ledgers.popitem(last=False)
        return ledger

    def _in_usd(self, path: str) -> str | None:
        """Give the path of a budget in USD above a step; None where there is none."""
        for at in (path, *ancestors(path)):
            budget = self._budgets.get(at)
            if budget is not None and budget.usd is not None:
                return at
        return self._root if self._run is not None and self._run.usd is not None else None


def budgets_of(tree: Node, path: str) -> dict[str, Budget]:
    """Give the budgets that nodes declare, by path."""
    found: dict[str, Budget] = {}
    for at, node in walk(tree, path):
        policy = getattr(node, "policy", None)
        given = getattr(node, "budget", None) or getattr(policy, "budget", None)
        budget = as_budget(given)
        if budget is not None:
            found[at] = budget
    return found


def _below(path: str, within: str) -> str | None:
    """Give a path as the tree inside of a Call has it; None for one that is not in there."""
    if not within:
        return path
    start = within + SEPARATOR
    return path.removeprefix(start) if path.startswith(start) else None
