"""Fakes, strategies, and fixtures for tests, yours and mergepoint's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.testing.cassettes import Cassette as Cassette
    from mergepoint.testing.fakes import Killed as Killed
    from mergepoint.testing.fakes import KillingStore as KillingStore
    from mergepoint.testing.fakes import Replies as Replies
    from mergepoint.testing.fakes import Source as Source
    from mergepoint.testing.fakes import run_block as run_block
    from mergepoint.testing.random_trees import trees as trees
    from mergepoint.testing.scripted_model import Answer as Answer
    from mergepoint.testing.scripted_model import ScriptedModel as ScriptedModel
    from mergepoint.testing.server import ModelServer as ModelServer
    from mergepoint.testing.server import ServerReply as ServerReply
    from mergepoint.testing.simulated_time import Deadlock as Deadlock
    from mergepoint.testing.simulated_time import FakeClock as FakeClock
    from mergepoint.testing.simulated_time import simulate as simulate

__all__ = [
    "Answer",
    "Cassette",
    "Deadlock",
    "FakeClock",
    "Killed",
    "KillingStore",
    "ModelServer",
    "Replies",
    "ScriptedModel",
    "ServerReply",
    "Source",
    "run_block",
    "simulate",
    "trees",
]

_HOMES = {
    "mergepoint.testing.cassettes": "Cassette",
    "mergepoint.testing.fakes": "Killed KillingStore Replies Source run_block",
    "mergepoint.testing.random_trees": "trees",
    "mergepoint.testing.scripted_model": "Answer ScriptedModel",
    "mergepoint.testing.server": "ModelServer ServerReply",
    "mergepoint.testing.simulated_time": "Deadlock FakeClock simulate",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
