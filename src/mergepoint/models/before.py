"""Before: calls that are on record when a run goes on, as budgets count them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mergepoint.models.account import Account, Amount, busy_seconds


class Before(NamedTuple):
    """A call on record: where, what it used, and from when to when."""

    path: str
    amount: Amount
    span: tuple[float, float]


def by_path(calls: Iterable[Before]) -> list[Before]:
    """Give calls in the order in which `below` finds them."""
    return sorted(calls, key=_path)


def below(calls: Sequence[Before], path: str) -> Sequence[Before]:
    """Give the calls below a path, of all by path. They lie together: `0` comes after `/`."""
    start, end = (bisect_left(calls, f"{path}{mark}", key=_path) for mark in "/0")
    return calls[start:end]


def take_over(account: Account, calls: Iterable[Before]) -> None:
    """Count calls in an account that has none yet."""
    counted = list(calls)
    for one in counted:
        account.spent = account.spent.plus(one.amount)
    account.earlier = busy_seconds(one.span for one in counted)


def _path(call: Before) -> str:
    return call.path
