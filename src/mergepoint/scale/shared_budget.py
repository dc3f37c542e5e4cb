"""The budget of a batch, which all of its workers share."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mergepoint.core.errors import BudgetExceeded, RailError, TreeError
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.models.budget import BudgetLedger, unpriced
from mergepoint.models.budget_account import (
    NOTHING,
    Amount,
    BudgetAccount,
    CallEstimate,
    LedgerReservation,
)
from mergepoint.models.call_limits import CallRequest
from mergepoint.models.pricing import PICO, Prices
from mergepoint.scale.budget_rows import BudgetRow, BudgetRows, BudgetUsage, RunSpending
from mergepoint.tree.policy import Budget

# One thread of a worker writes for all of its runs. What has come in since its last transaction is
# one transaction: it locks the batch's row, so that no two workers decide at the same time.

_TRIES = 60.0  # seconds in which a database may come back
_PAUSE = 0.5  # seconds between two tries
PATIENCE = 30.0
"""Seconds that a call waits for amounts that are reserved for others, if none of them changes."""


class BatchBudgetExceeded(BudgetExceeded):
    """The budget of a batch has no room for another call: the batch takes no further inputs."""

    def __reduce__(self) -> tuple[Any, ...]:
        _, (path, facts, problem), state = super().__reduce__()
        return _batch_budget_exceeded, (path, facts, problem), state


def _batch_budget_exceeded(path: str, facts: dict[str, Any], problem: str) -> BudgetExceeded:
    return BatchBudgetExceeded(path, **facts, problem=problem)


class RunTakenOver(RailError):
    """A run that another worker has resumed in the meantime; this one must not continue it."""


@dataclass(slots=True, eq=False)
class RunShare:
    """The part of the budget that one run has used, in this process."""

    run: str
    earlier: Amount = NOTHING
    epoch: int = 0
    usage: BudgetUsage = field(default_factory=BudgetUsage)


@dataclass(slots=True, eq=False)
class _Change:
    """One change of a share: `need` is granted if there is room, `release` and `spend` always are.

    `began` is a share that begins here; its row takes the place of what an earlier process left.
    """

    share: RunShare
    need: CallEstimate | None = None
    release: Amount = NOTHING
    spend: Amount = NOTHING
    began: bool = False
    done: Future[None] = field(default_factory=Future)
    seen: BudgetUsage | None = None
    since: float = 0.0


class SharedBudget:
    """Grants calls of all runs of a batch. Safe to use from several threads.

    Args:
        budget: The limits, in USD, tokens and calls.
        batch: The batch.
        at: None for this process, the path of an SQLite file for the processes of one machine, or a
            postgresql:// URL for several machines.

    Raises:
        ValueError: The budget is in seconds, which a batch doesn't count.
    """

    def __init__(self, budget: Budget, *, batch: str, at: str | None = None) -> None:
        if budget.seconds is not None or budget.on_exhausted != "raise":
            raise ValueError(
                "the budget of a batch has usd, tokens and calls, and neither seconds nor "
                "on_exhausted; set those on the run or on a node"
            )
        self.budget = budget
        self.name = f"batch {batch}"
        self._batch = batch
        self._at = at
        self._rows: BudgetRows | None = None
        self._changed = threading.Condition()
        self._waiting: deque[_Change] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Open the place, and set the limits of the batch to those of this budget.

        Raises JournalError if the place can't be opened.
        """
        pico = None if self.budget.usd is None else round(self.budget.usd * PICO)
        self._rows = BudgetRows(self._batch, self._at)
        self._rows.set_limits((self.budget.calls, self.budget.tokens, pico))
        self._thread = threading.Thread(target=self._run, name="mergepoint-budget", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what was settled, refuse what still waits, and close the place."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._rows is not None:
            self._rows.close()

    def begin(
        self, run: str, records: Iterable[CallRecord] = (), prices: Prices | None = None
    ) -> tuple[RunShare, Future[None]]:
        """Begin the part of a run, or take it over from a worker that ended without a word.

        What that worker had reserved is given back, and the calls in the run's journal count as
        used, as do those that were in progress at its end.
        """
        share = RunShare(run, used_by(records, prices))
        return share, self._submit(_Change(share, began=True))

    def reserve(
        self, share: RunShare, request: CallRequest
    ) -> tuple[LedgerReservation, Future[None]]:
        """Reserve the most that a call can use.

        The future raises BatchBudgetExceeded without room. Cancel it to stop waiting. Raises
        TreeError for a model without a price, if the budget is in USD.
        """
        estimate, price = request.at_most()
        if price is None and self.budget.usd is not None:
            raise TreeError([unpriced(request.key.path, request.model, self.name)])
        account = BudgetAccount(self.name, self.budget)
        need = estimate.amount if account.counts_tokens else Amount(calls=1)
        change = _Change(share, need=estimate._replace(amount=need))
        reservation = LedgerReservation(
            partial(self._settled, share), (account,), price, need, lambda: estimate
        )
        return reservation, self._submit(change)

    def finish(self, share: RunShare) -> Future[None]:
        """Return a future of the moment at which all changes of a run are written."""
        return self._submit(_Change(share))

    def _settled(
        self, share: RunShare, chain: tuple[BudgetAccount, ...], held: Amount, used: Amount
    ) -> None:
        self._submit(_Change(share, release=held, spend=used))

    def _submit(self, change: _Change) -> Future[None]:
        with self._changed:
            self._waiting.append(change)
            self._changed.notify_all()
        return change.done

    def _run(self) -> None:
        blocked: list[_Change] = []
        while True:
            with self._changed:
                if not (self._waiting or self._closing):
                    self._changed.wait(_PAUSE if blocked else None)
                closing = self._closing
                changes = [*self._waiting]
                self._waiting.clear()
            # Those that wait for room come last: what is settled now may make it.
            blocked = self._applied([*changes, *blocked], closing=closing)
            if closing:
                return

    def _applied(self, changes: list[_Change], *, closing: bool) -> list[_Change]:
        """Apply changes, and return those that wait for amounts reserved for others."""
        changes = [one for one in changes if not (one.need and one.done.cancelled())]
        until = time.monotonic() + (0.0 if closing else _TRIES)
        while changes:
            try:
                return self._apply(changes, closing=closing)
            except Exception as error:  # noqa: BLE001  (raised where the changes are awaited)
                if time.monotonic() >= until:
                    for one in changes:
                        _end(one, error)
                    return []
                time.sleep(_PAUSE)
        return []

    def _apply(self, changes: list[_Change], *, closing: bool) -> list[_Change]:
        assert self._rows is not None  # noqa: S101
        rows = self._rows
        ended: list[tuple[_Change, BaseException | None]] = []
        blocked: list[_Change] = []
        with rows.locked() as execute:
            row = rows.read(execute)
            ids = {one.share.run for one in changes}
            state = _State(self.name, row, rows.read_runs(execute, ids))
            for one in changes:
                if one.began:
                    state.begin(one.share)
                elif not state.owned(one.share):
                    ended.append((one, _taken_over(one.share)))
                    continue
                elif one.need is not None and (refusal := state.refusal(one.need)) is not None:
                    if state.may_have_room(one.need) and _is_patient(
                        one, state.total, closing=closing
                    ):
                        blocked.append(one)
                    else:
                        ended.append((one, refusal))
                    continue
                state.change(one)
                ended.append((one, None))
            if any(error is None for _, error in ended):
                rows.write(execute, state.total, state.rows())
        state.commit()
        for one, error in ended:
            if not _end(one, error) and error is None and one.need is not None:
                # Cancelled at the moment at which it was granted.
                self._submit(_Change(one.share, release=one.need.amount))
        return blocked


class _State:
    """The rows of a batch within one transaction."""

    def __init__(self, name: str, row: BudgetRow, runs: Mapping[str, RunSpending]) -> None:
        self.total = row.usage
        self._most = row.most
        self._runs = runs
        self._account = BudgetAccount(name, _limits_of(row))
        self._shares: dict[str, tuple[RunShare, int, BudgetUsage]] = {}

    def begin(self, share: RunShare) -> None:
        """Begin a share: nothing is reserved, and its journal says what is spent."""
        known = self._runs.get(share.run, RunSpending(0, BudgetUsage()))
        if share.run in self._shares:
            known = RunSpending(*self._shares[share.run][1:])
        # What was settled counts even if the process ended before its record was written.
        spent = Amount(*map(max, known.usage.spent, share.earlier))
        self.total = self.total.minus(known.usage).plus(BudgetUsage(spent))
        self._shares[share.run] = share, known.epoch + 1, BudgetUsage(spent)

    def owned(self, share: RunShare) -> bool:
        """Return whether a share is still that of its run, and not that of a later worker."""
        if share.run in self._shares:
            return self._shares[share.run][0] is share
        known = self._runs.get(share.run)
        if known is None or known.epoch != share.epoch:
            return False
        # They differ if a transaction was committed, but its answer was lost. It is made again.
        self.total = self.total.minus(known.usage).plus(share.usage)
        self._shares[share.run] = share, share.epoch, share.usage
        return True

    def refusal(self, need: CallEstimate) -> BatchBudgetExceeded | None:
        """Return the error of a call for which there is no room now, or None."""
        self._account.spent, self._account.held = self.total
        try:
            self._account.check(need, 0.0)
        except BudgetExceeded as error:
            _, (path, facts, problem), _ = error.__reduce__()
            return BatchBudgetExceeded(path, **facts, problem=problem)
        return None

    def may_have_room(self, need: CallEstimate) -> bool:
        """Return whether there may be room once the calls in progress have ended."""
        # A call that is in progress stays a call. It only seldom uses all tokens that it reserved.
        after = self.total.spent.plus(need.amount).plus(Amount(self.total.held.calls))
        return all(most is None or one <= most for one, most in zip(after, self._most, strict=True))

    def change(self, change: _Change) -> None:
        """Apply a change that is granted."""
        held = NOTHING if change.need is None else change.need.amount
        more = BudgetUsage(change.spend, held.minus(change.release))
        share, epoch, usage = self._shares[change.share.run]
        self._shares[share.run] = share, epoch, usage.plus(more)
        self.total = self.total.plus(more)

    def rows(self) -> dict[str, RunSpending]:
        """Return the rows to write."""
        return {run: RunSpending(epoch, usage) for run, (_, epoch, usage) in self._shares.items()}

    def commit(self) -> None:
        """Note in the shares what was written."""
        for share, epoch, usage in self._shares.values():
            share.epoch, share.usage = epoch, usage


def usage_of(batch: str, at: str) -> BudgetUsage:
    """Return the usage of all workers of a batch. Raises JournalError if it has no budget there."""
    rows = BudgetRows(batch, at)
    try:
        with rows.locked() as execute:
            return rows.read(execute).usage
    finally:
        rows.close()


def used_by(records: Iterable[CallRecord], prices: Prices | None = None) -> Amount:
    """Return the usage of the calls in the journal of a run whose process has ended."""
    ledger = BudgetLedger(run=Budget(), prices=prices)
    return ledger.prime(outcomes(records)).spent()


def _limits_of(row: BudgetRow) -> Budget:
    """Return the limits in the row: another worker may have been started with larger ones."""
    calls, tokens, pico = row.most
    return Budget(None if pico is None else pico / PICO, tokens=tokens, calls=calls)


def _is_patient(change: _Change, total: BudgetUsage, *, closing: bool) -> bool:
    """Return whether a call still waits: something has changed since it last looked."""
    now = time.monotonic()
    if change.seen != total:
        change.seen, change.since = total, now
    return not closing and now - change.since < PATIENCE


def _end(change: _Change, error: BaseException | None) -> bool:
    """Notify the caller; return False if it has stopped waiting."""
    if not change.done.set_running_or_notify_cancel():
        return False
    if error is None:
        change.done.set_result(None)
    else:
        change.done.set_exception(error)
    return True


def _taken_over(share: RunShare) -> RunTakenOver:
    return RunTakenOver(
        f"run {share.run!r} was resumed by another worker, because this one seemed to have ended; "
        "its calls count there, and this worker makes no more of them"
    )
