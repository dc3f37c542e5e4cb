"""The usage of a run by path: paid for in it, or taken from the record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.recipe_records import NOTE


@dataclass(slots=True)
class PathUsage:
    """Calls of models, their tokens and costs; `add` counts another one.

    `unknown` counts calls without a cost, `guessed` answers without token counts.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    known: int = 0
    unknown: int = 0
    guessed: int = 0
    failed: int = 0

    def add(self, record: CallRecord) -> None:
        """Count a call of a model."""
        used = record.usage or {}
        self.calls += 1
        self.failed += record.failed
        self.input_tokens += int(used.get("input_tokens") or 0)
        self.output_tokens += int(used.get("output_tokens") or 0)
        self.guessed += record.answered and not used
        if record.cost is None:
            self.unknown += 1
        else:
            self.known += 1
            self.cost += record.cost

    def include(self, other: PathUsage) -> None:
        """Count all calls of another usage."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_page(self) -> dict[str, Any]:
        """Return the usage as the data of a page."""
        return {
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            # Costs are whole picodollars, so this removes the error of adding floats.
            "cost": round(self.cost, 12) if self.known or not self.calls else None,
            "estimated": bool(self.guessed or (self.known and self.unknown)),
        }


UsageOf = Callable[[str], PathUsage]


@dataclass(frozen=True, slots=True)
class RunUsage:
    """The usage of a run: what was `paid` for in it, and what was `reused` from the record.

    `at` and `paid_at` are that of the calls at a path, and not below it: all, and those paid for.
    """

    paid: PathUsage
    reused: PathUsage
    paths: dict[str, PathUsage]
    paid_paths: dict[str, PathUsage]

    @classmethod
    def of(cls, records: Iterable[CallRecord]) -> RunUsage:
        """Return the usage of a run from all its records."""
        found = cls(PathUsage(), PathUsage(), {}, {})
        for record in records:
            if record.kind not in ("step", "inner") or record.model == NOTE:
                continue
            live = record.source == "live"
            (found.paid if live else found.reused).add(record)
            found.paths.setdefault(record.path, PathUsage()).add(record)
            if live:
                found.paid_paths.setdefault(record.path, PathUsage()).add(record)
        return found

    def at(self, path: str) -> PathUsage:
        """Return the usage of all calls at a path."""
        return self.paths.get(path) or PathUsage()

    def paid_at(self, path: str) -> PathUsage:
        """Return the usage of the calls at a path that were paid for in this run."""
        return self.paid_paths.get(path) or PathUsage()
