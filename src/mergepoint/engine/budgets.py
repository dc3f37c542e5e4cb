"""Budgets of a tree, and the budget ledger of each of its runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mergepoint.core.errors import BudgetExceeded, TreeError
from mergepoint.core.paths import SEPARATOR, ancestors, join
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.run_constants import Facts
from mergepoint.journal.call_records import CallRecord
from mergepoint.models.budget import BudgetLedger, BudgetSource, CallShape, NestedBudget, unpriced
from mergepoint.models.pricing import Price, Prices
from mergepoint.tree.nodes import Block, Loop, Node, Order, walk
from mergepoint.tree.policy import Budget, as_budget

_MOST_LEDGERS = 10_000  # runs of one graph whose spending is remembered


class Spending:
    """Budgets and prices that all runs of a tree share, with the shapes of its calls.

    The budget of a run's recorder grants the run's calls. If the recorder has none, the run gets a
    ledger here. A resumed run finds its ledger again by its id. A run inside a Call also gets a
    ledger if the tree has budgets. Then both must grant a call.

    Raises TreeError for an invalid budget or invalid prices.
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
        self._ledgers: OrderedDict[tuple[str, str, str], BudgetLedger] = OrderedDict()
        self.unlimited = BudgetLedger(prices=self._prices)

    @contextmanager
    def waiting(self, facts: Facts, recorders: Sequence[Recorder]) -> Iterator[None]:
        """Stop the clock of a run's budgets while the run waits for a person.

        If the run ends without an answer, the clock stays stopped until the next call.
        """
        source = self.source_for(facts, recorders)
        if not isinstance(source, BudgetLedger | NestedBudget):
            yield
            return
        try:
            with source.pause():
                yield
        except BaseException:
            # The person may answer much later, in another process.
            source.rest()
            raise

    @property
    def limited(self) -> bool:
        """Return whether there is any budget."""
        return self._run is not None or bool(self._budgets)

    def keeps(self, path: str) -> bool:
        """Return whether a node may have to continue without some of its children."""
        budgets = [self._budgets.get(path), self._run if path == self._root else None]
        return any(budget is not None and budget.on_exhausted == "keep" for budget in budgets)

    def continues_without(self, error: BudgetExceeded, within: str) -> bool:
        """Return whether a node continues without the call that exceeded its budget.

        Only blocks and loops can skip children. `within` is the path of the Call around the run,
        blank if there is none.
        """
        at = _below(error.path, within)
        return error.keep and at is not None and self._static(at) in self._around

    def set_budgets(self, tree: Node, path: str, shapes: Mapping[str, CallShape]) -> None:
        """Set the budgets of a tree and the shapes of its steps' calls.

        Raises TreeError that lists every step under a budget in USD whose model has no price.
        """
        self._root = path
        self._budgets = budgets_of(tree, path)
        self._shapes = dict(shapes)
        around = (at for at, node in walk(tree, path) if isinstance(node, Block | Loop))
        self._around = frozenset(around)
        self._static = Order(tree, path).static
        faults = [
            unpriced(at, model, budget)
            for at, shape in self._shapes.items()
            for model in (shape.model, *shape.others)
            if (budget := self._in_usd(at)) is not None and self._prices.of(model) is None
        ]
        if faults:
            raise TreeError(faults)

    def ledger(self, records: Iterable[CallRecord] = (), *, within: str = "") -> BudgetLedger:
        """Return the ledger of one run, which counts the records that the run already has.

        `within` is the path of the Call around the run, blank if there is none.
        """

        # Budgets are declared by static path, in which every iteration is `iteration_01`.
        def known(of: Mapping[str, Any], path: str) -> Any:
            at = _below(path, within)
            return None if at is None else of.get(self._static(at))

        ledger = BudgetLedger(
            lambda at: known(self._budgets, at),
            run=self._run,
            root=join(within, self._root) if within else self._root,
            prices=self._prices,
            shape_at=lambda at: known(self._shapes, at),
        )
        return ledger.prime(records)

    def source_for(self, facts: Facts, recorders: Sequence[Recorder]) -> BudgetSource:
        """Return the budget source that grants the calls of a run."""
        limited = self._run is not None or bool(self._budgets)
        around: BudgetSource | None = None
        for recorder in recorders:
            around = recorder.budget if around is None else around
        if around is not None and not (facts.within and limited):
            return around
        if not limited:
            return self.unlimited
        # Inside a Call, the tree's budgets and the one around the Call must both grant each call.
        own = self._own(facts, recorders)
        return own if around is None else NestedBudget(own, around)

    def _own(self, facts: Facts, recorders: Sequence[Recorder]) -> BudgetLedger:
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
            if len(self._ledgers) > _MOST_LEDGERS:
                self._ledgers.popitem(last=False)
        return ledger

    def _in_usd(self, path: str) -> str | None:
        """Return the path of a budget in USD above a step, or None."""
        for at in (path, *ancestors(path)):
            budget = self._budgets.get(at)
            if budget is not None and budget.usd is not None:
                return at
        return self._root if self._run is not None and self._run.usd is not None else None


def budgets_of(tree: Node, path: str) -> dict[str, Budget]:
    """Return the budgets that nodes declare, by path."""
    found: dict[str, Budget] = {}
    for at, node in walk(tree, path):
        policy = getattr(node, "policy", None)
        given = getattr(node, "budget", None) or getattr(policy, "budget", None)
        budget = as_budget(given)
        if budget is not None:
            found[at] = budget
    return found


def _below(path: str, within: str) -> str | None:
    """Return a path relative to a Call, None for a path outside it."""
    if not within:
        return path
    start = within + SEPARATOR
    return path.removeprefix(start) if path.startswith(start) else None
