"""Spans of OpenTelemetry, from journals of finished and of running runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.otel.conventions import CONVENTIONS as CONVENTIONS
    from mergepoint.otel.export import ExportError as ExportError
    from mergepoint.otel.export import export_run as export_run
    from mergepoint.otel.live import SpanRecorder as SpanRecorder
    from mergepoint.otel.span_facts import trace_id as trace_id

__all__ = ["CONVENTIONS", "ExportError", "SpanRecorder", "export_run", "trace_id"]

_HOMES = {
    "mergepoint.otel.conventions": "CONVENTIONS",
    "mergepoint.otel.export": "ExportError export_run",
    "mergepoint.otel.live": "SpanRecorder",
    "mergepoint.otel.span_facts": "trace_id",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
