"""The limits of a batch: rate limits and a budget, for all runs of all workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from langchain_core.messages import AIMessage

from mergepoint.core.errors import RailError
from mergepoint.journal.call_records import CallRecord, sound_usage
from mergepoint.models.budget_account import LedgerReservation, tokens_of
from mergepoint.models.call_limits import CallRequest, shared_limits
from mergepoint.models.pricing import Prices
from mergepoint.models.timeouts import CHECK
from mergepoint.scale.rate_limits import (
    Permission,
    RateLimiter,
    RateLimits,
    estimated_tokens,
    rate_limits_of,
)
from mergepoint.scale.shared_budget import RunShare, SharedBudget
from mergepoint.tree.policy import Budget, as_budget

T = TypeVar("T")

_NAMES = ("requests_per_minute", "tokens_per_minute", "window", "margin", "budget", "at")


def open_limits(limits: Mapping[str, Any] | None, *, batch: str) -> BatchLimits | None:
    """Return the limits of a batch for one worker, or None if there are none.

    Use them as an async context manager, which opens and closes their place. Each run of a member
    of the batch is made inside `BatchLimits.run`.

    Args:
        limits: `requests_per_minute`, `tokens_per_minute`; `budget`, a Budget or a mapping of
            `usd`, `tokens` and `calls`; `at`, the place that all workers share: None for this
            process, the path of an SQLite file for the processes of one machine, or a postgresql://
            URL for several machines. `window` and `margin` replace the seconds of RateLimits.
        batch: The id of the batch, whose budget it is.

    Raises:
        ValueError: A limit is invalid, or has an unknown name.
    """
    given = dict(limits or {})
    if unknown := sorted(given.keys() - set(_NAMES)):
        raise ValueError(f"a batch has no limit {unknown[0]!r}; use one of {', '.join(_NAMES)}")
    rates = rate_limits_of(given)
    budget = as_budget(given.get("budget"))
    if not rates.limited and budget is None:
        return None
    at = given.get("at")
    return BatchLimits(
        RateLimiter(rates, at) if rates.limited else None,
        None if budget is None else SharedBudget(budget, batch=batch, at=at),
    )


def member_budget(limits: Mapping[str, Any] | None, own: Any = None) -> Budget | None:
    """Return the budget for a member's own run: `own`, and in USD no more than the batch's.

    With a budget in USD, a run refuses a model without a price before its first call.
    """
    shared = as_budget((limits or {}).get("budget"))
    budget = as_budget(own)
    if shared is None or shared.usd is None:
        return budget
    if budget is None:
        return Budget(shared.usd)
    return budget if budget.usd is not None else replace(budget, usd=shared.usd)


class BatchLimits:
    """The rate limits and the budget of a batch, in one worker. Make it with `open_limits`."""

    def __init__(self, rates: RateLimiter | None, budget: SharedBudget | None) -> None:
        self._rates = rates
        self._budget = budget

    async def __aenter__(self) -> Self:
        opened = []
        try:
            for one in (self._rates, self._budget):
                if one is not None:
                    await asyncio.to_thread(one.open)
                    opened.append(one)
        except BaseException:
            for one in opened:
                await asyncio.to_thread(one.close)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (self._budget, self._rates):
            if one is not None:
                await asyncio.to_thread(one.close)

    @asynccontextmanager
    async def run(
        self, run: str, records: Iterable[CallRecord] = (), *, prices: Prices | None = None
    ) -> AsyncIterator[None]:
        """Apply the limits to the run inside `async with`.

        Args:
            run: The id of the run. A worker that takes it over takes over its part of the budget.
            records: The records of the run's journal if the run is resumed.
            prices: The prices of the run's models, for records without a cost.

        Raises:
            BatchBudgetExceeded: The budget refused a call of the run, even if the run ended with
                the results that it had.
            RequestTooLarge: A rate limit could never allow a call of the run.
            RunTakenOver: Another worker has resumed the run in the meantime.
        """
        share = None
        if self._budget is not None:
            share, begun = await asyncio.to_thread(self._budget.begin, run, records, prices)
            await _awaited(begun)
        limits = _RunLimits(self._rates, self._budget, share)
        try:
            with shared_limits(limits):
                yield
        finally:
            if self._budget is not None and share is not None:
                # A finished run isn't resumed, so nothing would give back what it left reserved.
                await _awaited(self._budget.finish(share))
        if limits.refused is not None:
            # A recipe ends with what it has when a limit stops it. In a batch it isn't finished.
            raise limits.refused


class _RunLimits:
    """The limits of a batch for one of its runs. CallLimits."""

    def __init__(
        self, rates: RateLimiter | None, budget: SharedBudget | None, share: RunShare | None
    ) -> None:
        self._rates = rates
        self._budget = budget
        self._share = share
        self.refused: RailError | None = None

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except RailError as error:
            self.refused = self.refused or error
            raise

    def admit(self, request: CallRequest, check: Callable[[], None]) -> _Permit:
        """Wait until an attempt may be sent."""
        permit = _Permit(self._rates, _tokens(request, self._rates))
        if self._budget is not None and self._share is not None:
            reservation, granted = self._budget.reserve(self._share, request)
            with self._noted():
                _waited(granted, check, lambda _: reservation.release())
            permit.reservation = reservation
        try:
            with self._noted():
                permit.renew(check)
        except BaseException:
            permit.release()
            raise
        return permit

    async def aadmit(self, request: CallRequest, check: Callable[[], None]) -> _Permit:
        """Wait as `admit` does, on an event loop."""
        permit = _Permit(self._rates, _tokens(request, self._rates))
        if self._budget is not None and self._share is not None:
            reservation, granted = self._budget.reserve(self._share, request)
            with self._noted():
                await _awaited(granted, check, lambda _: reservation.release())
            permit.reservation = reservation
        try:
            with self._noted():
                await permit.arenew(check)
        except BaseException:
            permit.release()
            raise
        return permit


class _Permit:
    """A part of the budget, and the permission to send. A CallPermit."""

    def __init__(self, rates: RateLimiter | None, tokens: int) -> None:
        self._rates = rates
        self._tokens = tokens
        self._permission: Permission | None = None
        self.reservation: LedgerReservation | None = None

    @property
    def counts_calls(self) -> bool:
        """Return whether a budget counts calls."""
        return self.reservation is not None and self.reservation.counts_calls

    @property
    def fresh(self) -> bool:
        """Return whether the attempt may be sent now."""
        if self._rates is None or self._permission is None:
            return self._rates is None
        return self._rates.fresh(self._permission)

    def renew(self, check: Callable[[], None]) -> None:
        """Wait for the permission to send."""
        while self._rates is not None and not self.fresh:
            self._give_back()
            asked = self._rates.ask(self._tokens)
            self._permission = _waited(asked, check, self._rates.release)

    async def arenew(self, check: Callable[[], None]) -> None:
        """Wait as `renew` does, on an event loop."""
        while self._rates is not None and not self.fresh:
            self._give_back()
            asked = self._rates.ask(self._tokens)
            self._permission = await _awaited(asked, check, self._rates.release)

    def release(self) -> None:
        """Return both; nothing was sent."""
        self._give_back()
        if self.reservation is not None:
            self.reservation.release()

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> None:
        """Replace the estimates by the actual usage, where it is known."""
        if self.reservation is not None:
            self.reservation.settle(message, error)
        usage = None if message is None else sound_usage(message.usage_metadata)
        if usage and self._rates is not None and self._permission is not None:
            self._rates.settle(self._permission, tokens_of(usage))

    def _give_back(self) -> None:
        permission, self._permission = self._permission, None
        if self._rates is not None and permission is not None:
            self._rates.release(permission)


def _tokens(request: CallRequest, rates: RateLimiter | None) -> int:
    """Return the tokens to reserve for a request; 0 if no limit counts them."""
    if rates is None or rates.limits.tokens_per_minute is None:
        return 0
    most, _ = request.at_most()
    return estimated_tokens(most.amount.tokens - most.output, most.output)


def _nothing() -> None:
    """Check nothing."""


def _waited(future: Future[T], check: Callable[[], None], undo: Callable[[T], object]) -> T:
    """Return a future's result; an exception cancels it, or undoes what it is about to grant."""
    try:
        while True:
            try:
                return future.result(CHECK)
            except TimeoutError:
                if future.done():
                    raise
                check()
    except BaseException:
        _give_up(future, undo)
        raise


async def _awaited(
    future: Future[T],
    check: Callable[[], None] = _nothing,
    undo: Callable[[T], object] = lambda _: None,
) -> T:
    """Return a future's result as `_waited` does, on an event loop."""
    waiting = asyncio.wrap_future(future)
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=CHECK)
            check()
        return waiting.result()
    except BaseException:
        waiting.cancel()
        _give_up(future, undo)
        raise


def _give_up(future: Future[T], undo: Callable[[T], object]) -> None:
    if not future.cancel():
        future.add_done_callback(partial(_undo, undo))


def _undo(undo: Callable[[T], object], future: Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        undo(future.result())


__all__ = ["BatchLimits", "RateLimits", "member_budget", "open_limits"]
