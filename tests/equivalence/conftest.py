"""Counts of the trees that were run, shown at the end."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many trees were run and what they held; workers send it with their reports."""
    totals = {"trees": Counter[str](), "lives": Counter[str]()}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, counts in getattr(report, "user_properties", ()):
                if name in totals:
                    totals[name].update(counts)
    for name, total in totals.items():
        if total:
            told = ", ".join(f"{number} {what}" for what, number in total.items())
            terminalreporter.write_line(f"{_ABOUT[name]}: {told}")


_ABOUT = {"trees": "equivalence of engines", "lives": "killed, resumed and replayed"}
