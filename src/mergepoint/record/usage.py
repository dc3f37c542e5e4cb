"""Usage: what calls used, summed up by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mergepoint.core.path import ancestors
from mergepoint.record.record import CallRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Model calls, their tokens and their cost in USD; `+` joins two.

    `cost` sums what is known. `estimated` counts calls that the provider told no usage of, so
    that their cost is at most what stands here; `unknown_cost_calls` those without any cost, for
    want of a price or since they failed.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    estimated: int = 0
    unknown_cost_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        sums = {name: getattr(self, name) + getattr(other, name) for name in _NAMES}
        return Usage(**{**sums, "cost": round(sums["cost"], 12)})

    @classmethod
    def of(cls, record: CallRecord) -> Usage:
        """Give what a call used; nothing for what was replayed, and for what called no model."""
        if record.source != "live" or record.kind not in ("step", "inner"):
            return cls()
        usage = record.usage
        told = usage or {}
        return cls(
            calls=1,
            input_tokens=int(told.get("input_tokens") or 0),
            output_tokens=int(told.get("output_tokens") or 0),
            total_tokens=int(told.get("total_tokens") or 0),
            cost=record.cost or 0.0,
            estimated=int(record.answered and usage is None),
            unknown_cost_calls=int(record.cost is None),
        )

    @property
    def known_cost(self) -> float | None:
        """Give the cost in USD, None where no call's cost is known."""
        return None if self.calls == self.unknown_cost_calls else self.cost

    def to_json(self) -> dict[str, Any]:
        """Give the usage as JSON data."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Usage:
        """Give the usage back from its JSON."""
        return cls(**{name: data[name] for name in _NAMES})


_NAMES = tuple(known.name for known in fields(Usage))


def usage_of(records: Iterable[CallRecord]) -> Usage:
    """Give what all calls used together."""
    return sum((Usage.of(record) for record in records), Usage())


def usage_by_path(records: Iterable[CallRecord], order: Callable[[str], Any]) -> dict[str, Usage]:
    """Give for each path of a call, and each path above one, the sum of what is at it and below.

    So parents add up. Failed attempts count. `order` gives a key to sort the paths by.
    """
    sums: dict[str, Usage] = {}
    for record in records:
        used = Usage.of(record)
        if used.calls:
            for path in (*reversed(ancestors(record.path)), record.path):
                sums[path] = sums.get(path, Usage()) + used
    return {path: sums[path] for path in sorted(sums, key=order)}
