"""The CPU meter: what is added up from looks at processes."""

from __future__ import annotations

import pytest

from mergepoint.sandbox.resource_usage import CpuMeter, ProcessTime


def spent(process: int, own: float, children: float = 0.0) -> ProcessTime:
    """Return a process by its number."""
    return ProcessTime(process, b"1", own, children)


def test_time_of_a_child_that_nobody_waited_for_counts() -> None:
    """What was last seen of a process that has ended stays in the sum."""
    meter = CpuMeter()
    meter.look([spent(2, 0.1), spent(3, 0.5)], 0.0)
    assert meter.look([spent(2, 0.2)], 0.01) == pytest.approx(0.7)
    meter.look([spent(2, 0.2), spent(4, 0.4)], 0.02)
    assert meter.look([spent(2, 0.2)], 0.03) == pytest.approx(1.1)


def test_time_of_a_child_that_was_waited_for_counts_once() -> None:
    """A parent that waits takes over the time of its child, which is not counted again."""
    meter = CpuMeter()
    meter.look([spent(2, 0.1), spent(3, 0.5)], 0.0)
    assert meter.look([spent(2, 0.1, children=0.5)], 0.01) == pytest.approx(0.6)
    assert meter.look([spent(2, 0.1, children=0.9)], 0.02) == pytest.approx(1.0)


def test_children_between_two_looks_are_estimated() -> None:
    """Numbers that were passed over make one processor busy, for no longer than they may last."""
    meter = CpuMeter()
    meter.look([spent(2, 0.0)], 0.0)
    meter.look([spent(2, 0.0)], 1.0)
    assert meter.look([spent(2, 0.0), spent(50, 0.0)], 1.5) == pytest.approx(1.5)
    assert meter.look([spent(2, 0.0), spent(51, 0.0)], 2.0) == pytest.approx(1.5)
    assert meter.look([spent(2, 0.0), spent(53, 0.0)], 2.5) == pytest.approx(2.0)
    meter.look([spent(2, 0.0)], 60.0)
    assert meter.look([spent(2, 0.3, 0.3), spent(55, 0.0)], 60.1) == pytest.approx(59.5)


def test_numbers_that_begin_anew_are_known() -> None:
    """After the last number of a namespace the first ones come again."""
    meter = CpuMeter()
    meter.look([spent(2, 0.0), spent(32_000, 0.0)], 0.0)
    assert meter.look([spent(2, 0.0), spent(300, 0.0)], 0.25) == pytest.approx(0.25)
