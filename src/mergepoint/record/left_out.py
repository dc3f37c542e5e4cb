"""Left out: calls that a budget did not suffice for, in a node that goes on without them."""

from __future__ import annotations

from dataclasses import replace

from mergepoint.core.errors import BudgetExceeded
from mergepoint.record.record import CallRecord, error_of

_FACTS = ("kind", "spent", "held", "limit")


def left_out(call: CallRecord, error: BudgetExceeded) -> CallRecord:
    """Give the record of a call that is not made, with what the budget said as its error.

    The error's `path` is that of the node that goes on without the call.
    """
    facts = {name: getattr(error, name) for name in _FACTS}
    told = {**error_of(error), "path": error.path, **facts}
    return replace(call, kind="left_out", error=told)


def exceeded(record: CallRecord) -> BudgetExceeded:
    """Give the error again by which a call was left out, so that the same node goes on."""
    told = record.error or {}
    facts = {name: told[name] for name in _FACTS}
    return BudgetExceeded(told["path"], **facts, problem=told["message"], keep=True)
