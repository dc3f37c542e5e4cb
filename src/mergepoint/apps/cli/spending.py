"""Spending: budgets and prices as the command takes them, and what a run used as a tree."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.output import money
from mergepoint.core.errors import TreeError
from mergepoint.tree.budget import Budget, as_budget

if TYPE_CHECKING:
    from mergepoint.models.prices import Price
    from mergepoint.record.usage import Usage

_WHOLE_TREE = 12  # paths up to which a tree is shown whole
_LEVELS = 2


def read_budget(given: Sequence[str]) -> Budget | None:
    """Give the budget of `KIND=LIMIT` options, None where there is none.

    Raises CommandError that lists everything that is wrong with them.
    """
    if not given:
        return None
    limits: dict[str, Any] = {}
    for option in given:
        kind, separator, limit = option.partition("=")
        if not separator:
            raise CommandError(f"--budget {option!r}: write KIND=LIMIT, such as usd=0.50")
        if kind in limits:
            raise CommandError(f"--budget {kind} is given twice")
        limits[kind] = _number(limit)
    try:
        return as_budget(limits)
    except TreeError as error:
        problems = "; ".join(fault.problem for fault in error.faults)
        raise CommandError(f"--budget: {problems}") from error


def read_prices(given: Sequence[str]) -> dict[str, Price]:
    """Give the prices of `PROVIDER:NAME=IN,OUT` options. Raises CommandError."""
    return dict(_price(option) for option in given)


def _price(option: str) -> tuple[str, Price]:
    from mergepoint.models.prices import Price

    model, _, rates = option.rpartition("=")
    amounts = [_number(rate) for rate in rates.split(",")]
    way_out = "write PROVIDER:NAME=IN,OUT in USD a million tokens, such as openai:qwen3=0.25,2"
    if not model or len(amounts) != 2:
        raise CommandError(f"--price {option!r}: {way_out}")
    try:
        return model, Price(*amounts)
    except TreeError as error:
        raise CommandError(f"--price {option!r}: {error}; {way_out}") from error


def _number(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def usage_rows(used: Mapping[str, Usage]) -> list[str]:
    """Give the lines of a tree of what was used; parents add up.

    A large tree is shown down to its second level.
    """
    shown = dict(used)
    if len(used) > _WHOLE_TREE:
        shown = {path: usage for path, usage in used.items() if path.count("/") < _LEVELS}
    root = min((path.count("/") for path in shown), default=0)
    labels = {path: "  " * (path.count("/") - root) + path.rpartition("/")[2] for path in shown}
    cells = [
        (labels[path], f"{usage.calls:,}", f"{usage.total_tokens:,}", cost_of(usage))
        for path, usage in shown.items()
    ]
    cells.insert(0, ("", "calls", "tokens", "cost"))
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    rows = [
        f"{label:<{widths[0]}}  {calls:>{widths[1]}}  {tokens:>{widths[2]}}  {cost}".rstrip()
        for label, calls, tokens, cost in cells
    ]
    if hidden := len(used) - len(shown):
        rows.append(f"({hidden:,} more below, in the transcript)")
    return rows


def cost_of(usage: Usage) -> str:
    """Give a cost, with a word where it is not all known."""
    if usage.known_cost is None:
        return "unknown"
    notes = []
    if usage.estimated:
        notes.append(f"{usage.estimated:,} estimated")
    if usage.unknown_cost_calls:
        notes.append(f"{usage.unknown_cost_calls:,} unknown")
    return money(usage.cost) + (f" ({', '.join(notes)})" if notes else "")
