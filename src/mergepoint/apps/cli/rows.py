"""Rows: which parts of a tree are shown, so that they fit a number of lines.

A tree that fits is shown whole. Of a larger one the parts that are done or waiting are one line
each, and what runs or failed is open. Where even that is too much, those of a block that have
come equally far share a line, and at last the lines far from the running call are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mergepoint.apps.cli.watch import Part, Phase

_LIMITS = (math.inf, 12, 6, 3)
_ORDER: tuple[Phase, ...] = ("done", "failed", "running", "left out", "waiting")


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a part, or a text that stands for several; `guide` draws the branches."""

    guide: str
    phase: Phase
    part: Part | None = None
    text: str = ""


def rows_for(root: Part, room: int) -> list[Row]:
    """Give the lines of a tree, at most `room` of them (at least one)."""
    room = max(1, room)
    whole = _take(_opened(root, "", math.inf, compact=False), room + 1)
    if len(whole) <= room:
        return whole
    rows: list[Row] = []
    for limit in _LIMITS:
        rows = list(_opened(root, "", limit, compact=True))
        if len(rows) <= room:
            return rows
    return _around(rows, room)


def _take(rows: Iterator[Row], count: int) -> list[Row]:
    return [row for row, _ in zip(rows, range(count), strict=False)]


def _opened(part: Part, guide: str, limit: float, *, compact: bool) -> Iterator[Row]:
    """Give the row of a part that is open, and the rows below it."""
    yield Row(guide, part.phase, part)
    inner = guide.replace("├─ ", "│  ").replace("└─ ", "   ")
    items = _items(part.parts, limit)
    for number, item in enumerate(items, start=1):
        branch = inner + ("└─ " if number == len(items) else "├─ ")
        if not isinstance(item, Part):
            yield Row(branch, item[0], text=item[1])
        elif compact and item.phase in ("done", "left out", "waiting"):
            yield Row(branch, item.phase, item)
        else:
            yield from _opened(item, branch, limit, compact=compact)


def _items(parts: Sequence[Part], limit: float) -> list[Part | tuple[Phase, str]]:
    """Give the parts; of more than the limit, some of each phase and a text for the others.

    Of those that are done the last are shown, of all others the first.
    """
    if len(parts) <= limit:
        return list(parts)
    items: list[Part | tuple[Phase, str]] = []
    shown = max(1, int(limit) // 3)
    for phase in _ORDER:
        alike = [part for part in parts if part.phase == phase]
        if len(alike) <= shown + 1:
            items += alike
            continue
        rest = (phase, f"{len(alike) - shown:,} more {phase}")
        items += [rest, *alike[-shown:]] if phase == "done" else [*alike[:shown], rest]
    return items


def _around(rows: list[Row], room: int) -> list[Row]:
    """Give the rows near the call that failed or runs, with a word for those left out."""
    if room < 3:
        return rows[:room]
    start = min(max(0, _focus(rows) - room // 2), len(rows) - room)
    shown = rows[start : start + room]
    if start:
        shown[0] = Row("", "waiting", text=f"{start + 1:,} lines above")
    if below := len(rows) - start - room:
        shown[-1] = Row("", "waiting", text=f"{below + 1:,} lines below")
    return shown


def _focus(rows: Sequence[Row]) -> int:
    """Give the number of the row to look at: the failure deepest down, else what runs first."""
    failed = [number for number, row in enumerate(rows) if row.phase == "failed"]
    running = [n for n, row in enumerate(rows) if row.part and _is_running_call(row.part)]
    return (failed[-1:] or running[:1] or [0])[0]


def _is_running_call(part: Part) -> bool:
    return not part.parts and part.phase == "running"
