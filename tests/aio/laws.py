"""Laws: what has to hold of a stream whatever comes in between, and who broke one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any


class Told(Exception):
    """A failure that a schedule asks for."""


@dataclass
class Laws:
    """What broke a law in one run: its name, and the facts."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    _relaxed: set[str] = field(default_factory=set)

    def hold(self, law: str, *, holds: bool, told: str) -> None:
        """Note a problem unless the law holds."""
        if not holds and law not in self._relaxed:
            self.problems.append((law, told))

    def relax(self, law: str) -> None:
        """Let a law go from now on."""
        self._relaxed.add(law)


@dataclass(frozen=True)
class Outcome:
    """What a reader got, and how that ended: `end`, `stopped`, `cancelled` or `error`."""

    got: tuple[Any, ...]
    how: str
    error: str = ""

    def __str__(self) -> str:
        return f"{list(self.got)}, then {self.how} {self.error}"


@dataclass(frozen=True)
class Expected:
    """What the stages give one after the other: results, and the error that ends them.

    Where the order is not theirs (`loose`) these are all results and all errors that there could
    be; an error may come before the results.
    """

    results: tuple[Any, ...]
    errors: tuple[str, ...] = ()
    loose: bool = False

    def judge(self, outcome: Outcome, laws: Laws, *, allowed: Collection[str]) -> None:
        """Compare; `allowed` are errors of cleaning up, which take the place of what was there."""
        told = f"{outcome}; expected {list(self.results)}, then {self.errors}, loose={self.loose}"
        if self.loose:
            begins = not Counter(outcome.got) - Counter(self.results)
        else:
            begins = outcome.got == self.results[: len(outcome.got)]
        laws.hold("order", holds=begins, told=told)
        whole = len(outcome.got) == len(self.results)
        if outcome.how == "end":
            laws.hold("results", holds=whole and not self.errors, told=told)
        elif outcome.how == "error" and outcome.error not in allowed:
            laws.hold("error", holds=outcome.error in self.errors, told=told)
            laws.hold("results", holds=whole or self.loose, told=told)
