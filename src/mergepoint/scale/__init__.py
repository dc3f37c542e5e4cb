"""Batches: many inputs through one tree or recipe, on one machine or on many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.scale.batch_run import batch as batch
    from mergepoint.scale.limits import open_limits as open_limits
    from mergepoint.scale.local_engine import LocalEngine as LocalEngine
    from mergepoint.scale.protocol import BatchEngine as BatchEngine
    from mergepoint.scale.protocol import BatchError as BatchError
    from mergepoint.scale.protocol import BatchInput as BatchInput
    from mergepoint.scale.protocol import BatchResult as BatchResult
    from mergepoint.scale.protocol import RunSpec as RunSpec
    from mergepoint.scale.queue_engine import QueueEngine as QueueEngine
    from mergepoint.scale.rate_limits import RequestTooLarge as RequestTooLarge
    from mergepoint.scale.ray_engine import RayEngine as RayEngine
    from mergepoint.scale.shared_budget import BatchBudgetExceeded as BatchBudgetExceeded

__all__ = [
    "BatchBudgetExceeded",
    "BatchEngine",
    "BatchError",
    "BatchInput",
    "BatchResult",
    "LocalEngine",
    "QueueEngine",
    "RayEngine",
    "RequestTooLarge",
    "RunSpec",
    "batch",
    "open_limits",
]

_HOMES = {
    "mergepoint.scale.batch_run": "batch",
    "mergepoint.scale.limits": "open_limits",
    "mergepoint.scale.local_engine": "LocalEngine",
    "mergepoint.scale.protocol": "BatchEngine BatchError BatchInput BatchResult RunSpec",
    "mergepoint.scale.queue_engine": "QueueEngine",
    "mergepoint.scale.ray_engine": "RayEngine",
    "mergepoint.scale.rate_limits": "RequestTooLarge",
    "mergepoint.scale.shared_budget": "BatchBudgetExceeded",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
