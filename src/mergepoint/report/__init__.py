"""Drawings, and views of what calls saw, from trees and journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.report.call_text import call_view as call_view
    from mergepoint.report.call_text import to_text as to_text
    from mergepoint.report.svg import to_mermaid as to_mermaid
    from mergepoint.report.svg import to_svg as to_svg
    from mergepoint.report.views import CallView as CallView

__all__ = [
    "CallView",
    "call_view",
    "to_mermaid",
    "to_svg",
    "to_text",
]

_HOMES = {
    "mergepoint.report.call_text": "call_view to_text",
    "mergepoint.report.svg": "to_mermaid to_svg",
    "mergepoint.report.views": "CallView",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
