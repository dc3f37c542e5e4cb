"""Limits: the numbers that shape a stream, checked where they are given."""

from __future__ import annotations


def at_least(least: int, **numbers: int) -> None:
    """Raise ValueError or TypeError for a number that is below `least`, or no whole number."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} is a whole number, not {number!r}")
        if number < least:
            raise ValueError(f"{name} is at least {least}, not {number}")
