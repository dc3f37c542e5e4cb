"""Batches: many inputs through one tree or recipe, on one machine or on many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.scale.batch_run import batch as batch
    from mergepoint.scale.local_engine import LocalEngine as LocalEngine
    from mergepoint.scale.protocol import BatchEngine as BatchEngine
    from mergepoint.scale.protocol import BatchError as BatchError
    from mergepoint.scale.protocol import BatchInput as BatchInput
    from mergepoint.scale.protocol import BatchResult as BatchResult
    from mergepoint.scale.protocol import RunSpec as RunSpec
    from mergepoint.scale.queue_engine import QueueEngine as QueueEngine
    from mergepoint.scale.ray_engine import RayEngine as RayEngine

__all__ = [
    "BatchEngine",
    "BatchError",
    "BatchInput",
    "BatchResult",
    "LocalEngine",
    "QueueEngine",
    "RayEngine",
    "RunSpec",
    "batch",
]

_HOMES = {
    "mergepoint.scale.batch_run": "batch",
    "mergepoint.scale.local_engine": "LocalEngine",
    "mergepoint.scale.protocol": "BatchEngine BatchError BatchInput BatchResult RunSpec",
    "mergepoint.scale.queue_engine": "QueueEngine",
    "mergepoint.scale.ray_engine": "RayEngine",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
