"""Drawings, and views of what calls saw, from trees and journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.report.call_differences import CallSide as CallSide
    from mergepoint.report.call_text import call_view as call_view
    from mergepoint.report.call_text import to_text as to_text
    from mergepoint.report.comparison import ComparedCall as ComparedCall
    from mergepoint.report.comparison import Comparison as Comparison
    from mergepoint.report.comparison import RunTotals as RunTotals
    from mergepoint.report.comparison import compare as compare
    from mergepoint.report.explaining import explain as explain
    from mergepoint.report.explanation import Explanation as Explanation
    from mergepoint.report.explanation import PlannedCapture as PlannedCapture
    from mergepoint.report.explanation import PlannedMessage as PlannedMessage
    from mergepoint.report.explanation import PlannedStep as PlannedStep
    from mergepoint.report.explanation import PlanWarning as PlanWarning
    from mergepoint.report.svg import to_mermaid as to_mermaid
    from mergepoint.report.svg import to_svg as to_svg
    from mergepoint.report.views import CallView as CallView

__all__ = [
    "CallSide",
    "CallView",
    "ComparedCall",
    "Comparison",
    "Explanation",
    "PlanWarning",
    "PlannedCapture",
    "PlannedMessage",
    "PlannedStep",
    "RunTotals",
    "call_view",
    "compare",
    "explain",
    "to_mermaid",
    "to_svg",
    "to_text",
]

_HOMES = {
    "mergepoint.report.call_text": "call_view to_text",
    "mergepoint.report.call_differences": "CallSide",
    "mergepoint.report.comparison": "ComparedCall Comparison RunTotals compare",
    "mergepoint.report.explaining": "explain",
    "mergepoint.report.explanation": (
        "Explanation PlanWarning PlannedCapture PlannedMessage PlannedStep"
    ),
    "mergepoint.report.svg": "to_mermaid to_svg",
    "mergepoint.report.views": "CallView",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
