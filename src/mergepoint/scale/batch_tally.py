"""Totals of a batch's results: how many are done, what they used, and why others failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mergepoint.scale.protocol import BatchResult

_EXAMPLES: Final = 3


@dataclass(slots=True)
class FailureGroup:
    """Failures of one error type at one path.

    `ids` and `run_ids` are those of the first three, and `message` is that of the first.
    """

    type: str
    path: str
    message: str
    count: int = 0
    ids: list[str] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        """Return JSON data."""
        names = ("type", "path", "message", "count", "ids", "run_ids")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True)
class BatchTally:
    """Running totals of results.

    Attributes:
        done: Number of results that are done.
        failed: Number of results that failed.
        calls: Number of calls that were made for them.
        input_tokens: Tokens of the prompts of these calls.
        output_tokens: Tokens of their answers.
        cost: Their cost in USD, as far as it is known.
        unknown_costs: Number of results whose cost isn't known.
    """

    done: int = 0
    failed: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unknown_costs: int = 0
    _groups: dict[tuple[str, str], FailureGroup] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> BatchTally:
        """Return the totals of the lines of a results file (see `read_results`)."""
        tally = cls()
        for line in lines:
            tally.add(line)
        return tally

    @property
    def total(self) -> int:
        """Return the number of results."""
        return self.done + self.failed

    @property
    def tokens(self) -> int:
        """Return the tokens of prompts and answers."""
        return self.input_tokens + self.output_tokens

    @property
    def failures(self) -> list[FailureGroup]:
        """Return the failures by error type and path, the most frequent first."""
        return sorted(self._groups.values(), key=lambda group: -group.count)

    def add(self, result: Mapping[str, Any] | BatchResult) -> None:
        """Add a result with the calls of this process, or the data of a line with all calls."""
        line = result.to_plain() if isinstance(result, BatchResult) else result
        self.add_usage(line, now=isinstance(result, BatchResult))
        if line["status"] == "done":
            self.done += 1
            return
        self.failed += 1
        error = line.get("error") or {}
        kind, path = str(error.get("type", "")), str(error.get("path") or "")
        group = self._groups.setdefault(
            (kind, path), FailureGroup(kind, path, str(error.get("message", "")))
        )
        group.count += 1
        if group.count <= _EXAMPLES:
            group.ids.append(line["id"])
            group.run_ids.append(str(line.get("run_id") or ""))

    def add_usage(self, line: Mapping[str, Any], *, now: bool) -> None:
        """Add the calls of a result, with `now` only those of this process."""
        usage = line.get("usage") or {}
        before = (line.get("earlier") or {}) if now else {}
        self.calls += int(line.get("calls") or 0) - int(before.get("calls") or 0)
        for name in ("input_tokens", "output_tokens"):
            number = int(usage.get(name) or 0) - int(before.get(name) or 0)
            setattr(self, name, getattr(self, name) + number)
        cost = usage.get("cost", 0.0)
        self.cost += 0.0 if cost is None else cost - (before.get("cost") or 0.0)
        self.unknown_costs += cost is None

    def to_plain(self) -> dict[str, Any]:
        """Return JSON data; the cost is None if no part of it is known."""
        known = self.cost if self.cost or not self.unknown_costs else None
        return {
            "done": self.done,
            "failed": self.failed,
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": known,
            "unknown_costs": self.unknown_costs,
            "failures": [group.to_plain() for group in self.failures],
        }
