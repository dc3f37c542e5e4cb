"""Fixtures: an empty place for runs of each kind, and a store there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journal.places import Place, place_of

from mergepoint.journal.stores import Store


@pytest.fixture(params=["files", "segments", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty place of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def store(place: Place) -> Store:
    """Return a store there."""
    return place.store()
