"""Counts of the trees that were run, shown at the end."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many trees were run and what they held; workers send it with their reports."""
    total: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, counts in getattr(report, "user_properties", ()):
                if name == "trees":
                    total.update(counts)
    if total:
        told = ", ".join(f"{number} {what}" for what, number in total.items())
        terminalreporter.write_line(f"equivalence of engines: {told}")
